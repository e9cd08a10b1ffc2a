"""A user's own steps: added once, checked, scored with the shipped ones, and drawn on the same picture."""

import json
from pathlib import Path

import pytest

from kernelcast.validate.own_runs import own_folder, own_runs
from kernelcast.validate.steps import SHIPPED
from tests.cli.printed import ended

RUNS = """
site = "Our cluster"
hardware = "8 × H100 SXM per node"
device = "h100-sxm"
fabric = "h100-3200g"
source = "Our site, 2026"
[defaults]
gpus_per_node = 8
tp = 1
pp = 1
dp = 8
zero = 3
micro_batch = 1
micro_batches = 1
model = "llama-2-7b"
[[runs]]
measured_s = 0.5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of added files."""
    monkeypatch.setenv("KERNELCAST_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def write(tmp_path: Path, text: str = RUNS, name: str = "ours.toml") -> str:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


@pytest.mark.slow
def test_added_steps_are_scored_with_those_that_ship(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_folder() == folder
    assert own_runs() == ()
    path = write(tmp_path)
    assert ended("validate", "add", path) == 0
    out = capsys.readouterr().out
    assert "llama-2-7b" in out
    assert out.endswith("ours.toml: added\n")
    assert own_runs() == (folder / "ours.toml",)
    assert ended("validate", "add", path) == 0
    assert capsys.readouterr().out.endswith("ours.toml: already there\n")
    assert ended("validate", "steps", "--json", "--picture", str(tmp_path / "steps.png")) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [one["runs_file"] for one in files] == [*(f"{name}.toml" for name in SHIPPED), "ours.toml"]
    assert [one["is_shipped"] for one in files] == [True] * len(SHIPPED) + [False]
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_other_steps_of_the_same_name_need_to_be_asked_for(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("validate", "add", write(tmp_path)) == 0
    changed = write(tmp_path, RUNS.replace("measured_s = 0.5", "measured_s = 0.6"))
    assert ended("validate", "add", changed) == 2
    assert "holds other steps, expected another name, or --replace" in capsys.readouterr().err
    assert "0.5" in (folder / "ours.toml").read_text(encoding="utf-8")
    assert ended("validate", "add", changed, "--replace") == 0
    assert "0.6" in (folder / "ours.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('device = "h100-sxm"', "", "device is missing, expected a device's name"),
        ("measured_s = 0.5", "measured_s = -1", "run 1: measured_s is -1.0, expected seconds"),
        ("tp = 1", "tp = 3", "run 1"),
        (
            'model = "llama-2-7b"',
            'model = "tiny.toml"',
            "model 'tiny.toml' is a file, expected its fields as [models",
        ),
        ('"h100-3200g"', '"ours.kcast"', "fabric is 'ours.kcast', expected a name or a path from the root"),
        ('"h100-3200g"', '"./ours"', "fabric is './ours', expected a name or a path from the root"),
    ],
)
def test_what_cannot_be_kept_or_predicted_is_one_line(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, complaint: str
) -> None:
    write(
        tmp_path,
        "hidden_size = 64\nsequence_length = 8\nattention_heads = 8\nlayers = 4\nvocabulary_size = 100\n",
        "tiny.toml",
    )
    assert ended("validate", "add", write(tmp_path, RUNS.replace(old, new, 1))) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not folder.exists()


def test_names_that_ship_and_folders_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("validate", "add", write(tmp_path, name="vista.toml")) == 2
    assert "steps of this name ship" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELCAST_RUNS", str(tmp_path / "file" / "runs"))
    assert ended("validate", "add", write(tmp_path)) == 1
    assert "ours.toml: cannot be written" in capsys.readouterr().err


def test_without_the_variable_the_user_s_folder_of_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KERNELCAST_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert own_folder() == tmp_path / "kernelcast" / "runs"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_folder() == tmp_path / ".local" / "share" / "kernelcast" / "runs"
