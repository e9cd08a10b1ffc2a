"""Numbers that several verbs take."""

import pytest

from kernelcast.cli.main import main


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "trace.json", "--db", "x.db", "--max-size-gib"],
        ["db", "merge", "a.db", "--into", "b.db", "--max-size-gib"],
        ["collect", "plan", "--memory"],
        ["collect", "comm", "--procs", "2", "--db", "x.db", "--timeout"],
        ["validate", "run", "--bundle", "x.kcast", "--db", "x.db", "--timeout"],
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e300", "many"])
def test_what_is_no_number_of_use_is_one_line(
    command: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, number])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kernelcast: error: Invalid value for '{command[-1]}': ")
