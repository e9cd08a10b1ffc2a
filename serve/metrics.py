"""Metrics for Prometheus, in a registry of their own, and the ASGI layer that counts and times requests."""

from contextlib import suppress
from time import perf_counter

from h11 import LocalProtocolError
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelcast.serve.loaded import Loaded

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Requests by path and status, their times, queued work, reloads, the bundle, and the process itself."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "kernelcast_requests", "Requests answered.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "kernelcast_request_seconds",
            "From a request's head to the end of its answer.",
            ["path"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.pending = Gauge(
            "kernelcast_pending", "Requests that are computed or wait.", ["pool"], registry=self.registry
        )
        self.reloads = Counter(
            "kernelcast_reloads", "Reloads of the bundle: ok or refused.", ["result"], registry=self.registry
        )
        self._bundle = Gauge(
            "kernelcast_bundle_info", "1 for the bundle that answers.", ["digest"], registry=self.registry
        )
        for result in ("ok", "refused"):
            self.reloads.labels(result)

    def answers_with(self, loaded: Loaded) -> None:
        self._bundle.clear()
        self._bundle.labels(loaded.digest).set(1)

    def health(self, taken_s: float) -> None:
        """Count an answer of /health that the acceptor gave."""
        self.requests.labels("/health", 200).inc()
        self.seconds.labels("/health").observe(taken_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)


CLIENT_GONE = 499
"""Status of requests whose client went away before the answer, in the figures alone."""


class RequestMetrics:
    """Counts and times requests; all unknown paths count as one."""

    def __init__(self, inner: ASGIApp, metrics: Metrics, paths: set[str]) -> None:
        self._inner, self._metrics, self._paths = inner, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        begin, status = perf_counter(), CLIENT_GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            # Bytes behind the request may have ended the connection: the answer cannot be sent.
            with suppress(LocalProtocolError):
                await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            await self._inner(scope, receive, noting)
        finally:
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(perf_counter() - begin)
        return None
