"""Ctrl-C during a measurement."""

import os
import signal
import threading
from collections.abc import Callable

import pytest

from kernelcast.runtime.terminations import interrupts_held, terminations_interrupt


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def measure(*steps: Callable[[], object]) -> None:
    with interrupts_held():
        for step in steps:
            step()


def test_what_has_begun_ends_first() -> None:
    ended: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        measure(interrupt, lambda: ended.append(True))
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_does_not_wait() -> None:
    ended: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        measure(interrupt, interrupt, lambda: ended.append(True))
    assert not ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_happens_without_one_or_in_another_thread() -> None:
    entered = []

    def work() -> None:
        with interrupts_held():
            entered.append(signal.getsignal(signal.SIGINT))

    with interrupts_held():
        pass
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [signal.default_int_handler]


def test_an_error_inside_comes_out() -> None:
    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        measure(interrupt, fail)


def test_a_handler_of_the_caller_stays() -> None:
    seen: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        with interrupts_held():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert seen == [signal.SIGINT]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_termination_is_an_interrupt() -> None:
    ended: list[bool] = []
    with terminations_interrupt():
        with pytest.raises(KeyboardInterrupt):
            measure(terminate, lambda: ended.append(True))
        assert ended
        with pytest.raises(KeyboardInterrupt):
            terminate()
        with pytest.raises(KeyboardInterrupt):
            measure(interrupt, terminate, ended.clear)
        assert ended
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_somebody_else_stays() -> None:
    came = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with terminations_interrupt():
            measure(terminate)
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
