"""The source archive, the wheel that is built from it, and what `pip install kernelcast` alone can do."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import VERBS
from kernelcast.cli.predict import predict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
DATA: Mapping[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"
MODEL = ["--bundle", "test.kcast", "--model", "tiny.toml"]
LAYOUT = ["--pp", "2", "--micro-batch", "1", "--micro-batches", "3"]

# What the base dependencies bring; older versions of onnxruntime need the last four.
BROUGHT = {"kernelcast", "numpy", "onnxruntime", "click", "flatbuffers", "protobuf", "packaging"} | {
    "coloredlogs",
    "humanfriendly",
    "sympy",
    "mpmath",
}


def run(*command: str | Path, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that sees nothing of this checkout."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment | {"KERNELCAST_SITE": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )


def succeed(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done
    return done.stdout


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split(".")[1:])


def expected_files() -> set[str]:
    """Paths inside the wheel of all modules and package data, from the tree."""
    found = set()
    for package in PACKAGES:
        folder, inside = folder_of(package), package.replace(".", "/")
        patterns = [*(["*.py"] if package != "kernelcast" else []), *DATA.get(package, [])]
        for pattern in patterns:
            matches = list(folder.glob(pattern))
            assert matches, f"{package} has no {pattern}"
            found |= {f"{inside}/{path.relative_to(folder)}" for path in matches}
    return found


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of an environment that has the wheel and its base dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    succeed(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    install = ["-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    succeed(programs / "python", *install, built[1], cwd=folder)
    yield programs
    shutil.rmtree(folder)


@pytest.fixture
def folder(tmp_path: Path, make_bundle: Callable[..., Path]) -> Path:
    """A folder with a bundle and a model."""
    make_bundle()
    (tmp_path / "tiny.toml").write_text(SIZES)
    return tmp_path


def test_the_wheel_has_all_modules_and_data_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        every = wheel.namelist()
    names = {name for name in every if ".dist-info/" not in name}
    assert names == expected_files()
    assert {"kernelcast/schema.sql", "kernelcast/store/questions.sql", "kernelcast/store/py.typed"} <= names
    assert "kernelcast/runtime/shipped/models/llama-2-7b.toml" in names
    assert "kernelcast/collector/plans/quick.toml" in names
    assert {"kernelcast/explore/assets/index.html", "kernelcast/explore/assets/js/main.js"} <= names
    # Others' code comes with its licence.
    assert any(name.endswith("licenses/explore/assets/vendor/uplot/LICENSE") for name in every)


def test_every_package_of_the_tree_is_in_the_list() -> None:
    rooms = {package.split(".")[1] for package in PACKAGES if "." in package}
    found = {
        ".".join(["kernelcast", *path.parent.relative_to(ROOT).parts])
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
    }
    assert found == set(PACKAGES) - {"kernelcast"}


def test_the_source_archive_has_integrations_and_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "constraints.txt",
        "schema.sql",
        "integrations/slurm/cli_filter.lua",
        "integrations/lsf/esub.kernelcast",
        "tests/data/small.db",
        "docs/deploy.md",
    } <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_only_base_dependencies_are_installed(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(succeed(installed / "python", "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    names = {package["name"].lower() for package in listed} - {"pip", "setuptools"}
    assert {"kernelcast", "numpy", "onnxruntime", "click"} <= names <= BROUGHT
    assert (
        succeed(installed / "python", "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"
    )


def test_predict_answers_as_here(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*MODEL, *LAYOUT, "--json"]
    found = json.loads(succeed(installed / "kernelcast", "predict", *arguments, cwd=folder))
    monkeypatch.chdir(folder)
    here: dict[str, Any] = json.loads(CliRunner().invoke(predict, arguments, catch_exceptions=False).stdout)
    assert found == here
    assert found["step_time_s"] > 0


def test_search_and_walltime(installed: Path, folder: Path) -> None:
    command = [installed / "kernelcast", "search", *MODEL, "--gpus", "4", "--global-batch", "8", "--json"]
    assert json.loads(succeed(*command, cwd=folder))["evaluated"] > 0
    (folder / "train.sbatch").write_text(
        "#!/bin/sh\n#KERNELCAST model=tiny.toml bundle=test.kcast steps=1e6\n"
    )
    command = [installed / "kernelcast", "walltime", "train.sbatch", *LAYOUT, "--format", "seconds"]
    assert int(succeed(*command, cwd=folder)) > 0
    assert succeed(installed / "kernelcast", "bundle", "info", "test.kcast", cwd=folder)


def test_built_in_models_are_there(installed: Path, folder: Path) -> None:
    arguments = ["--bundle", "test.kcast", "--model", "llama-2-7b", *LAYOUT, "--json"]
    found = json.loads(succeed(installed / "kernelcast", "predict", *arguments, cwd=folder))
    assert found["model"]["hidden_size"] == 4096


# The sizes of Qwen2.5-72B (its config.json on Hugging Face), as facts.
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.mark.parametrize(
    "hardware", ["a100-sxm", "a100-sxm-40gb", "gh200", "h100-sxm", "h200-sxm", "b200-sxm", "a100-pcie"]
)
def test_the_wheel_alone_answers_for_hardware_that_nobody_here_has(
    installed: Path, tmp_path: Path, hardware: str
) -> None:
    (tmp_path / "qwen2.5-72b.json").write_text(json.dumps(QWEN))
    models = [
        ["llama-3-8b"],
        ["llama-3-70b"],
        ["gpt3-175b"],
        ["qwen2.5-72b.json", "--sequence-length", "4096"],
    ]
    for model in models:
        asked = [
            "--hardware",
            hardware,
            "--model",
            *model,
            "--gpus",
            "256",
            "--global-batch",
            "1024",
            "--json",
        ]
        found = json.loads(succeed(installed / "kernelcast", "predict", *asked, cwd=tmp_path))
        low_s, high_s = found["interval_s"]
        assert low_s < found["step_time_s"] < high_s
        assert 0.3 < found["mfu"] < 0.75
        assert found["memory"]["fits"]
        assert found["provenance"]["data"]
        assert found["provenance"]["collectives"]["name"]
        assert min(found["known"].values()) >= 0
        assert found["fabric_rate_sensitivity"]


def test_the_command_explains_itself(installed: Path, tmp_path: Path) -> None:
    version = PROJECT["project"]["version"]
    assert succeed(installed / "kernelcast", "--version", cwd=tmp_path) == f"kernelcast {version}\n"
    text = succeed(installed / "kernelcast", "--help", cwd=tmp_path)
    assert all(f"  {verb} " in text for verb in VERBS)


EXTRAS = [([verb], found.extra) for verb, found in VERBS.items() if found.extra] + [
    (["walltime", "--k8s", "job.yaml"], "k8s"),
    (["search", *MODEL, "--gpus", "2", "--global-batch", "2", "--dask", "127.0.0.1:9"], "dask"),
]


@pytest.mark.parametrize(("arguments", "extra"), EXTRAS, ids=[" ".join(words[:2]) for words, _ in EXTRAS])
def test_verbs_say_which_extra_they_need(
    installed: Path, folder: Path, arguments: list[str], extra: str
) -> None:
    assert extra in PROJECT["project"]["optional-dependencies"]
    done = run(installed / "kernelcast", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kernelcast: error: ")
    assert "which is not installed; expected: pip install 'kernelcast[" in line
    assert line.endswith(f"[{extra}]'")
