"""Figures for Prometheus, in a registry of their own."""

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

from kernelcast.serve.warm import Warm

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Requests by path and status, their times, what waits, reloads, the bundle; and the process itself."""

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
            "kernelcast_pending", "Questions that are computed or wait.", ["pool"], registry=self.registry
        )
        self.reloads = Counter(
            "kernelcast_reloads", "Reloads of the bundle: ok or refused.", ["result"], registry=self.registry
        )
        self._bundle = Gauge(
            "kernelcast_bundle_info", "1 for the bundle that answers.", ["digest"], registry=self.registry
        )
        for result in ("ok", "refused"):
            self.reloads.labels(result)

    def answers_with(self, warm: Warm) -> None:
        """Say which bundle answers from now on."""
        self._bundle.clear()
        self._bundle.labels(warm.digest).set(1)

    def text(self) -> bytes:
        """The figures in Prometheus' text format."""
        return generate_latest(self.registry)
