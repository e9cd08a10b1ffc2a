"""The server's routes, as a Starlette application: read a request, compute in a pool, answer JSON or one line.

`run` serves a bundle on a socket until a signal stops it.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from kernelcast.runtime.byte_cache import Remembered
from kernelcast.runtime.errors import KernelcastError, UsageError, one_line, shown
from kernelcast.runtime.estimate.estimator import TooManyChunks
from kernelcast.serve.answering import catalogue, model_fields
from kernelcast.serve.http_server import Acceptor, Listener, serving
from kernelcast.serve.limits import Busy, Limits, Pool
from kernelcast.serve.loaded import Loaded
from kernelcast.serve.messages import (
    HTML,
    JSON,
    TEXT,
    BodyError,
    Lingering,
    OfThisMachine,
    TooLarge,
    Unread,
    content_of,
    json_bytes,
    json_error,
    json_object,
    media_type,
    text_bytes,
    text_error,
)
from kernelcast.serve.metrics import CLIENT_GONE, Metrics, RequestMetrics
from kernelcast.serve.openapi import document
from kernelcast.serve.questions import (
    IsGone,
    NobodyWaits,
    compact_layouts,
    layout_choices,
    plan_run,
    predict,
    predict_page,
    predict_pictures,
    predict_trace,
    search_layouts,
)
from kernelcast.serve.walltimes import for_slurm, walltime
from kernelcast.walltime.job import decoded

SENT_BYTES = 16 << 20
"""Of answers as they were sent, for questions that come again: an array of jobs, a user who submits once more."""
_LARGEST_SENT_BYTES = 256 << 10
_LARGE_WAITING = 4
_TEXT_PARAMETERS = ("asked", "slurm")
_MOST_PARAMETERS = 32
POST = ["POST"]
_WATCH_S = 0.05
_RETRY = {"retry-after": "1"}

Endpoint = Callable[[Request], Awaitable[Response]]
Work = Callable[[Loaded], bytes]
"""Computes an answer; may raise TooManyChunks before that."""
Values = dict[str, Any]
Asked = tuple[str, bytes]  # path and body
Answers = Remembered[Asked, bytes]


class Application:
    """The loaded bundle, pools and metrics behind all routes; `pages` are additional routes. A server runs `asgi`."""

    def __init__(
        self,
        path: Path,
        loaded: Loaded,
        limits: Limits,
        *,
        environment: Mapping[str, str],
        can_reload: bool,
        is_local: bool = False,
        pages: Sequence[BaseRoute] = (),
    ) -> None:
        self.loaded, self.limits = loaded, limits
        self._remembered, self._under_way = Answers(SENT_BYTES), dict[Asked, asyncio.Task[bytes]]()
        self.metrics = Metrics()
        self.metrics.answers_with(loaded)
        self.version = version("kernelcast")
        self._path, self._environment = path, environment
        self._reloading, self._reloads = asyncio.Lock(), 0
        self._refusal: Exception | None = None
        pool = partial(Pool, time_s=limits.time_s, pending=self.metrics.pending)
        large_waiting = min(_LARGE_WAITING, limits.waiting)
        self._pools = {
            "answer": pool("answer", workers=limits.workers, waiting=limits.waiting),
            "large": pool("large", workers=1, waiting=large_waiting),
            "search": pool("search", workers=1, waiting=large_waiting),
        }
        self._can_reload = can_reload
        self.reloaded: Callable[[], None] = lambda: None
        routes: list[Route] = [
            Route("/predict", self._answering(predict), methods=POST),
            Route("/search", self._searching(search_layouts), methods=POST),
            Route("/walltime", self._walltime, methods=POST),
            Route("/plan", self._answering(plan_run), methods=POST),
            Route("/layouts", self._searching(compact_layouts), methods=POST),
            Route("/choices", self._answering(layout_choices), methods=POST),
            Route("/model", self._answering(model_fields), methods=POST),
            Route("/pictures", self._answering(predict_pictures), methods=POST),
            Route("/page", self._answering(predict_page, media=HTML), methods=POST),
            Route("/trace", self._answering(predict_trace), methods=POST),
            Route("/catalogue", self._catalogue),
            Route("/health", self._health),
            Route("/metrics", self._figures),
            Route("/openapi.json", self._describe),
        ]
        if can_reload:
            routes.append(Route("/reload", self._reload, methods=["POST"]))
        handlers: dict[Any, Any] = {HTTPException: _refused, ClientDisconnect: _gone, Exception: _failed}
        routed: ASGIApp = Starlette(routes=[*routes, *pages], exception_handlers=handlers)
        if is_local:
            routed = OfThisMachine(routed)
        self.asgi: ASGIApp = RequestMetrics(routed, self.metrics, {route.path for route in routes})
        self._unread = Unread(limits.answer_bytes)

    async def reload(self) -> None:
        """Reload bundle and site; requests in progress keep the old ones.

        All callers that wait during a reload share the next one.

        Raises:
            KernelcastError: they are not sound; the old ones go on answering.
        """
        begun = self._reloads
        async with self._reloading:
            if self._reloads > begun:  # a reload that began after this request has ended
                if self._refusal:
                    raise self._refusal
                return
            self._reloads, self._refusal = self._reloads + 1, None
            try:
                calibrated = self.loaded.estimator.predictor.calibrated
                load = partial(Loaded.load, self._path, self._environment, calibrated=calibrated)
                loaded = await asyncio.to_thread(load)
            except Exception as error:
                self._refusal = error  # of any kind: waiting callers must not be told that it succeeded
                if isinstance(error, KernelcastError):
                    self.metrics.reloads.labels("refused").inc()
                    _log(f"reload refused, still serving {self.loaded.digest[:12]}: {error}")
                raise
            self.loaded, self._remembered, self._under_way = loaded, Answers(SENT_BYTES), {}
            self.metrics.answers_with(loaded)
            self.reloaded()
            self.metrics.reloads.labels("ok").inc()
            for problem in loaded.problems:
                _log(problem)
            _log(f"reloaded: {loaded.name} {loaded.digest[:12]}")

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _answering(self, work: Callable[[Loaded, Values], Values | bytes], *, media: str = JSON) -> Endpoint:
        """Answers a question about one layout; a repeated question gets the same bytes."""

        async def endpoint(request: Request) -> Response:
            content, loaded = await content_of(request, JSON, self.limits), self.loaded

            def answer(loaded: Loaded) -> bytes:
                found = work(loaded, json_object(content))
                return found if isinstance(found, bytes) else json_bytes(found)

            return await self._again_or(request.url.path, content, loaded, answer, media=media)

        return endpoint

    def _searching(self, work: Callable[[Loaded, Values, Limits, IsGone], Values]) -> Endpoint:
        """Answers a search, which ends when its client leaves."""

        async def endpoint(request: Request) -> Response:
            content, loaded = await content_of(request, JSON, self.limits), self.loaded
            gone = threading.Event()
            watching = asyncio.create_task(_watch(request, gone))

            def answer(loaded: Loaded) -> bytes:
                return json_bytes(work(loaded, json_object(content), self.limits, gone.is_set))

            try:
                return await self._again_or(request.url.path, content, loaded, answer, pool="search")
            except NobodyWaits:
                return Response(status_code=CLIENT_GONE)  # for the figures
            finally:
                watching.cancel()

        return endpoint

    async def _walltime(self, request: Request) -> Response:
        if media_type(request) == TEXT:
            return await self._script(request)
        content, loaded = await content_of(request, JSON, self.limits), self.loaded
        return await self._again_or(
            "/walltime",
            content,
            loaded,
            lambda loaded: json_bytes(walltime(loaded, json_object(content)).to_dict()),
        )

    async def _again_or(
        self, path: str, content: bytes, data: Loaded, work: Work, *, media: str = JSON, pool: str = "answer"
    ) -> Response:
        """The cached answer of the same question, the one that is being computed for another client, or a new one."""
        # Cached for the bundle that answers, even if another is loaded meanwhile.
        question, remembered, under_way = (path, content), self._remembered, self._under_way
        known = remembered.get(question)
        if known is not None:
            return Response(known, media_type=media)
        if pool == "search":  # ends when its own client leaves
            answer: Awaitable[bytes] = self._run(pool, data, work)
        else:
            if question not in under_way:
                under_way[question] = task = asyncio.create_task(self._run(pool, data, work))
                task.add_done_callback(lambda _: under_way.pop(question))
            answer = asyncio.shield(under_way[question])
        response = await self._answer(answer, media=media)
        size = len(content) + len(response.body)
        if response.status_code == 200 and size <= _LARGEST_SENT_BYTES:
            remembered.put(question, bytes(response.body), size)
        return response

    async def _script(self, request: Request) -> Response:
        """A batch script as text, answered as text: for clients that are shell scripts."""
        content, loaded = await content_of(request, TEXT, self.limits), self.loaded
        try:
            fields = {"script": decoded(content), **_script_request(request)}
            answer = self._run("answer", loaded, lambda data: text_bytes(for_slurm(walltime(data, fields))))
            return await self._answer(answer, media=TEXT)
        except KernelcastError as error:
            return text_error(422, str(error))

    async def _answer(self, answer: Awaitable[bytes], *, media: str = JSON) -> Response:
        try:
            return self._unread.response(await answer, media)
        except Busy as error:
            return (text_error if media == TEXT else json_error)(503, str(error), _RETRY)
        except BodyError as error:
            return json_error(400, str(error))
        except KernelcastError as error:
            if media == TEXT:
                raise
            return json_error(422, str(error))

    async def _run(self, pool: str, loaded: Loaded, work: Work) -> bytes:
        """Run work in its pool; large layouts queue in a pool of their own."""
        if pool == "answer":
            small = loaded.limited(self.limits.small_chunks)
            try:
                return await self._pools[pool].run(lambda: work(small))
            except TooManyChunks:
                pool, loaded = "large", loaded.limited(self.limits.most_chunks)
        return await self._pools[pool].run(lambda: work(loaded))

    async def _catalogue(self, request: Request) -> Response:
        # Cached, and first computed in a thread: it takes longer than other requests may wait.
        return await self._again_or(
            request.url.path, b"", self.loaded, lambda loaded: json_bytes(catalogue(loaded))
        )

    async def _health(self, request: Request) -> Response:
        return Response(self.health(), media_type=JSON)

    def health(self) -> bytes:
        """The answer of /health."""
        return json_bytes(
            {
                "status": "ok",
                "version": self.version,
                "bundle": self.loaded.name,
                "bundle_digest": self.loaded.digest,
                "loaded_at": self.loaded.loaded_at,
            }
        )

    async def _figures(self, request: Request) -> Response:
        text = await asyncio.to_thread(self.metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def _describe(self, request: Request) -> Response:
        described = document(self.version, self.loaded.models, can_reload=self._can_reload)
        return Response(json_bytes(described), media_type=JSON)

    async def _reload(self, request: Request) -> Response:
        try:
            await self.reload()
        except KernelcastError:
            # Why is in the server's log: it may name files.
            return json_error(422, "the new bundle or site file is not valid, the old one stays in use")
        return Response(self.health(), media_type=JSON)


def _script_request(request: Request) -> dict[str, Any]:
    pairs = request.query_params.multi_items()
    unknown = [name for name, _ in pairs if name not in _TEXT_PARAMETERS]
    if unknown or len(pairs) > _MOST_PARAMETERS:
        raise UsageError(f"query has {unknown[0]!r:.80}" if unknown else f"query has {len(pairs)} parameters")
    slurm = dict(value.partition("=")[::2] for name, value in pairs if name == "slurm")
    time_limit = request.query_params.get("asked")
    return {"slurm": slurm, **({} if time_limit is None else {"asked": time_limit})}


async def _watch(request: Request, gone: threading.Event) -> None:
    """Report when the client of a request leaves; the body has been read."""
    while not await request.is_disconnected():
        await asyncio.sleep(_WATCH_S)
    gone.set()


async def _refused(request: Request, error: HTTPException) -> Response:
    as_text = request.url.path == "/walltime" and media_type(request) == TEXT
    detail = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        paths = ", ".join(route.path for route in request.app.routes)
        detail = f"path is {shown(request.url.path)}, expected one of {paths}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another one")
        detail = f"method is {shown(request.method)}, expected {allowed}"
    refusal = (text_error if as_text else json_error)(error.status_code, detail, error.headers)
    return Lingering(refusal, request.receive) if isinstance(error, TooLarge) else refusal


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_GONE)  # for the metrics; the client has left


async def _failed(request: Request, error: Exception) -> Response:
    # What it was is logged by the server; it may hold anything.
    return json_error(500, "internal error")


def _log(line: str) -> None:
    print(f"kernelcast: {one_line(line)}", file=sys.stderr)


def run(
    path: Path,
    loaded: Loaded,
    listener: Listener,
    limits: Limits,
    *,
    environment: Mapping[str, str],
    started: Callable[[], None],
    pages: Sequence[BaseRoute] = (),
) -> None:
    """Answer requests, also on the routes `pages`, until SIGTERM or SIGINT; SIGHUP reloads the bundle."""
    reach = {"can_reload": listener.is_unix, "is_local": listener.is_local}
    try:
        application = Application(path, loaded, limits, environment=environment, pages=pages, **reach)
        asyncio.run(_run(application, listener, started))
    finally:
        listener.close()


async def _run(application: Application, listener: Listener, started: Callable[[], None]) -> None:
    acceptor = Acceptor(listener, application.health, application.metrics.health)
    application.reloaded = acceptor.tell
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(_reload(application))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        await serving(application.asgi, application.limits, listener.socket, started, acceptor)
    finally:
        application.close()


async def _reload(application: Application) -> None:
    with suppress(KernelcastError):  # logged
        await application.reload()
