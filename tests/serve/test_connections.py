"""Clients that ask slowly, not at all, too much at once, or do not read: others are answered meanwhile."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

Server, Start, Make = Any, Callable[..., Any], Callable[..., Path]

SMALL = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}
DEEP = {"name": "deep", "hidden_size": 64, "layers": 1024, "attention_heads": 4, "sequence_length": 64}
LARGE = {"model": {**DEEP, "vocabulary_size": 512}, "micro_batch": 1, "pp": 1024, "micro_batches": 900}

_RUN = """
import sys
from pathlib import Path
from kernelcast.serve import Limits, Loaded, run, unix_listener
path, where, limits = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3])
run(path, Loaded.load(path, {"KERNELCAST_SITE": ""}), unix_listener(where), limits, environment={},
    started=lambda: print("ready", flush=True))
"""


@contextmanager
def limited(bundle: Path, where: Path, limits: str) -> Iterator["subprocess.Popen[str]"]:
    """A server with other limits than the command line gives."""
    log = where.with_suffix(".log")
    with log.open("w") as errors:
        command = [sys.executable, "-c", _RUN, str(bundle), str(where), limits]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", log.read_text()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connected(where: Path, sent: bytes = b"") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(300)  # against hanging only
    client.connect(str(where))
    client.sendall(sent)
    return client


def health(where: Path) -> bytes:
    with connected(where, b"GET /health HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n") as client:
        return client.recv(100).partition(b"\r\n")[0]


def ends(client: socket.socket) -> bytes:
    """What came until the server ended the connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


POST = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: k\r\nX: ",
        POST + b"Content-Length: 9\r\n\r\n{",
        CHUNKED + b"1\r\n",
    ],
)
def test_many_who_ask_nothing_keep_nobody_out(
    make_bundle: Make, folder: Path, until: Callable[..., None], sent: bytes
) -> None:
    where = folder / "s"
    with limited(make_bundle(), where, "Limits(connections=20)") as process, ExitStack() as opened:
        for _ in range(100):
            opened.enter_context(connected(where, sent))
        assert health(where) == b"HTTP/1.1 200 OK"
        until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) < 50)


@pytest.mark.slow
def test_a_dripping_head_ends(make_bundle: Make, folder: Path) -> None:
    where = folder / "s"
    with limited(make_bundle(), where, "Limits(head_s=4)"), connected(where, b"GET /health") as client:
        idle = connected(where)
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                try:
                    client.send(b"h")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        answer = ends(client)
        stop.set()
        dripping.join()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b'{"error": "head did not come within 4 s"}')
        assert ends(idle) == b""
        idle.close()


