"""How long connections wait, by a clock that is set by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from kernelcast.serve import Limits
from kernelcast.serve.connections import Connection, connection_of

LIMITS = Limits(head_s=10.0, body_s=5.0, time_s=7.0)
KEEP_ALIVE_S = 4
GET = b"GET / HTTP/1.1\r\nHost: k\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 99999\r\n\r\n"


class Ended:
    def add_done_callback(self, _call: Any) -> None: ...


class Clock:
    """A loop whose time is set, and a transport that tells what is written and how it ends."""

    def __init__(self) -> None:
        self.now_s, self.timers, self.told, self.closing = 0.0, list[Any](), list[str](), False

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Any) -> Any:
        timer = SimpleNamespace(at_s=self.now_s + delay_s, call=call)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def create_task(self, task: Any, **_options: Any) -> Any:
        task.close()
        return Ended()

    def until(self, time_s: float) -> None:
        while due := [one for one in self.timers if one.at_s <= time_s]:
            first = min(due, key=lambda one: one.at_s)
            self.timers.remove(first)
            self.now_s = first.at_s
            first.call()
        self.now_s = time_s

    def _ends(self, text: str) -> None:
        self.closing = True
        self.told.append(f"{self.now_s:g} {text}")

    def abort(self) -> None:
        self._ends("aborted")

    def close(self) -> None:
        self._ends("closed")

    def write(self, data: bytes) -> None:
        self.told.append(f"{self.now_s:g} {data.split(b' ')[1].decode()}")

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(clock: Clock) -> Connection:
    config = uvicorn.Config(lambda *_: None, log_config=None, lifespan="off", timeout_keep_alive=KEEP_ALIVE_S)
    config.load()
    kind = connection_of(LIMITS)
    made = kind(config=config, server_state=ServerState(), app_state={}, _loop=clock)
    made.connection_made(clock)  # type: ignore[arg-type]
    return made


def answered(connection: Connection) -> None:
    connection.cycle.response_complete = True
    connection.on_response_complete()


def test_nobody_who_says_nothing(clock: Clock, connection: Connection) -> None:
    clock.until(60)
    assert clock.told == ["10 closed"]


def test_more_bytes_of_a_head_prolong_nothing(clock: Clock, connection: Connection) -> None:
    for place, at_s in enumerate((3, 5, 9)):
        clock.until(at_s)
        connection.data_received(GET[place : place + 1])
    clock.until(60)
    assert clock.told[0] == "13 408"


@pytest.mark.parametrize(("sent_bytes", "ends_s"), [(1, 5), (8 << 10, 5.5), (64 << 10, 9)])
def test_a_body_has_as_long_as_its_rate_allows(
    clock: Clock, connection: Connection, sent_bytes: int, ends_s: float
) -> None:
    connection.data_received(POST)
    connection.data_received(b"x" * sent_bytes)
    clock.until(ends_s - 0.1)
    assert not clock.told
    clock.until(60)
    assert clock.told[0] == f"{ends_s + (1 / (16 << 10) if sent_bytes == 1 else 0):g} 408"


def test_a_second_request_has_a_time_of_its_own(clock: Clock, connection: Connection) -> None:
    connection.data_received(GET)
    clock.until(20)
    answered(connection)
    clock.until(23)
    connection.data_received(GET[:9])
    clock.until(28)
    connection.data_received(GET[9:12])
    clock.until(60)
    assert clock.told == ["33 closed"]


def test_an_idle_connection_is_kept_a_while(clock: Clock, connection: Connection) -> None:
    connection.data_received(GET)
    answered(connection)
    clock.until(60)
    assert clock.told == [f"{KEEP_ALIVE_S} closed"]


@pytest.mark.parametrize(("reads_s", "told"), [(None, ["8 aborted"]), (7.5, [])])
def test_who_does_not_read(
    clock: Clock, connection: Connection, reads_s: float | None, told: list[str]
) -> None:
    connection.data_received(GET)
    clock.until(1)
    connection.pause_writing()
    if reads_s is not None:
        clock.until(reads_s)
        connection.resume_writing()
    clock.until(60)
    assert clock.told == told
