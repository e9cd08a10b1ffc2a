"""Numbers that several verbs take."""

from collections.abc import Iterator

import click
import pytest

from kernelcast.cli.main import kernelcast
from tests.cli.printed import ended


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "trace.json", "--db", "x.db", "--max-size"],
        ["db", "merge", "a.db", "--into", "b.db", "--max-size"],
        ["db", "info", "a.db", "--max-size-gib"],
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
    name = command[-1].removesuffix("-gib")
    assert line.startswith(
        (f"kernelcast: error: Invalid value for '{name}': ", f"kernelcast: error: {name} is '")
    )


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
    assert ended(command, *options) == 2
    assert capsys.readouterr().err.replace(":", "") == f"kernelcast error {line.replace(':', '')}\n"


def test_tp_is_not_taken_for_dp(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("db", "export", "--tp", "2") == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["hardware", "software", "fabric"])
def test_ids_have_an_option_and_an_old_name(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    always = ["train", "--db", "none.db", "-o", "x.kcast"]
    for given in ([f"--{option}-id", "ab"], [f"--{option}", "ab"]):
        assert ended(*always, *given) == 1
        assert "none.db" in capsys.readouterr().err
    assert ended(*always, f"--{option}-id", "ab", f"--{option}", "ab") == 2
    assert capsys.readouterr().err == (
        f"kernelcast: error: --{option}-id and --{option} are both given, expected only --{option}-id\n"
    )


OLD_NAMES = [
    (["search"], "--schedules", "--schedule", "1f1b"),
    (["fabric", "new"], "--devices-per-node", "--gpus-per-node", "8"),
    (["fabric", "new"], "--device", "--hardware", "h100-sxm"),
    (["fabric", "show"], "--layout", "--layouts", "1x8"),
    (["db", "info"], "--max-size-gib", "--max-size", "4"),
    (["ingest"], "--max-size-gib", "--max-size", "1.5"),
    (["import", "csv"], "--memory-gib", "--gpu-memory", "80"),
    (["collect", "plan"], "--memory", "--gpu-memory", "80GB"),
    (["calibrate"], "--steps", "--db", "bench.db"),
    (["validate", "published"], "--bundle", "--from", "old.kcast"),
    (["trace", "report"], "--page", "--html", "report.html"),
    (["validate", "run"], "--operators", "--by-operator", None),
]


def command_of(words: list[str]) -> click.Command:
    """The command that some words name."""
    command: click.Command = kernelcast
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(kernelcast), word)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize(("words", "old", "new", "value"), OLD_NAMES)
def test_old_names_mean_the_same_and_are_not_shown(
    words: list[str], old: str, new: str, value: str | None
) -> None:
    command = command_of(words)
    [option] = [one for one in command.params if new in one.opts]
    # An old name of a size took a number of GiB.
    values = [] if value is None else [value]
    now = [] if value is None else [f"{value}GiB"] if old.endswith("-gib") else [value]
    found = [
        option.handle_parse_result(context, parsed, [])[0]
        for name, given in ((old, values), (new, now))
        for context in [click.Context(command)]
        for parsed in [command.make_parser(context).parse_args([name, *given])[0]]
    ]
    assert found[0] == found[1]
    assert f" {old} " not in command.get_help(click.Context(command, info_name="x"))


def test_one_option_has_one_name_and_one_form() -> None:
    """Sizes are SIZE, hardware NAME, and no option of a size has its unit in its name."""

    def options(group: click.Group, path: str) -> Iterator[tuple[str, click.Option]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from options(command, f"{path} {name}")
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    yield f"{path} {name}", parameter

    forms: dict[str, set[tuple[str | None, str]]] = {}
    for path, option in options(kernelcast, "kernelcast"):
        long = next(one for one in option.opts if one.startswith("--"))
        assert not long.endswith(("-gib", "-gb")), (path, long)
        form = "flag" if option.is_flag else option.metavar
        forms.setdefault(long, set()).add((form, path))
    for name in ("--gpu-memory", "--max-size", "--bundle", "--db", "--quiet", "--json", "--gpus-per-node"):
        # None: a type of click's, whose name is shown.
        assert len({form for form, _ in forms[name]} - {None}) <= 1, forms[name]
