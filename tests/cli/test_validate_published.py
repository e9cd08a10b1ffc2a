"""`kernelcast validate published`: what it refuses before the long work; what it prints is tested with the work."""

from pathlib import Path

import pytest

from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (
            ["none", "--runs", "perlmutter"],
            1,
            "none: no such folder; expected one with operator/ and nccl/ in it",
        ),
        (["none"], 1, "none: no such folder; expected one with operator/ and nccl/ in it"),
        (["empty.toml"], 1, "empty.toml: not a folder; expected one with operator/ and nccl/ in it"),
        (["."], 2, "no measured steps are known for a site of that name, expected one of perlmutter"),
        (["Perlmutter", "--from", "none.kcast"], 1, "none.kcast: no such file"),
        (["Perlmutter", "--runs", "none.toml"], 1, "runs file none.toml: no such file"),
        (["Perlmutter", "--runs", "empty.toml"], 2, "runs file empty.toml: runs is missing"),
    ],
)
def test_what_is_refused_is_one_line(
    arguments: list[str],
    status: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.toml").touch()
    (tmp_path / "Perlmutter").mkdir()
    assert ended("validate", "published", *arguments) == status
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert complaint in line
    assert captured.out == ""


def test_the_group_lists_its_verbs_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("validate", "--help") == 0
    assert "published" in capsys.readouterr().out
