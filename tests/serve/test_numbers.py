"""Limits to the byte, in this process: heads, bodies, chunks, answers that are kept, questions that wait."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h11
import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from uvicorn.server import ServerState

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.serve import Limits, Loaded, application, connections, tcp_listener, unix_listener
from kernelcast.serve.application import Application
from kernelcast.serve.connections import connection_of
from kernelcast.serve.limits import Busy
from kernelcast.serve.messages import content_of
from kernelcast.serve.openapi import document
from kernelcast.serve.questions import search_layouts

DOCS = Path(__file__).parents[2] / "docs"
LIMITS = Limits()


@pytest.mark.parametrize(
    ("page", "stated"),
    [
        ("serve.md", f"more than {LIMITS.small_chunks} pieces"),
        ("serve.md", f"more than {LIMITS.most_chunks:,} pieces"),
        ("serve.md", f"{LIMITS.connections} connections may be open"),
        ("serve.md", f"at most {LIMITS.answer_bytes / 2**20:g} MiB together"),
        ("serve.md", f"head has at most {connections._MAX_HEAD_BYTES / 1024:g} KiB and {LIMITS.head_s:g} s"),
        ("serve.md", f"its body has {LIMITS.body_s:g} s, and longer at {connections._BODY_BYTES_PER_S / 1024:g} KiB/s"),
        ("serve.md", f"fewer than {connections._LEAST_CHUNK_BYTES} bytes on average"),
        ("serve.md", f"the first {connections._SPARE_CHUNKS} are free"),
        ("serve.md", f"{application.SENT_BYTES / 2**20:g} MiB of answers as they were sent"),
        ("commands.md", f"[default: {LIMITS.max_body_bytes / 2**20:g}MiB]"),
        ("commands.md", f"[default: {LIMITS.max_search_layouts}; x>=0]"),
        ("commands.md", f"[default: {LIMITS.time_s:g}s]"),
        ("commands.md", f"[default: {LIMITS.waiting}; 0<=x<=100000]"),
    ],
)  # fmt: skip
def test_the_page_states_the_limits(page: str, stated: str) -> None:
    assert stated in " ".join((DOCS / page).read_text().split())


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (64, 2)])
def test_a_thread_per_core_up_to_two(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(cores)))
    assert Limits().workers == workers


def test_heads_and_chunks() -> None:
    parser = connections._Parser(h11.SERVER, connections._MAX_HEAD_BYTES)
    head = b"GET / HTTP/1.1\r\nX: "
    parser.receive_data(head + (16_384 - len(head)) * b"x")
    assert parser.next_event() is h11.NEED_DATA
    parser.receive_data(b"x")
    with pytest.raises(h11.RemoteProtocolError):
        parser.next_event()


@pytest.mark.parametrize(("size", "accepted"), [(1, 260), (63, 16_384), (64, 20_000)])
def test_chunks_have_64_bytes_on_average_but_the_first(size: int, accepted: int) -> None:
    parser = connections._Parser(h11.SERVER, 1 << 14)
    head = b"POST / HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser.receive_data(head + f"{size:x}\r\n{size * 'x'}\r\n".encode() * 20_000)
    assert isinstance(parser.next_event(), h11.Request)
    found = 0
    try:
        while isinstance(parser.next_event(), h11.Data):
            found += 1
    except h11.RemoteProtocolError:
        assert size < 64
    assert found == accepted


@pytest.mark.parametrize(
    ("parts", "length", "status"),
    [
        ([b"x" * 60, b"x" * 40], None, 200),
        ([b"x" * 60, b"x" * 41], None, 413),
        ([b"x" * 100], "100", 200),
        ([b""], "101", 413),
        ([b""], "9" * 19, 413),
        ([b""], "٣٣٣٣", 200),  # no digits of HTTP
    ],
)
def test_bodies(parts: list[bytes], length: str | None, status: int) -> None:
    coming = iter(parts)

    async def receive() -> dict[str, Any]:
        part = next(coming, b"")
        return {"type": "http.request", "body": part, "more_body": part is not parts[-1]}

    headers = [(b"content-type", b"application/json; charset=utf-8")]
    headers += [] if length is None else [(b"content-length", length.encode("utf-8"))]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    asked = content_of(Request(scope, receive), "application/json", Limits(max_body_bytes=100))
    if status == 200:
        assert asyncio.run(asked) == b"".join(parts)
    else:
        with pytest.raises(HTTPException) as caught:
            asyncio.run(asked)
        assert (caught.value.status_code, caught.value.detail) == (
            413,
            "body is too large, expected at most 100 bytes",
        )


Talk = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def listening(limits: Limits, asgi: Any) -> Any:
    """Connections of the server around an application; what is given opens one and sends bytes."""
    config, state = uvicorn.Config(asgi, interface="asgi3", log_config=None, lifespan="off"), ServerState()
    config.load()
    kind, opened = connection_of(limits), []
    server = await asyncio.get_running_loop().create_server(
        lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )

    async def talk(sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        count = len(state.connections)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        opened.append(writer)
        writer.write(sent)
        while not sent and len(state.connections) == count < limits.connections:
            await asyncio.sleep(0.001)
        return reader, writer

    try:
        yield talk
    finally:
        for writer in opened:
            writer.close()
        server.close()


GET = b"GET / HTTP/1.1\r\nHost: k\r\n\r\n"


class Waiting:
    """An application that answers once it is told to."""

    def __init__(self) -> None:
        self.asked, self.released = asyncio.Semaphore(0), asyncio.Event()

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.asked.release()
        await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def test_where_all_are_being_answered_the_new_one_is_refused() -> None:
    async def talks() -> None:
        waiting = Waiting()
        async with listening(Limits(connections=2), waiting) as talk:
            answered = [await talk(GET) for _ in range(2)]
            for _ in answered:
                await waiting.asked.acquire()
            refused, _ = await talk(b"")
            found = await refused.read()
            assert found.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert found.endswith(b'{"error": "2 connections are open, expected fewer"}')
            waiting.released.set()
            for reader, _ in answered:
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")

    asyncio.run(asyncio.wait_for(talks(), 60))


def test_the_one_that_waited_longest_makes_room() -> None:
    async def talks() -> None:
        waiting = Waiting()
        waiting.released.set()
        async with listening(Limits(connections=3), waiting) as talk:
            first, second, third, fourth = [await talk(b"") for _ in range(4)]
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await first[0].readexactly(1)
            for reader, writer in (second, third, fourth):
                writer.write(GET)
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")

    asyncio.run(asyncio.wait_for(talks(), 60))


def test_a_body_that_comes_slowly_is_told_its_time() -> None:
    async def talks() -> None:
        ended = asyncio.Event()

        async def reading(_scope: Any, receive: Any, _send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            ended.set()

        async with listening(Limits(body_s=0.05), reading) as talk:
            # A tenth of what comes in a second at the least rate.
            head = b"POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 9999\r\n\r\n"
            reader, _ = await talk(head + 1638 * b"x")
            found = await reader.read()
            assert found.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert found.endswith(b'{"error": "body did not come within 0.15 s"}')
            await ended.wait()

    asyncio.run(asyncio.wait_for(talks(), 60))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:0", "which other machines reach; expected 127.0.0.1, or --allow-remote"),
        ("[::]:0", "which other machines reach"),
        ("example.org:80", "expected ADDRESS:PORT"),
        ("127.0.0.1", "expected ADDRESS:PORT"),
        *(
            (f"127.0.0.1:{port}", "expected ADDRESS:PORT")
            for port in ("+80", " 80", "٣", "-1", "65536", "", "x")
        ),
    ],
)
def test_addresses_that_are_refused(address: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        tcp_listener(address)
    assert expected in str(caught.value)


def test_a_socket_of_another_kind_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "s"))
        with pytest.raises(DataError, match="s: cannot be tried"):
            unix_listener(tmp_path / "s")
        assert (tmp_path / "s").exists()


@pytest.fixture
def answering(make_bundle: Callable[..., Path], tmp_path: Path) -> Iterator[Application]:
    """With a site whose models are: one sound, one not, one twice."""
    (tmp_path / "models").mkdir()
    sizes = {"hidden_size": 64, "attention_heads": 4, "sequence_length": 64, "vocabulary_size": 512}
    for layers, name in ((2, "ours.json"), (3, "twice.json")):
        (tmp_path / "models" / name).write_text(json.dumps({**sizes, "name": name[:-5], "layers": layers}))
    twice = "".join(f"{name} = {size}\n" for name, size in sizes.items())
    (tmp_path / "models" / "twice.toml").write_text('name = "twice"\nlayers = 5\n' + twice)
    (tmp_path / "models" / "broken.toml").write_text("hidden_size = 0\n")
    (tmp_path / "models" / "notes.txt").write_text("")
    (tmp_path / "site.toml").write_text('models = "models"\n')
    bundle, environment = make_bundle(), {"KERNELCAST_SITE": str(tmp_path / "site.toml")}
    loaded = Loaded.load(bundle, environment)
    found = Application(
        bundle, loaded, Limits(workers=1, waiting=2), environment=environment, can_reload=True
    )
    yield found
    found.close()


def test_the_sound_models_of_a_site(
    answering: Application, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (answering.loaded.models["ours"].layers, answering.loaded.models["twice"].layers) == (
        2,
        5,
    )  # TOML counts
    assert {"broken", "notes"}.isdisjoint(answering.loaded.models)
    [problem] = answering.loaded.problems
    assert problem.startswith("left out: ")
    asyncio.run(answering.reload())
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("/")[0] for line in lines][:1] == ["kernelcast: left out: model file "]
    assert lines[1].startswith("kernelcast: reloaded: ")
    (tmp_path / "site.toml").write_text('models = "gone"\n')
    asyncio.run(answering.reload())
    assert answering.loaded.problems[0].startswith(
        f"site's models {tmp_path}/gone: cannot be read (No such file"
    )


def test_answers_are_kept_up_to_256_kib_with_their_question(answering: Application) -> None:
    asked = []

    def work(_warm: Loaded) -> bytes:
        asked.append(True)
        return b"x" * ((1 << 18) - 100)

    async def ask(question: bytes) -> bytes:
        return bytes((await answering._again_or("/x", question, answering.loaded, work)).body)

    for question, times in ((b"?" * 100, 1), (b"?" * 101, 3)):
        for _ in range(2):
            assert len(asyncio.run(ask(question))) == (1 << 18) - 100
        assert len(asked) == times


@pytest.mark.parametrize(("pool", "times"), [("answer", 1), ("search", 3)])
def test_clients_that_ask_the_same_at_once_share_one_computation(
    answering: Application, pool: str, times: int
) -> None:
    asked, answers = [], threading.Event()

    def work(_warm: Loaded) -> bytes:
        asked.append(True)
        assert answers.wait(60)
        if len(asked) > times:
            return b"later"
        raise UsageError("no such layout")

    async def ask(clients: int) -> list[tuple[int, bytes]]:
        again_or = partial(answering._again_or, "/x", b"?", answering.loaded, work, pool=pool)
        waiting = [asyncio.create_task(again_or()) for _ in range(clients)]
        await asyncio.sleep(0)
        answers.set()
        return [(one.status_code, bytes(one.body)) for one in await asyncio.gather(*waiting)]

    assert asyncio.run(ask(3)) == [(422, b'{"error": "no such layout"}')] * 3
    assert len(asked) == times
    assert asyncio.run(ask(1)) == [(200, b"later")]  # a refusal is not kept


def test_questions_that_wait(answering: Application) -> None:
    async def ask(name: str) -> None:
        ends, pool = threading.Event(), answering._pools[name]
        begun = [asyncio.create_task(pool.run(ends.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="3 requests are being answered or wait"):
            await pool.run(ends.wait)
        ends.set()
        assert await asyncio.gather(*begun) == [True] * 3

    for name in ("answer", "large", "search"):
        asyncio.run(ask(name))
    usual = Application(Path(), answering.loaded, Limits(workers=3), environment={}, can_reload=True)
    usual.close()  # large questions and searches have a thread and a short queue
    assert {name: pool._most for name, pool in usual._pools.items()} == {
        "answer": 3 + 128, "large": 1 + 4, "search": 1 + 4,
    }  # fmt: skip


def test_a_search_of_as_many_layouts_as_may_be(answering: Application) -> None:
    asked = {"model": "llama-2-7b", "gpus": 4, "global_batch": 4, "pp": 1}
    found = search_layouts(answering.loaded, asked, Limits(), lambda: False)
    layouts = found["layouts"]
    assert search_layouts(answering.loaded, asked, Limits(max_search_layouts=layouts), lambda: False)["best"]
    with pytest.raises(UsageError, match=f"search has more than {layouts - 1} layouts"):
        search_layouts(answering.loaded, asked, Limits(max_search_layouts=layouts - 1), lambda: False)


def test_every_question_has_a_body() -> None:
    paths = document("1.0", ["ours"], can_reload=True)["paths"]
    asked = {path: one["post"] for path, one in paths.items() if "post" in one}
    assert asked.pop("/reload").keys() == {"summary", "responses"}
    assert {one["requestBody"]["required"] for one in asked.values()} == {True}
