"""What a terminal is given: colours only there, lines as wide as it, commands whole; and what --quiet leaves out."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.cli.terminal import QUIET, command_line, print_next
from tests.cli.printed import next_commands
from tests.cli.test_options import every_command

ROOT = Path(__file__).parent.parent.parent
PREDICT = "predict --hardware h100-sxm --model llama-3-8b --gpus 64 --global-batch 512 --tokens 1T"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(arguments: str, *, columns: int, **variables: str) -> str:
    """Output of a command on a terminal `columns` wide; a pseudo-terminal is its three streams."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelcast.cli.main", *shlex.split(arguments)],
        stdin=follower, stdout=follower, stderr=follower, cwd=ROOT,
        env={**environment, "TERM": "xterm-256color", **variables},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # Linux: the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_has_colours_and_its_width() -> None:
    shown = on_a_terminal(PREDICT, columns=132)
    assert shown.startswith("\x1b[1mstep ")  # bold
    lines = _ESCAPE.sub("", shown).split("\nnext:\n")[0].splitlines()
    # Running text is easier to read in 100 columns, tables take the whole width.
    assert 60 < max(map(len, lines)) <= 132


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours(variables: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(PREDICT, columns=100, **variables)


def test_an_empty_no_color_is_none() -> None:
    assert "\x1b[1m" in on_a_terminal(PREDICT, columns=100, NO_COLOR="")


@pytest.mark.parametrize("columns", [60, 80])
def test_lines_are_as_wide_as_the_terminal(columns: int) -> None:
    text, commands = on_a_terminal(PREDICT, columns=columns, NO_COLOR="1").split("\nnext:\n")
    assert [line for line in text.splitlines() if len(line) > columns] == []
    # A command is never broken, so that it can be copied.
    assert f"  kernelcast {PREDICT} --html step.html" in commands.splitlines()


def test_steps_are_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    steps = ("train", "--db", "my measurements.db", "-o", "here.kcast"), ("db", "info", "b.db")
    print_next(*((command_line(*words), "what it holds, and of what hardware") for words in steps))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "next:",
        "  # what it holds, and of what hardware",
        "  kernelcast train --db 'my measurements.db' -o here.kcast",
        "  # what it holds, and of what hardware",
        "  kernelcast db info b.db",
    ]
    monkeypatch.setenv("COLUMNS", "80")
    print_next((command_line(*steps[1]), "what it holds"))
    assert capsys.readouterr().out.splitlines()[2:] == ["  kernelcast db info b.db  # what it holds"]


def test_every_command_can_be_quiet() -> None:
    commands = dict(every_command())
    assert len(commands) > 40
    assert [name for name, one in commands.items() if QUIET not in one.params] == []
    # One option, of one meaning.
    texts = {option.help for one in commands.values() for option in one.params
             if isinstance(option, click.Option) and "--quiet" in option.opts}  # fmt: skip
    assert texts == {QUIET.help}


@pytest.mark.parametrize(
    ("command", "kept", "dropped"),
    [
        (PREDICT, "step ", "Components"),
        ("predict --hardware h100-sxm,a100-sxm --model llama-3-8b --gpus 64 --global-batch 512", "best by", "doubtful"),
        ("search --hardware h100-sxm --model llama-3-8b --gpus 8 --global-batch 64 --tp 1 --pp 1,2", "step", "warning"),
        ("db info tests/data/small.db", "content digest", None),
        ("hardware", "h100-sxm", None),
        ("hardware h100-sxm", "flash_attention", "transfer: 90 %"),
        ("trace report tests/data/traces/cuda.json", "mean step", "\nkernels"),
        ("validate steps validate/perlmutter.toml", "mean absolute", "measured: "),
        ("ingest tests/data/traces/cuda.json --db {folder}.db", "added", "attributed %"),
    ],
)  # fmt: skip
def test_quiet_leaves_the_answer(
    command: str, kept: str, dropped: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words, again = (shlex.split(command.format(folder=tmp_path / name)) for name in ("one", "two"))
    environment = {"COLUMNS": "200"}
    quiet = CliRunner().invoke(kernelcast, [*words, "-q"], env=environment, catch_exceptions=False)
    assert quiet.exit_code == 0
    assert quiet.stderr == ""
    assert kept in quiet.stdout
    assert "next:" not in quiet.stdout
    usual = CliRunner().invoke(kernelcast, again, env=environment, catch_exceptions=False)
    assert len(quiet.stdout) < len(usual.stdout)
    if dropped is None:
        assert next_commands(usual.stdout)
    else:
        assert dropped in usual.output
        assert dropped not in quiet.output
