"""Commands as they are typed, and what they print."""

import re

import pytest

from kernelcast.cli.main import main


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
    """Without the last line, which says what to do next."""
    return re.sub(r"\n*\nnext: [^\n]*\n\Z", "\n", text)
