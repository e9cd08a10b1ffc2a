"""When a process that waits for others ends, by signals at times of a clock that the test sets."""

import os
import select
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kernelcast.collector.communication import watchdog
from kernelcast.collector.communication.watchdog import INTERRUPTED, Watchdog

_START_S = 100.0
SAID = "kernelcast: interrupted; measured points are stored"
SILENCE = (
    "kernelcast: error: collect comm: nothing was heard from the other processes for 20 s (--timeout); "
    "measured points are stored"
)


def ends(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, str]], **options: Any
) -> tuple[tuple[str, int] | None, bool]:
    """Text and status with which the process would end, if it does, and whether it knows that it is interrupted.

    The watchdog looks at these times; a signal arrives then ("signal"), or a message ("heard"), or nothing.
    "asleep": nothing arrives, and it waits until then.
    """
    now, left, over = [_START_S], list(looks), threading.Event()
    found: list[tuple[str, int]] = []

    def waits(reading: Any, writing: Any, failing: Any, most_s: float) -> Any:
        if not left:
            over.set()
            return select.select(reading, [], [])
        time_s, what = left.pop(0)
        if what == "asleep" and abs(now[0] + most_s - _START_S - time_s) > 1e-6:
            found.append((f"it waits for {most_s} s", 0))
        now[0] = _START_S + time_s + (0.01 if what == "asleep" else 0)
        if what == "heard":
            dog.heard()
        if what == "signal":
            os.kill(os.getpid(), signal.SIGINT)
            return select.select(reading, [], [])
        return [], [], []

    def ended(text: str, status: int) -> None:
        found.append((text, status))
        left.clear()

    monkeypatch.setattr(watchdog, "select", SimpleNamespace(select=waits))
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog, "_end", ended)
    dog = Watchdog(20.0, **{"local_rank": 0} | options)
    usual = signal.getsignal(signal.SIGINT)
    with dog:
        while not over.wait(0.01):
            assert "kernelcast-watchdog" in [one.name for one in threading.enumerate()], "it looks no more"
    assert signal.getsignal(signal.SIGINT) is usual
    return (found[0] if found else None), dog.interrupted


@pytest.mark.parametrize(
    ("looks", "options", "end", "interrupted"),
    [
        ([(1.0, ""), (20.0, "")], {}, None, False),
        ([(1.0, ""), (20.1, "")], {}, (SILENCE, 1), False),
        ([(19.0, "heard"), (39.0, "")], {}, None, False),
        ([(19.0, "heard"), (39.1, "")], {}, (SILENCE, 1), False),
        # It looks just after its deadlines, and not before.
        ([(20.0, "asleep")], {}, (SILENCE, 1), False),
        ([(19.0, "heard"), (39.0, "asleep")], {}, (SILENCE, 1), False),
        ([(15.0, "signal"), (20.0, "asleep")], {}, (SAID, INTERRUPTED), True),
        ([(19.0, "signal"), (19.1, "signal"), (23.9, ""), (24.0, "asleep")], {}, (SAID, INTERRUPTED), True),
        # Others of a node say the same a second later each, the last ones together.
        ([(21.0, "")], {"local_rank": 1}, None, False),
        ([(21.1, "")], {"local_rank": 1}, (SILENCE, 1), False),
        ([(30.0, "")], {"local_rank": 99}, None, False),
        ([(30.1, "")], {"local_rank": 99}, (SILENCE, 1), False),
        # A signal leaves five seconds; a second one at once is the launcher's, later the user's.
        ([(1.0, "signal"), (6.0, "")], {}, None, True),
        ([(1.0, "signal"), (6.1, "")], {}, (SAID, INTERRUPTED), True),
        ([(1.0, "signal"), (1.5, "signal"), (6.0, "")], {}, None, True),
        ([(1.0, "signal"), (1.6, "signal")], {}, (SAID, INTERRUPTED), True),
        ([(1.0, "signal"), (1.1, "signal"), (6.1, "")], {}, (SAID, INTERRUPTED), True),
        ([(1.0, "signal"), (1.6, "signal")], {"silent": True}, ("", INTERRUPTED), True),
        ([(1.0, "signal"), (1.6, "signal")], {"local_rank": 1}, ("", INTERRUPTED), True),
        # What was interrupted ends by itself, whatever the others do.
        ([(19.0, "signal"), (23.0, "")], {}, None, True),
    ],
)
def test_how_a_process_ends(
    looks: list[tuple[float, str]],
    options: dict[str, Any],
    end: tuple[str, int] | None,
    interrupted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ends(monkeypatch, looks, **options) == (end, interrupted)
