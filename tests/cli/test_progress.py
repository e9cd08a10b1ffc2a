"""Progress: a bar on a terminal, lines elsewhere."""

import os
import pty
import subprocess
import sys

import pytest

from kernelcast.cli import progress as module
from kernelcast.cli.progress import progress

PROGRAM = """
from kernelcast.cli.progress import progress
with progress("operators") as report:
    for done in range(1, 4):
        report(done, 3, f"operator {done}")
print("result")
"""


def test_without_a_terminal_only_the_end_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("operators") as report:
        for done in range(1, 4):
            report(done, 3, "gelu")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "operators: 3 of 3\n")


def test_long_work_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 15.0, 25.0, 30.0, 46.0, 600.0, 6000.0, 60_000.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("operators") as report:
        for done in range(1, 8):
            report(done, 9, "gelu")
    assert capsys.readouterr().err.splitlines() == [
        "operators: 2 of 9, about 88 s left",
        "operators: 4 of 9, about 58 s left",
        "operators: 5 of 9, about 8 min left",
        "operators: 6 of 9, about 50 min left",
        "operators: 7 of 9, about 4.8 h left",
    ]


def test_the_first_pieces_tell_nothing_about_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 300.0, 330.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("operators") as report:
        report(4, 43, "gelu")
        report(5, 43, "gelu")
    assert capsys.readouterr().err == "operators: 4 of 43\noperators: 5 of 43, about 42 min left\n"


def test_not_shown_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("operators", shown=False) as report:
        report(1, 1, "gelu")
    assert capsys.readouterr().err == ""


def test_nothing_to_do_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("operators"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar_and_leaves_the_result_alone() -> None:
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        check=True,
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(controller, 4096):
            shown += piece
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(controller)
    assert done.stdout == "result\n"
    text = shown.decode()
    assert "operators" in text
    assert "3/3" in text
    assert "operator 3" in text
