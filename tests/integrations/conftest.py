"""What tests of all schedulers need: the real command with a site's bundle, and programs that behave in its place."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.walltime import walltime

SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"

ASK = Path(__file__).parents[2] / "integrations" / "slurm" / "kernelcast-ask"

HANGING = {
    "sleeps": "sleep 1000\n",
    "ignores signals": "trap '' TERM INT HUP; while :; do sleep 1; done\n",
    "leaves a child with its pipes": "setsid sleep 20 & exit 0\n",
}


@pytest.fixture
def site(tmp_path: Path, make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's file, with a bundle and the model `tiny`; commands that tests start find it."""
    make_bundle()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.toml").write_text(SIZES)
    path = tmp_path / "site.toml"
    path.write_text('bundle = "test.kcast"\nmodels = "models"\n')
    monkeypatch.setenv("KERNELCAST_SITE", str(path))
    monkeypatch.delenv("KERNELCAST", raising=False)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a shell program that logs its arguments to `.calls` next to it."""

    def write(text: str) -> Path:
        path = tmp_path / "bin" / "kernelcast"
        path.parent.mkdir(exist_ok=True)
        note = f"printf '%s\\n' \"$*\" >> {path}.calls\necho $$ > {path}.pid\n"
        path.write_text(f"#!/bin/sh\n{note}{text}")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def real(site: Path, program: Callable[[str], Path]) -> Path:
    """The real kernelcast, as a program in a folder of its own."""
    return program(f'exec {sys.executable} -m kernelcast.cli.main "$@"\n')


@pytest.fixture
def predicted_s(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Seconds that `kernelcast walltime` says of fields, as `model=tiny steps=1e6`."""

    def ask(fields: str) -> int:
        options = [
            word for field in fields.split() for word in ("--" + field.replace("_", "-")).split("=", 1)
        ]
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path_factory.mktemp("elsewhere"))
            result = CliRunner().invoke(walltime, [*options, "--format", "seconds"], catch_exceptions=False)
        return int(result.stdout)

    return ask


@pytest.fixture(params=HANGING.values(), ids=HANGING)
def hanging(request: pytest.FixtureRequest, program: Callable[[str], Path]) -> Path:
    """Programs that never answer, each in its way."""
    path: Path = program(request.param)
    return path


@pytest.fixture
def gone() -> Callable[[Path], bool]:
    """Whether nothing is left of a program that was started in a process group of its own."""

    def check(path: Path) -> bool:
        started = Path(f"{path}.pid")
        if not (started.exists() and started.read_text()):
            return True  # on a busy machine it was ended before its first line
        group = int(started.read_text())
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        return False

    return check


@pytest.fixture
def limit_s(predicted_s: Callable[..., int]) -> Callable[..., int]:
    """The same, rounded up to whole minutes, as schedulers are told."""
    return lambda fields: -(-predicted_s(fields) // 60) * 60


@pytest.fixture
def warm(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """kernelcast-ask, whose curl answers an hour and forty minutes, and notes what it was sent."""
    asking = program(f'shift; exec {ASK} "$@"\n')  # without the word walltime, as sites configure it
    curl = asking.with_name("curl")
    curl.write_text("#!/bin/sh\ncat > $0.input\necho 01:40:00\n")
    curl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{curl.parent}:{os.environ['PATH']}")
    return asking
