"""The command as a whole: starts fast, names what is missing, and says every error in one line."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from kernelcast.cli.main import VERBS, kernelcast, main
from kernelcast.runtime import DataError, UsageError
from tests.cli.printed import ended

COMMAND = (sys.executable, "-m", "kernelcast.cli.main")

# Refuses to import what the first argument names, with commas (and all below it), then runs the rest as a command.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from kernelcast.cli.main import main
main(sys.argv[2:])
"""

LOADED = """
import sys
from kernelcast.cli.main import kernelcast
kernelcast.main(sys.argv[1:], standalone_mode=False)
heavy = {"torch", "numpy", "onnxruntime", "sklearn", "xgboost", "rich", "sqlite_utils", "sqlite3", "msgspec"}
print("loaded:", *sorted(heavy & set(sys.modules)))
"""


def run(*command: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    done = run(sys.executable, "-c", LOADED, *arguments)
    assert done.stdout.splitlines()[-1] == "loaded:", done.stderr


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--help") == 0
    out = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert any(line.split()[:1] == [name] and verb.summary in line for line in out.splitlines())
    assert kernelcast.list_commands(click.Context(kernelcast)) == list(VERBS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"kernelcast {version('kernelcast')}\n"


@pytest.mark.parametrize(("arguments", "name"), [([], "kernelcast"), (["collect"], "kernelcast collect")])
def test_without_arguments_the_help_is_shown(
    capsys: pytest.CaptureFixture[str], arguments: list[str], name: str
) -> None:
    assert ended(*arguments) in (0, 2)  # click's, which changed with 8.2
    printed = capsys.readouterr()
    assert (printed.out + printed.err).startswith(f"Usage: {name} [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "no such command 'fly', known are probe, "),
        (["--fly"], "No such option"),
        (["collect", "fly"], "No such command 'fly'."),
        (["collect", "compute"], "Missing option '--db'."),
        (["collect", "compute", "--db", "x.db", "--threads", "0"], "Invalid value for '--threads'"),
        (["probe", "--device", "tpu"], "device 'tpu' is unknown; expected auto, cpu or cuda"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert ended(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"kernelcast: error: {message}")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("b is 0"), 2, "kernelcast: error: b is 0"),
        (DataError("x.db: is damaged"), 1, "kernelcast: error: x.db: is damaged"),
        (OSError(28, "No space left on device"), 1, "kernelcast: error: [Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, "kernelcast: interrupted; no file was left half-written"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    line: str,
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(kernelcast, "get_command", lambda ctx, name: failing)
    assert ended("failing") == status
    assert capsys.readouterr().err.strip() == line


def test_an_error_of_ours_that_nobody_expected_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(kernelcast, "get_command", lambda ctx, name: broken)
    with pytest.raises(ZeroDivisionError):
        main(["broken"])


@pytest.mark.parametrize(
    ("package", "arguments", "verb", "extra"),
    [
        ("torch", ["probe"], "probe", "collector"),
        ("rich", ["collect", "compute", "--db", "x.db"], "collect", "collector"),
        ("sqlite_utils", ["collect", "compute", "--db", "x.db"], "collect", "collector"),
        ("sklearn", ["train", "--db", "x.db", "-o", "x.kcast"], "train", "train"),
        ("msgspec", ["demo"], "demo", "all"),
    ],
)
def test_a_missing_package_names_the_extra(
    tmp_path: Path, package: str, arguments: list[str], verb: str, extra: str
) -> None:
    done = run(sys.executable, "-c", WITHOUT, package, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"kernelcast: error: {verb} needs the package {package}, which is not installed; "
        f"expected: pip install 'kernelcast[{extra}]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_predict_needs_no_extra() -> None:
    packages = "torch,sqlite_utils,sklearn,rich,msgspec"
    assert run(sys.executable, "-c", WITHOUT, packages, "predict", "--help").returncode == 0


def test_a_bug_of_ours_is_not_taken_for_a_missing_package() -> None:
    done = run(sys.executable, "-c", WITHOUT, "kernelcast.cli.probe", "--version")
    assert done.returncode == 0
    program = WITHOUT.replace('.partition(".")[0]', "")
    done = run(sys.executable, "-c", program, "kernelcast.cli.probe", "probe")
    assert "ModuleNotFoundError: No module named 'kernelcast.cli.probe'" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "kernelcast: error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["bundle", "--help"], ["fly"], ["bundle", "info", "x"]]
)
def test_a_reader_that_goes_away_ends_the_command_as_a_pipe_does(
    arguments: list[str], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run([*COMMAND, *arguments], stdout=pipe, stderr=pipe, check=False, cwd=tmp_path)
    assert done.returncode == 141  # 128 + SIGPIPE, as of any tool in front of head


def test_what_is_printed_into_a_pipe_that_closes_early_is_no_error() -> None:
    # More than a pipe holds, so that the command still prints when the reader has gone.
    program = (
        "import click; from kernelcast.cli.main import kernelcast, main\n"
        "many = click.Command('many', callback=lambda: [click.echo('x' * 99) for _ in range(9999)])\n"
        "kernelcast.get_command = lambda *_: many\n"
        "main(['many'])"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "x" * 99 + "\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_names_with_line_breaks_are_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("bundle", "info", "a\nb\x1b[31m.kcast") == 1
    assert capsys.readouterr().err == "kernelcast: error: bundle a\\nb\\x1b[31m.kcast: no such file\n"
