"""Manifests, and the command that puts time limits into them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.walltime import walltime


@pytest.fixture
def folder(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one."""
    path = tmp_path / "manifests"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def k8s(folder: Path) -> Callable[..., Result]:
    """Runs `kernelcast walltime --k8s` on a text, as the file job.yaml or on standard input."""

    def run(text: str | bytes, *options: str, stdin: bool = False) -> Result:
        content = text.encode() if isinstance(text, str) else text
        (folder / "job.yaml").write_bytes(content)
        source = "-" if stdin else "job.yaml"
        return CliRunner().invoke(
            walltime, ["--k8s", source, *options], input=content if stdin else b"", catch_exceptions=True
        )

    return run
