"""uvicorn with limited connections, which a signal stops: the server of `serve`, `explore` and `db serve`.

It listens on a Unix socket with permissions, or on a port of this machine.
"""

import asyncio
import ipaddress
import math
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from kernelcast.runtime.errors import DataError, UsageError, shown, shown_path
from kernelcast.serve.connections import Connection, connection_of
from kernelcast.serve.limits import Limits

MAX_UNIX_PATH_BYTES = 107
"""Of sockaddr_un, with its closing zero byte 108 (unix(7))."""

_TRIAL = b"GET /health HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n"

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket. `path` is the path of a Unix socket, else None; `name` is the address that clients use."""

    socket: socket.socket
    name: str
    path: Path | None = None
    inode: int | None = None
    is_local: bool = False
    """Whether it is a port that only this machine reaches, whose browsers may ask too."""

    @property
    def is_unix(self) -> bool:
        """Whether only processes of this machine with permission can connect."""
        return self.path is not None

    def close(self) -> None:
        """Stop listening; the socket's file goes too, unless another server has taken its place."""
        self.socket.close()
        if self.path is not None and _inode(self.path) == self.inode:
            self.path.unlink(missing_ok=True)


def unix_listener(path: Path, *, mode: int = 0o660) -> Listener:
    """Listen on a Unix socket at `path`, whose file gets the permissions `mode`. A left-over socket is replaced.

    Raises:
        UsageError: the path is too long, is not a socket, or belongs to a running server.
        DataError: the socket cannot be made.
    """
    name = shown_path(path)
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise UsageError(
            f"--socket {name} has {len(os.fsencode(path))} bytes, expected at most {MAX_UNIX_PATH_BYTES}"
        )
    _make_way(path, name)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)  # from the first moment, not only after a chmod
    try:
        made.bind(os.fspath(path))
        made.listen(BACKLOG)
    except (OSError, ValueError) as error:
        made.close()
        raise DataError(
            f"socket {name}: cannot be made ({getattr(error, 'strerror', None) or error})"
        ) from error
    finally:
        os.umask(before)
    return Listener(socket=made, name=f"unix:{name}", path=path, inode=_inode(path))


def _make_way(path: Path, name: str) -> None:
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"--socket {name} exists and is not a socket, expected a socket or nothing")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        try:
            client.connect(os.fspath(path))
            client.sendall(_TRIAL)  # who accepts for a killed server ends without an answer
            is_live = client.recv(1) != b""
        except TimeoutError:
            is_live = True
        except (ConnectionError, FileNotFoundError):
            is_live = False
        except OSError as error:
            raise DataError(f"socket {name}: cannot be tried ({error.strerror or error})") from error
    if is_live:
        raise UsageError(f"--socket {name}: another server answers there, expected none")
    path.unlink(missing_ok=True)  # stale: its server was killed


def tcp_listener(address: str, *, allow_remote: bool = False) -> Listener:
    """Listen on `HOST:PORT` (an IP address or localhost; port 0 takes a free one).

    Raises:
        UsageError: it is no such address, or one that other machines reach and `allow_remote` is not given.
        DataError: the port cannot be had.
    """
    host, _, port = address.rpartition(":")
    try:
        at = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
        number = int(port) if port.isascii() and port.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        raise UsageError(f"--listen is {shown(address)}, expected ADDRESS:PORT such as 127.0.0.1:8642")
    if not at.is_loopback and not allow_remote:
        raise UsageError(
            f"--listen is {shown(address)}, which other machines reach; expected 127.0.0.1, or --allow-remote"
        )
    family = socket.AF_INET6 if at.version == 6 else socket.AF_INET
    # With the protocol, asyncio turns Nagle's algorithm off; without, every answer waits 40 ms for an acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((str(at), number))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise DataError(f"address {address}: cannot be listened on ({error.strerror})") from error
    shown_host = f"[{at}]" if at.version == 6 else str(at)
    name = f"http://{shown_host}:{made.getsockname()[1]}"
    return Listener(socket=made, name=name, is_local=at.is_loopback)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


_STOP = (signal.SIGTERM, signal.SIGINT)
# Compute threads release the interpreter lock after this time. The loop waits for it after each of the five or so calls
# that a connection takes: behind 100 clients and two threads a repeated question waits for 5 · 100 · 2 of these times.
_SWITCH_S = 0.0002
_KEEP_ALIVE_S = 75
_ACCEPTED_AT_ONCE = 16  # asyncio accepts all waiting clients before it reads a request
_MARGIN_S = 5  # for tasks to end after their connections
_BEAT_S = 1.0  # an acceptor believes an answer of /health for ten of them
_SECONDS = struct.Struct("d")


