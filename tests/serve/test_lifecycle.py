"""Sockets and their permissions, starting and stopping, and a bundle that is replaced while questions come in."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelcast.serve import Limits, Loaded
from kernelcast.serve.application import Application

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ASKED = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}


def refused(*options: str, environment: dict[str, str] | None = None) -> str:
    """The line of a server that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelcast.cli.main", "serve", *options],
        capture_output=True, text=True, check=False, timeout=3000, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode in (1, 2), done
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done
    return done.stderr.removeprefix("kernelcast: error: ")


@pytest.mark.parametrize(("options", "mode"), [([], 0o660), (["--socket-mode", "0606"], 0o606)])
def test_permissions_of_the_socket(start: Start, folder: Path, options: list[str], mode: int) -> None:
    server = start(*options)
    found = (folder / "s").stat()
    assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, mode)
    assert server.where == f"unix:{folder}/s"


def test_it_stops_when_told_and_leaves_nothing(start: Start, folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        server = start()
        server.signal(number)
        assert server.process.wait(timeout=300) == 0
        assert not (folder / "s").exists()
        assert server.log.read_text() == ""


def test_what_is_being_answered_is_answered(start: Start, until: Callable[..., None]) -> None:
    server = start("--max-search", "100000000", "--time-limit", "600")
    replies: list[Any] = []
    large = {"model": "gpt-20b", "gpus": 256, "global_batch": 256, "gpu_memory_bytes": None}
    asking = threading.Thread(target=lambda: replies.append(server.post("/search", large)))
    asking.start()
    until(lambda: server.metric('kernelcast_pending{pool="search"}') == 1)
    assert server.stop() == 0
    asking.join()
    assert replies[0].status == 200


def test_a_left_over_socket_is_replaced(start: Start, folder: Path) -> None:
    first = start()
    first.signal(signal.SIGKILL)
    first.process.wait()
    assert (folder / "s").exists()
    assert start().get("/health").status == 200


def test_a_live_socket_is_not(start: Start, folder: Path, make_bundle: Callable[..., Path]) -> None:
    server = start()
    line = refused("--bundle", str(make_bundle()), "--socket", str(folder / "s"))
    assert line == f"--socket {folder}/s: another server answers there, expected none\n"
    assert server.get("/health").status == 200


def test_a_file_is_not(folder: Path, make_bundle: Callable[..., Path]) -> None:
    (folder / "s").write_text("precious")
    line = refused("--bundle", str(make_bundle()), "--socket", str(folder / "s"))
    assert line == f"--socket {folder}/s exists and is not a socket, expected a socket or nothing\n"
    assert (folder / "s").read_text() == "precious"


def test_another_server_s_socket_stays(start: Start, folder: Path) -> None:
    first = start()
    (folder / "s").unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s"))
        assert first.stop() == 0
        assert (folder / "s").exists()


def test_paths_that_no_socket_can_have(make_bundle: Callable[..., Path]) -> None:
    bundle = str(make_bundle())
    long = "/tmp/" + "ü" * 60
    assert "has 125 bytes, expected at most 107" in refused("--bundle", bundle, "--socket", long)
    assert refused("--bundle", bundle, "--socket", "/no/such/folder/s").startswith(
        "socket /no/such/folder/s: cannot be made"
    )


def test_a_port_of_this_machine(start: Start) -> None:
    server = start(listen="127.0.0.1:0")
    assert server.where.startswith("http://127.0.0.1:")
    assert server.post("/predict", ASKED).status == 200
    # Whoever gets to the port may not make it work.
    assert server.post("/reload", {}).status == 404
    assert "/reload" not in server.get("/openapi.json").json["paths"]


def test_addresses_that_are_refused(make_bundle: Callable[..., Path]) -> None:
    line = refused("--bundle", str(make_bundle()), "--listen", "0.0.0.0:0")
    assert line.startswith("--listen is '0.0.0.0:0', which other machines reach; expected 127.0.0.1, or --al")


def test_remote_addresses_are_for_who_insists(start: Start) -> None:
    server = start("--allow-remote", listen="0.0.0.0:0")
    assert "need no password" in server.log.read_text()
    assert server.stop() == 0
    for options, listen in (
        (["--allow-remote"], ""),
        (["--allow-remote", "--quiet"], "0.0.0.0:0"),
        ([], "127.0.0.1:0"),
    ):
        server = start(*options, listen=listen)
        assert "password" not in server.log.read_text()
        server.stop()


def test_a_port_that_is_taken(make_bundle: Callable[..., Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("--bundle", str(make_bundle()), "--listen", f"127.0.0.1:{port}")
    assert line.startswith(f"address 127.0.0.1:{port}: cannot be listened on")


def test_a_bundle_or_site_that_is_not_sound(
    tmp_path: Path, folder: Path, make_bundle: Callable[..., Path]
) -> None:
    broken = tmp_path / "broken.kcast"
    broken.write_bytes(b"PK")
    where = ["--socket", str(folder / "s")]
    assert refused("--bundle", str(broken), *where).startswith(f"bundle {broken}: not a bundle")
    model = make_bundle({"gelu": b"no ONNX"}, name="model.kcast")
    assert "is refused: the model has field 13" in refused("--bundle", str(model), *where)
    site = {"KERNELCAST_SITE": str(tmp_path / "none.toml")}
    line = refused("--bundle", str(make_bundle()), *where, environment=site)
    assert line == f"site file {tmp_path}/none.toml: no such file\n"
    assert not (folder / "s").exists()


def replace(path: Path, by: Path) -> None:
    by.replace(path)


@pytest.mark.parametrize("way", ["SIGHUP", "POST /reload"])
def test_a_new_bundle_under_load(
    start: Start, make_bundle: Callable[..., Path], until: Callable[..., None], way: str
) -> None:
    bundle = make_bundle()
    server = start(bundle=bundle)
    stop = threading.Event()
    replies: list[list[tuple[int, str, float]]] = [[] for _ in range(6)]

    def ask(seen: list[tuple[int, str, float]], number: int) -> None:
        connection = server.connection()
        count = 0
        while not stop.is_set():
            count += 1
            # Half of them new questions, half repeated ones.
            length = 64 + (count * 8 + number if number % 2 else 0)
            body = json.dumps({**ASKED, "sequence_length": length})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            values = json.loads(response.read())
            seen.append((response.status, values["provenance"]["bundle_digest"], values["step_time_s"]))
        connection.close()

    threads = [threading.Thread(target=ask, args=(seen, i)) for i, seen in enumerate(replies)]
    for thread in threads:
        thread.start()
    digests = [server.digest()]
    try:
        for number in range(1, 4):
            times = dict.fromkeys(["gelu", "swiglu", "silu_mul", "rms_norm"], 100.0 * number)
            known = {name: us for name, us in times.items() if name in _operators()}
            replace(bundle, make_bundle(known, name="new.kcast"))
            if way == "SIGHUP":
                server.signal(signal.SIGHUP)
                until(lambda: server.digest() != digests[-1])
            else:
                reply = server.request("POST", "/reload")
                assert reply.status == 200
                assert reply.json["bundle_digest"] != digests[-1]
            digests.append(server.digest())
            asked = [len(seen) for seen in replies]
            until(lambda asked=asked: all(len(s) > n + 2 for s, n in zip(replies, asked, strict=True)))
        bundle.write_bytes(bundle.read_bytes()[:-1])
        if way == "SIGHUP":
            server.signal(signal.SIGHUP)
            until(lambda: server.metric('kernelcast_reloads_total{result="refused"}') == 1)
        else:
            reply = server.request("POST", "/reload")
            assert (reply.status, str(bundle) in reply.error) == (422, False)
        assert server.digest() == digests[-1]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(set(digests)) == 4
    for seen in replies:
        assert {status for status, _, _ in seen} == {200}
        # Each bundle in its turn, none again after the next, and each with its own times.
        order = list(dict.fromkeys(digest for _, digest, _ in seen))
        assert order == digests
        assert [d for _, d, _ in seen] == sorted((d for _, d, _ in seen), key=digests.index)
        assert len({(digest, time_s) for _, digest, time_s in seen if digest == digests[1]}) == 1
    assert len({time_s for _, _, time_s in replies[0]}) == 4
    log = server.log.read_text()
    assert log.count("reloaded: test.kcast") == 3
    assert f"reload refused, still serving {digests[-1][:12]}: bundle {bundle}: " in log
    assert server.metric('kernelcast_reloads_total{result="ok"}') == 3


def _operators() -> set[str]:
    from kernelcast.runtime.operators import OPERATORS

    return set(OPERATORS)


def test_reloads_that_wait_share_the_next_one(start: Start, make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle()
    server = start(bundle=bundle)

    def reload() -> int:
        return int(server.request("POST", "/reload").status)

    with ThreadPoolExecutor(40) as pool:
        assert {one.result() for one in [pool.submit(reload) for _ in range(40)]} == {200}
    assert 1 <= server.metric('kernelcast_reloads_total{result="ok"}') < 40
    bundle.write_bytes(b"")
    with ThreadPoolExecutor(40) as pool:
        assert {one.result() for one in [pool.submit(reload) for _ in range(40)]} == {422}
    assert 1 <= server.metric('kernelcast_reloads_total{result="refused"}') < 40


def test_reloads_that_wait_hear_of_a_failure_that_nobody_expected(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle()
    application = Application(bundle, Loaded.load(bundle, {}), Limits(), environment={}, can_reload=True)
    loads = []

    def fail(*_arguments: object, **_options: object) -> Loaded:
        loads.append(True)
        raise RuntimeError("not thought of")

    monkeypatch.setattr(Loaded, "load", fail)

    async def reload_often() -> list[BaseException | None]:
        return await asyncio.gather(*(application.reload() for _ in range(8)), return_exceptions=True)

    try:
        assert {type(one) for one in asyncio.run(reload_often())} == {RuntimeError}
    finally:
        application.close()
    assert 1 <= len(loads) < 8
