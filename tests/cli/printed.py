"""Commands as they are typed, and what they print."""

import re

import pytest

from kernelcast.cli.main import main

_NEXT = re.compile(r"\n*\nnext:\n((?:  [^\n]*\n)+)\Z")


def ended(*arguments: object) -> int:
    """The exit status of `kernelcast ARGUMENTS`."""
    with pytest.raises(SystemExit) as stopped:
        main(list(map(str, arguments)))
    return int(stopped.value.code or 0)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    """What a command prints: standard output, or standard error where it fails."""
    found = ended(*arguments)
    output = capsys.readouterr()
    assert found == status, output.err
    return output.err if status else output.out


def without_next(text: str) -> str:
    """Without the last lines, which say what to do next."""
    return _NEXT.sub("\n", text)


def next_commands(text: str) -> list[str]:
    """The commands of the last lines, each whole, without what it does."""
    found = _NEXT.search(text)
    assert found is not None, text
    lines = [line.strip().split("  # ")[0] for line in found[1].splitlines()]
    return [line for line in lines if not line.startswith("#")]