class Acceptor:
    """The process that accepts connections and answers /health (acceptor.py), which no computation here delays.

    `health` is the present answer, `answered` hears the seconds that each took. A process that ends is replaced;
    clients wait in the kernel's queue meanwhile.
    """

    def __init__(
        self, listener: Listener, health: Callable[[], bytes], answered: Callable[[float], None]
    ) -> None:
        self._listener, self._health, self._answered = listener, health, answered
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, accept: Callable[[socket.socket], None]) -> None:
        """Start the process, which hands connections to `accept`."""
        self._accept, self._loop = accept, asyncio.get_running_loop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        given = (self._listener.socket.fileno(), theirs.fileno())
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("acceptor.py")), *map(str, given)]
        with theirs:
            self._process = subprocess.Popen(
                [*command, "local" if self._listener.is_local else "any"],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._loop.add_reader(self._control, self._read)
        self._beat()

    def tell(self) -> None:
        """Give the process the present answer of /health."""
        if self._process is not None:
            with suppress(OSError):  # busy: it hears the next one, or asks here
                self._control.send(self._health())

    def stop(self) -> None:
        """End the process; nothing is accepted any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _beat(self) -> None:
        self.tell()
        self._timer = self._loop.call_later(_BEAT_S, self._beat)

    def _read(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                found, numbers, _, _ = socket.recv_fds(
                    self._control, _SECONDS.size, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                found = b""
            if not found:
                self.stop()
                self._timer = self._loop.call_later(_BEAT_S / 10, self.start, self._accept)
                return
            if numbers:
                self._accept(socket.socket(fileno=numbers[0]))
            elif len(found) == _SECONDS.size:
                self._answered(_SECONDS.unpack(found)[0])


class Server(uvicorn.Server):
    """Leaves signals to `serving`: uvicorn would end the process by the signal that it caught.

    When it stops, clients that are still reading their answer get the usual time for it. uvicorn itself would cancel
    the sending tasks then, and print a traceback.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._accepted = set[asyncio.Task[None]]()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; connections that are still open after the given time are closed."""

        def end() -> None:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.transport.abort()

        given_s = (self.config.timeout_graceful_shutdown or _MARGIN_S) - _MARGIN_S
        timer = asyncio.get_running_loop().call_later(given_s, end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def accept(self, client: socket.socket) -> None:
        """Answer requests of a connection that another process has accepted."""
        task = asyncio.create_task(self._answer(client))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _answer(self, client: socket.socket) -> None:
        def protocol() -> asyncio.Protocol:
            made: Any = self.config.http_protocol_class
            found: asyncio.Protocol = made(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return found

        with suppress(OSError):  # it is gone
            await asyncio.get_running_loop().connect_accepted_socket(protocol, client)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serving(
    asgi: Any,
    limits: Limits,
    listening: socket.socket,
    started: Callable[[], None],
    acceptor: Acceptor | None = None,
) -> None:
    """Answer requests on a socket until SIGTERM or SIGINT, which let running requests finish.

    An `acceptor` of the socket accepts its connections. `started` is called when requests are answered from now on.
    Sets the interpreter's interval of switching threads.
    """
    config = uvicorn.Config(
        asgi,
        loop="asyncio",
        http=connection_of(limits),  # h11: slower than httptools, which takes request heads of any size
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        backlog=_ACCEPTED_AT_ONCE,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(limits.time_s) + _MARGIN_S,
    )
    server = Server(config)

    def stop() -> None:
        server.should_exit = True
        if acceptor is not None:
            acceptor.stop()
            listening.close()

    loop, before = asyncio.get_running_loop(), sys.getswitchinterval()
    for number in _STOP:
        loop.add_signal_handler(number, stop)
    sys.setswitchinterval(_SWITCH_S)
    try:
        task = loop.create_task(server.serve(sockets=[] if acceptor else [listening]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            if acceptor is None:
                listening.listen(BACKLOG)  # the kernel's queue, which asyncio has set to the other number
            else:
                acceptor.start(server.accept)
            started()
        await task
    finally:
        sys.setswitchinterval(before)
        if acceptor is not None:
            acceptor.stop()
