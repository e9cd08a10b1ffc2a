"""The process that accepts connections: /health is answered there, all else is handed to the server unread."""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelcast.serve import http_server

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

HEALTH = b"GET /health HTTP/1.1\r\nHost: k\r\n\r\n"
PATIENCE_S = 1200  # against hanging only
_BY_CHANCE = 100
"""Requests until one that is told the state is answered: on a machine that stands still for 10 s it is handed over."""


class Played:
    """The test is the server of a real acceptor."""

    def __init__(self, folder: Path, hosts: str) -> None:
        self.where = folder / "s"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.where))
        self.listening.listen(100)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE_S)
        given = (self.listening.fileno(), theirs.fileno())
        script = str(Path(http_server.__file__).with_name("acceptor.py"))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, *map(str, given), hosts], pass_fds=given
        )
        theirs.close()

    def asks(self, sent: bytes = b"") -> socket.socket:
        """A client."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        client.connect(str(self.where))
        client.sendall(sent)
        return client

    def handed(self) -> bytes:
        """What the next connection that is handed over has sent."""
        found, numbers, _, _ = socket.recv_fds(self.control, 8, 1)
        assert (found, len(numbers)) == (b"c", 1)
        with socket.socket(fileno=numbers[0]) as client:
            client.setblocking(False)
            try:
                return client.recv(1 << 16)
            except BlockingIOError:
                return b""

    def answered(self, state: bytes, request: bytes = HEALTH, client: socket.socket | None = None) -> bytes:
        """The answer to a request after the server has told this; it is counted with its seconds."""
        for _ in range(_BY_CHANCE):
            self.control.send(state)
            begin_s, asking = time.monotonic(), client or self.asks()
            asking.sendall(request)
            select.select([self.control], [], [], PATIENCE_S)
            found = self.control.recv(8, socket.MSG_PEEK)
            if found == b"c":
                self.handed()
                continue
            assert 0 <= struct.unpack("d", self.control.recv(8))[0] <= time.monotonic() - begin_s
            answer = asking.recv(1 << 16)
            if client is None:
                asking.close()
            return answer
        raise AssertionError("never answered")


@pytest.fixture
def play(folder: Path) -> Iterator[Callable[..., Played]]:
    """Starts one acceptor."""
    played: list[Played] = []

    def begin(hosts: str = "any") -> Played:
        played.append(Played(folder, hosts))
        return played[-1]

    yield begin
    for one in played:
        one.process.kill()
        one.process.wait()
        one.control.close()
        one.listening.close()


def test_health_is_what_the_server_told_last(play: Callable[..., Played]) -> None:
    server = play()
    for state in (b'{"bundle": "old"}', b'{"bundle": "new"}', b'{"bundle": "third"}'):
        head, _, body = server.answered(state).partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert (lines[0], body) == (b"HTTP/1.1 200 OK", state)
        assert {b"content-type: application/json", b"content-length: %d" % len(state)} < set(lines)


def test_a_server_that_says_nothing_has_to_answer(play: Callable[..., Played]) -> None:
    server = play()
    with closing(server.asks(HEALTH)):
        assert server.handed() == HEALTH


@pytest.mark.parametrize(
    ("kept", "close"),
    [(b"", False), (b"Connection: keep-alive\r\n", False), (b"connection: Close\r\n", True)],
)
def test_a_connection_is_kept_unless_the_client_ends_it(
    play: Callable[..., Played], kept: bytes, close: bool
) -> None:
    server = play()
    request = HEALTH[:-2] + b"User-Agent: curl/8\r\n" + kept + b"\r\n"
    with closing(server.asks()) as client:
        assert (b"connection: close" in server.answered(b"{}", request, client)) == close
        if close:
            assert client.recv(1) == b""
        else:
            assert server.answered(b"{}", request, client).startswith(b"HTTP/1.1 200 ")
            client.sendall(b"GET /metrics")
            assert server.handed() == b"GET /metrics"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /he",
        HEALTH[:-2],
        HEALTH[:-2] + b"X: ",
        HEALTH + HEALTH,
        HEALTH + b"\0",
        HEALTH.replace(b"GET", b"HEAD"),
        HEALTH.replace(b"GET", b"get"),
        HEALTH.replace(b"1.1", b"1.0"),
        HEALTH.replace(b"health", b"health/"),
        HEALTH.replace(b"Host: k\r\n", b""),
        HEALTH.replace(b"Host: k\r\n", b"Host: k\r\nHost: l\r\n"),
        HEALTH[:-2] + b"Content-Length: 5\r\n\r\nhello",
        HEALTH[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEALTH[:-2] + b"Accept: \xff\r\n\r\n",
        HEALTH[:-2] + b"Accept: " + b"x" * 5000 + b"\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\n\r\n{}",
        b"\x16\x03\x01",
    ],
)
def test_all_else_is_the_server_s(play: Callable[..., Played], sent: bytes) -> None:
    server = play()
    server.control.send(b"{}")
    with closing(server.asks(sent)):
        assert server.handed() == sent


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8642", b"[::1]"])
def test_a_port_of_this_machine_has_its_names(play: Callable[..., Played], host: bytes) -> None:
    request = HEALTH.replace(b"k\r\n", host + b"\r\n")
    assert play("local").answered(b"{}", request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "words", [b"Host: example.org", b"Host: localhost.example.org", b"Host: localhost\r\nSec-Fetch-Site: cross-site"]
)  # fmt: skip
def test_what_pages_of_others_ask_there_is_the_server_s_to_refuse(
    play: Callable[..., Played], words: bytes
) -> None:
    server = play("local")
    server.control.send(b"{}")
    sent = HEALTH.replace(b"Host: k", words)
    with closing(server.asks(sent)):
        assert server.handed() == sent


def test_it_ends_with_the_server_alone(play: Callable[..., Played]) -> None:
    server = play()
    server.answered(b"{}")  # it has started
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as to all of a terminal or service
        server.process.send_signal(number)
    assert server.answered(b"{}").startswith(b"HTTP/1.1 200 ")
    server.control.close()
    assert server.process.wait(PATIENCE_S) == 0


def children(number: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                cells = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(cells[1]) == number and cells[0] != "Z":
                found.append(int(name))
    return found


def test_one_that_is_killed_is_replaced(start: Start, until: Callable[..., None]) -> None:
    server = start()
    for _ in range(2):
        [acceptor] = children(server.process.pid)
        os.kill(acceptor, signal.SIGKILL)
        until(lambda acceptor=acceptor: children(server.process.pid) not in ([acceptor], []))
        assert server.get("/health").json["status"] == "ok"
        assert server.post("/model", {"model": "llama-2-7b"}).status == 200
    [acceptor] = children(server.process.pid)
    assert server.stop() == 0
    assert not Path(f"/proc/{acceptor}").exists()


def test_one_of_a_killed_server_ends(start: Start, until: Callable[..., None]) -> None:
    server = start()
    [acceptor] = children(server.process.pid)
    server.signal(signal.SIGKILL)
    server.process.wait()
    until(lambda: not Path(f"/proc/{acceptor}").exists() or "Z" in Path(f"/proc/{acceptor}/stat").read_text())
