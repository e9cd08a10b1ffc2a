"""Accepts a server's connections, answers GET /health, and hands all other connections over.

A process of its own, which shares no interpreter lock with threads that compute: `Acceptor` (http_server.py) starts
this file as a script, with the standard library alone. It ends when the server does.
"""

import re
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

_FRESH_S = 10.0
"""The server says every second that it runs: if it does not, it has to answer /health itself."""
_SILENT_S, _KEPT_S = 0.25, 75.0
_MOST_SILENT = 64
_MOST_HANDED = 800
_AT_ONCE = 64
_HEAD_BYTES = 4096
_OTHERS = rb"(?:(?:user-agent|accept|accept-encoding|connection):[\t -~]*\r\n)*"
_FORM = rb"GET /health HTTP/1\.1\r\n(?i:%s" + rb"host:[ \t]*%s[ \t]*\r\n" + rb"%s)\r\n"
_HOSTS = {"any": rb"[!-~]+", "local": rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?"}
_CLOSE = re.compile(rb"\r\nconnection:[\t -~]*\bclose\b", re.IGNORECASE)


_Waiting = tuple[socket.socket, float]


class _Door:
    """One event loop. Anything but a plain GET /health is left unread to the server, which also refuses it."""

    def __init__(self, listening: socket.socket, control: socket.socket, hosts: str) -> None:
        self._listening, self._control = listening, control
        self._health_request = re.compile(_FORM % (_OTHERS, _HOSTS[hosts], _OTHERS))
        self._poll = select.epoll()
        for one in (listening, control):
            one.setblocking(False)
            self._poll.register(one, select.EPOLLIN)
        # By number, with the time since when, oldest first: clients that sent nothing yet, and answered ones.
        self._silent, self._kept = dict[int, _Waiting](), dict[int, _Waiting]()
        self._handed = deque[socket.socket]()  # the server takes them when it comes to it
        self._state, self._told_s = b"", -_FRESH_S

    def run(self) -> None:
        """Until the server has ended (ConnectionError)."""
        while True:
            for number, _ in self._poll.poll(_SILENT_S if self._silent else None):
                if number == self._listening.fileno():
                    self._accept()
                elif number in self._silent:
                    self._look(self._silent.pop(number)[0])
                elif number in self._kept:
                    self._look(self._kept.pop(number)[0])
            self._listen()
            self._expire(self._silent, _SILENT_S, self._hand)  # the server knows what to do with them
            self._expire(self._kept, _KEPT_S, socket.socket.close)
            self._pass()

    def _expire(
        self, waiting: dict[int, _Waiting], allowed_s: float, end: Callable[[socket.socket], None]
    ) -> None:
        oldest_s = time.monotonic() - allowed_s
        while waiting:
            number, (client, since_s) = next(iter(waiting.items()))
            if since_s > oldest_s and len(waiting) <= _MOST_SILENT:
                return
            del waiting[number]
            end(client)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, _ = self._listening.accept()
            except OSError:  # none waits, or too many files are open
                return
            client.setblocking(False)
            self._poll.register(client, select.EPOLLIN | select.EPOLLRDHUP)
            self._look(client)

    def _look(self, client: socket.socket) -> None:
        """Answer, hand over, or wait for what the client asks."""
        begin_s = time.monotonic()
        try:
            head = client.recv(_HEAD_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            self._silent[client.fileno()] = client, begin_s
            return
        except OSError:
            client.close()
            return
        if not head:
            client.close()
        elif self._health_request.fullmatch(head) and self._is_fresh():
            client.recv(len(head))
            self._answer(client, is_last=_CLOSE.search(head) is not None, begin_s=begin_s)
        else:
            self._hand(client)

    def _answer(self, client: socket.socket, *, is_last: bool, begin_s: float) -> None:
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        head = f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(self._state)}\r\n" + "connection: close\r\n" * is_last + "\r\n"
        with suppress(BlockingIOError):
            self._control.send(struct.pack("d", time.monotonic() - begin_s))
        try:
            client.sendall(head.encode() + self._state)
        except OSError:
            is_last = True
        if is_last:
            client.close()
        else:
            self._kept[client.fileno()] = client, time.monotonic()

    def _is_fresh(self) -> bool:
        self._listen()
        return time.monotonic() - self._told_s < _FRESH_S

    def _listen(self) -> None:
        """Read what the server says of itself: before each answer, which a reload may have changed."""
        with suppress(BlockingIOError):
            while True:
                state = self._control.recv(_HEAD_BYTES)
                if not state:
                    raise ConnectionError
                self._state, self._told_s = state, time.monotonic()

    def _hand(self, client: socket.socket) -> None:
        self._poll.unregister(client)
        if len(self._handed) < _MOST_HANDED:
            self._handed.append(client)
        else:
            client.close()

    def _pass(self) -> None:
        """Hand over what the server takes now."""
        with suppress(BlockingIOError):
            while self._handed:
                socket.send_fds(self._control, [b"c"], [self._handed[0].fileno()])
                self._handed.popleft().close()
        self._poll.modify(self._control, select.EPOLLIN | (select.EPOLLOUT if self._handed else 0))


def _main(listening: str, control: str, hosts: str) -> None:
    # To all of a terminal or service: the server's to follow.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    door = _Door(socket.socket(fileno=int(listening)), socket.socket(fileno=int(control)), hosts)
    with suppress(ConnectionError):
        door.run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
