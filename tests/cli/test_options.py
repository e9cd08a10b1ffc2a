"""Numbers that several verbs take."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kernelcast.cli.main import kernelcast
from tests.cli.printed import ended


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "trace.json", "--db", "x.db", "--max-size"],
        ["db", "merge", "a.db", "--into", "b.db", "--max-size"],
        ["db", "info", "a.db", "--max-size"],
        ["collect", "comm", "--procs", "2", "--db", "x.db", "--timeout"],
        ["validate", "run", "--bundle", "x.kcast", "--db", "x.db", "--timeout"],
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e300", "many"])
def test_what_is_no_number_of_use_is_one_line(
    command: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*command, number) == 2
    (line,) = capsys.readouterr().err.splitlines()
    name = command[-1]
    assert line.startswith(
        (f"kernelcast: error: Invalid value for '{name}': ", f"kernelcast: error: {name} is '")
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--micro-bacth", "2"], "No such option '--micro-bacth'. Did you mean '--micro-batch'?"),
        (["--context-parallel", "2"], "No such option '--context-parallel'."),
    ],
)
@pytest.mark.parametrize("command", ["predict", "search", "walltime"])
def test_an_unknown_option_suggests_misspelled_ones_only(
    command: str, options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(command, *options) == 2
    assert capsys.readouterr().err.replace(":", "") == f"kernelcast error {line.replace(':', '')}\n"


def test_tp_is_not_taken_for_dp(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("db", "export", "--tp", "2") == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "compare", "search", "walltime"])
@pytest.mark.parametrize(("name", "paper"), [("--tp", "--mp"), ("--layer-counts", "--encoder-counts")])
def test_names_of_the_paper_are_accepted_and_not_shown(command: str, name: str, paper: str) -> None:
    options = {opt: one for one in command_of([command]).params for opt in one.opts}
    if name in options:
        assert isinstance(options[paper], click.Option)
        assert options[paper].hidden
        assert f" {paper} " not in command_of([command]).get_help(click.Context(command_of([command])))


@pytest.mark.parametrize(
    "words",
    ["predict --hardware h100-sxm", "search --hardware h100-sxm --gpus 8 --global-batch 8", "walltime"],
)
def test_two_names_of_one_field_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*words.split(), "--model", "llama-2-7b", "--mp", "1", "--tp", "1") == 2
    assert capsys.readouterr().err == "kernelcast: error: tp and mp are both given, expected only tp\n"


def command_of(words: list[str]) -> click.Command:
    """The command that some words name."""
    command: click.Command = kernelcast
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(kernelcast), word)
        assert found is not None
        command = found
    return command


def every_command(
    group: click.Group = kernelcast, path: str = "kernelcast"
) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


# Options that are a number in one command and several in another, or one of other values.
SEVERAL = {"--gpus", "--top", "--schedule", "--recompute", "--zero", "--sequence-parallel", "--micro-batch", "--points",
           "--micro-batches", "--virtual-stages", "--rank-by", "--again", "--operator", "--layouts", "--format",
           "--software", "--pp", "--tp", "--dp", "--cp", "--ep", "--expert-tp", "--as", "--port", "--from",
           "--source"}  # fmt: skip


def test_one_option_has_one_name_and_one_form() -> None:
    """An option takes the same values in all commands; units stand in sizes and times, not in names of options."""
    forms: dict[str, dict[str, set[str]]] = {}
    for path, command in every_command():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                long = next(one for one in option.opts if one.startswith("--"))
                assert not long.endswith(("-gib", "-gb", "-bytes", "-seconds")), (path, long)
                form = (
                    "flag"
                    if option.is_flag
                    else option.make_metavar(click.Context(command)).removesuffix(" RANGE")
                )
                forms.setdefault(long, {}).setdefault(form, set()).add(path)
    different = {name: found for name, found in forms.items() if len(found) > 1 and name not in SEVERAL}
    assert different == {}
    for name, form in {"--max-size": "SIZE", "--max-body": "SIZE", "--gpu-memory": "SIZE", "--timeout": "TIME",
                       "--time-limit": "TIME", "--budget": "TIME"}.items():  # fmt: skip
        assert set(forms[name]) == {form}


@pytest.mark.parametrize("values", [["--rotary", "--zero", "1"], ["--rotary", "true"], ["--rotary=true"]])
def test_a_flag_may_have_a_value(values: list[str]) -> None:
    values = [one.replace("--rotary", "--overlap-gradients") for one in values]
    for words in (["predict"], ["compare"], ["search"]):
        command = command_of(words)
        context = click.Context(command, resilient_parsing=True)
        parsed = command.make_parser(context).parse_args([*values])[0]
        [option] = [one for one in command.params if one.name == "overlap_gradients"]
        assert option.handle_parse_result(click.Context(command), parsed, [])[0] is True


def test_a_flag_can_be_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = tmp_path / "ours.toml"
    stack.write_text(
        'name = "ours"\nsoftware = "ours"\nsource = "here"\n[options]\noverlap_gradients = true\n'
    )
    layout = "--hardware h100-sxm --model llama-2-7b --dp 8 --micro-batch 1 --global-batch 8 --json"
    found = []
    for more in ("", "--overlap-gradients false"):
        assert ended("predict", *layout.split(), "--stack", stack, *more.split()) == 0
        found.append(json.loads(capsys.readouterr().out)["parallelism"]["overlap_gradients"])
    assert found == [True, False]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("predict --rank-by speed", "--rank-by is 'speed', expected step-time, days, cost or energy"),
        ("search --rank-by cost", "--rank-by is 'cost', expected step-time or tokens-per-gpu"),
        ("search --sequence-parallel maybe", "--sequence-parallel is 'maybe', expected true, false or both"),
        ("predict --overlap-gradients often", "--overlap-gradients is 'often', expected true or false"),
        (
            "db query a.db 'SELECT 1' --time-limit 11d",
            "--time-limit is '11d', expected a time up to 10d such as",
        ),
    ],
)
def test_values_that_are_none(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*shlex.split(words)) == 2
    assert capsys.readouterr().err.startswith(f"kernelcast: error: {line}")