def test_chunks_of_a_byte_keep_nobody_waiting(server: Server) -> None:
    where, before_s = Path(server.where.removeprefix("unix:")), server.processor_s()
    with connected(where, CHUNKED) as client:
        _sent_until_refused(client, b"1\r\n{\r\n" * 1_000_000)
        assert health(where) == b"HTTP/1.1 200 OK"
        assert ends(client).startswith(b"HTTP/1.1 400 ")
    assert (
        server.processor_s() - before_s < 3
    )  # every chunk read took 6.5 s, while no other request was answered
    # Chunks of a usual size, the last one small, are answered.
    body = json.dumps(SMALL).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:40], body[40:-1], body[-1:]))
    with connected(where, CHUNKED + chunks + b"0\r\n\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def _sent_until_refused(client: socket.socket, content: bytes) -> None:
    try:
        client.sendall(content)
    except OSError:
        return


@pytest.mark.parametrize(
    "framing",
    [
        b"HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1\r\nHost: k\r\ntransfer-encoding: chunked\r\ncontent-length: 5",
        b"HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_body_of_two_lengths_ends_the_connection(server: Server, framing: bytes) -> None:
    hidden = b"GET /health HTTP/1.1\r\nHost: k\r\n\r\n"
    asked = hidden + b"GET /health " + framing + b"\r\n\r\n0\r\n\r\n" + hidden
    with connected(Path(server.where.removeprefix("unix:")), asked) as client:
        answers = ends(client)
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1 400 Bad Request") == 1
    assert b"connection: close" in answers


def test_a_body_has_its_time_and_a_rate(make_bundle: Make, folder: Path) -> None:
    where, body = folder / "s", json.dumps({**SMALL, "model": "x" * 400_000}).encode()
    head = POST + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with limited(make_bundle(), where, "Limits(body_s=1)"):
        with connected(where, head + body[:100]) as client:
            dripped: list[bool] = []
            dripping = threading.Thread(target=_drip, args=(client, dripped))
            dripping.start()
            answer = ends(client)
            dripping.join()
            assert len(dripped) < MOST_DRIPS
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body did not come within 1" in answer
        # Slow, not too slow: 1 s, and 18 s more for the 300 kB that come at once.
        with connected(where, head + body[:300_000]) as client:
            time.sleep(2)
            client.sendall(body[300_000:])
            assert client.recv(12) == b"HTTP/1.1 422"


MOST_DRIPS = 4_000  # in 200 s


def _drip(client: socket.socket, dripped: list[bool]) -> None:
    for _ in range(MOST_DRIPS):
        time.sleep(0.05)
        try:
            client.send(b"x")
        except OSError:
            return
        dripped.append(True)


@pytest.mark.slow
def test_a_request_after_another_has_its_own_time(make_bundle: Make, folder: Path) -> None:
    asked = b"GET /health HTTP/1.1\r\nHost: k\r\n\r\n"
    where = folder / "s"
    with limited(make_bundle(), where, "Limits(head_s=4)"), connected(where, asked) as client:
        time.sleep(5)  # kept alive for longer than a head may take
        client.sendall(asked * 3)
        time.sleep(0.2)
        client.sendall(b"GET /he")
        assert ends(client).count(b"HTTP/1.1 200 OK") == 4


def test_a_body_that_is_too_large_is_answered(start: Start) -> None:
    server = start("--max-body", "1000")
    head = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: 30000000\r\n\r\n"
    with connected(Path(server.where.removeprefix("unix:")), head) as client:
        for _ in range(300):
            client.sendall(b"x" * 100_000)
        answer = ends(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b'{"error": "body is too large, expected at most 1000 bytes"}')


def test_large_questions_do_not_turn_small_ones_away(start: Start) -> None:
    server = start("--workers", "1", "--waiting", "0")
    body = json.dumps(LARGE).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    where = Path(server.where.removeprefix("unix:"))
    with ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(connected(where, head.encode() + body))
        while server.metric('kernelcast_pending{pool="large"}') == 0:
            time.sleep(0.01)
        replies = [server.post("/predict", {**SMALL, "micro_batches": n}).status for n in range(1, 5)]
        assert replies == [200] * 4
        assert server.metric('kernelcast_pending{pool="large"}') == 1


def test_layouts_have_a_largest_number_of_pieces(server: Server) -> None:
    model = {**LARGE["model"], "layers": 2048}  # type: ignore[dict-item]
    reply = server.post("/predict", {**LARGE, "model": model, "pp": 2048, "timeline": "closed-form"})
    assert (reply.status, reply.error) == (422, "pp · virtual_stages is 2048, expected at most 1024")


@pytest.mark.slow
def test_who_does_not_read_ends_with_the_server_without_a_traceback(make_bundle: Make, folder: Path) -> None:
    body = json.dumps({**LARGE, "pp": 256}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    where = folder / "s"
    with (
        limited(make_bundle(), where, "Limits(time_s=3, small_chunks=1024)") as process,
        connected(where, head.encode() + body) as client,
    ):
        assert client.recv(1)  # the answer has arrived
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    assert where.with_suffix(".log").read_text() == ""


def test_bytes_that_end_a_connection_before_its_answer_leave_no_traceback(start: Start) -> None:
    server = start()
    # In one packet: the answer is made before the server has closed.
    request = b"GET /health HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\nno size of a chunk\r\n"
    with connected(Path(server.where.removeprefix("unix:")), request) as client:
        assert ends(client).startswith(b"HTTP/1.1 400 ")
    server.signal(signal.SIGTERM)
    assert server.process.wait(300) == 0
    assert "Traceback" not in server.log.read_text()


def test_answers_that_nobody_reads_are_bounded(make_bundle: Make, folder: Path) -> None:
    body = json.dumps({**LARGE, "pp": 256}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    where = folder / "s"
    limits = "Limits(time_s=300, small_chunks=1024, answer_bytes=4_000_000)"
    with limited(make_bundle(), where, limits), ExitStack() as opened:
        first = b""
        for number in range(3):  # different questions, so that nothing is remembered
            other = body.replace(b"900", f"90{number}".encode())
            client = opened.enter_context(connected(where, head.encode() + other))
            first = client.recv(12)
        assert first == b"HTTP/1.1 503"
        assert health(where) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(("host", "status"), [("example.org", 400), ("localhost:1", 200), ("[::1]", 200)])
def test_a_port_answers_to_this_machine_s_names_alone(start: Start, host: str, status: int) -> None:
    server = start(listen="127.0.0.1:0")
    assert server.request("GET", "/health", headers={"Host": host}).status == status


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_pages_of_others_start_nothing(start: Start, site: str, status: int) -> None:
    server = start(listen="127.0.0.1:0")
    reply = server.request("GET", "/health", headers={"Sec-Fetch-Site": site})
    assert reply.status == status
    if status == 403:
        assert reply.error == f"Sec-Fetch-Site is {site!r}, expected a page of this server"


def test_a_socket_answers_to_any_name(server: Server) -> None:
    assert server.request("GET", "/health", headers={"Host": "example.org"}).status == 200
