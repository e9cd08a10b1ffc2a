"""Numbers that several verbs take."""

import pytest

from kernelcast.cli.main import main


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "trace.json", "--db", "x.db", "--max-size-gib"],
        ["db", "merge", "a.db", "--into", "b.db", "--max-size-gib"],
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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--micro-bacth", "2"], "No such option '--micro-bacth'. Did you mean '--micro-batch'?"),
        (["--context-parallel", "2"], "No such option '--context-parallel'."),
        (["--mp", "1", "--tp", "1"], "--tp and --mp are both given, expected only --tp"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "search", "walltime"])
def test_an_unknown_option_suggests_misspelled_ones_only(
    command: str, options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, *options])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.replace(":", "") == f"kernelcast error {line.replace(':', '')}\n"


def test_tp_is_not_taken_for_dp(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["db", "export", "--tp", "2"])
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["hardware", "software", "fabric"])
def test_ids_have_an_option_and_an_old_name(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    always = ["train", "--db", "none.db", "-o", "x.kcast"]
    for given in ([f"--{option}-id", "ab"], [f"--{option}", "ab"]):
        with pytest.raises(SystemExit) as stopped:
            main([*always, *given])
        assert stopped.value.code == 1
        assert "none.db" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main([*always, f"--{option}-id", "ab", f"--{option}", "ab"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f"kernelcast: error: --{option}-id and --{option} are both given, expected only --{option}-id\n"
    )
