"""How much one request may ask for, how many at once, and that /health answers meanwhile."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ASKED = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}
# Tens of thousands of layouts: more than any machine goes through in the time that these tests give.
LARGE = {"model": "gpt3-175b", "gpus": [512, 768, 1024], "global_batch": 1024, "gpu_memory_bytes": None}


def raw(server: Server, head: bytes, body: bytes = b"") -> bytes:
    """What comes back for these bytes; the connection stays open until the server closes it, or 300 s."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(300)
        client.connect(server.where.removeprefix("unix:"))
        client.sendall(head + body)
        return client.recv(65536)


def test_bodies_have_a_largest_size(start: Start) -> None:
    server = start("--max-body", "100")
    assert server.post("/predict", {"model": "x" * 50}).status == 422
    reply = server.post("/predict", {"model": "x" * 100})
    assert (reply.status, reply.error) == (413, "body is too large, expected at most 100 bytes")
    head = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
    text = server.script(b"#" * 101)
    assert (text.status, text.body[:36]) == (413, b"\nkernelcast: error: body is too larg")
    # Only announced, and never sent.
    assert b" 413 " in raw(server, head + b"Content-Length: 999999999999\r\n\r\n").splitlines()[0]
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    assert b" 413 " in raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n", chunk * 3).splitlines()[0]


def test_heads_have_a_largest_size(server: Server) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: k\r\nX: " + b"x" * 60_000  # and more to come
    assert b" 400 " in raw(server, head).splitlines()[0]
    assert server.get("/health").status == 200


def test_searches_have_a_largest_size(start: Start) -> None:
    server = start("--max-search", "1000")
    small = {"model": "llama-2-7b", "gpus": 4, "global_batch": 4, "pp": 1}
    assert server.post("/search", small).status == 200
    reply = server.post("/search", LARGE)
    assert (reply.status, reply.error[:38]) == (422, "search has more than 1000 layouts, exp")
    reply = server.post("/search", {"model": "llama-2-7b", "gpus": [720_720], "global_batch": 2_147_483_520})
    assert (reply.status, reply.error[:17]) == (422, "gpus is [720720] ")


def test_searches_end_in_time(start: Start) -> None:
    server = start("--max-search", "100000000", "--time-limit", "0.2")
    reply = server.post("/search", LARGE)
    # Noticed by the search itself, or by who waits for it.
    assert reply.status in (422, 503), reply
    assert "0.2 s" in reply.error


def test_too_many_questions_are_turned_away(start: Start, until: Callable[..., None]) -> None:
    server = start("--waiting", "0", "--max-search", "100000000", "--time-limit", "3000")
    with socket.socket(socket.AF_UNIX) as first:  # whose search ends when it leaves
        first.connect(server.where.removeprefix("unix:"))
        body = json.dumps(LARGE).encode()
        head = f"POST /search HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        first.sendall(head.encode() + b"\r\n" + body)
        until(lambda: server.metric('kernelcast_pending{pool="search"}') == 1)
        reply = server.post("/search", LARGE)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        # Predictions have threads of their own, and health needs none.
        assert server.post("/predict", ASKED).status == 200
        assert server.get("/health").status == 200


@pytest.mark.slow
def test_a_body_that_does_not_come(start: Start, until: Callable[..., None]) -> None:
    server = start()
    head = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(300)
        client.connect(server.where.removeprefix("unix:"))
        client.sendall(head)
        assert server.get("/health").status == 200
        assert b" 408 " in client.recv(4096).splitlines()[0]


def test_clients_that_leave_are_no_trouble(start: Start, until: Callable[..., None]) -> None:
    server = start()
    before = server.open_files()
    body = b'{"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}'
    for length in (len(body), 1000):
        head = "POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {length}\r\n\r\n"
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(server.where.removeprefix("unix:"))
                client.sendall(head.encode() + body)
    assert server.get("/health").status == 200
    left = b'kernelcast_requests_total{path="/predict",status="499"} 20.0\n'
    until(lambda: left in server.get("/metrics").body)
    until(lambda: server.open_files() <= before)
    assert "Traceback" not in server.log.read_text()
