"""The installed wheel with every extra alone: what README says that the extra enables works.

A row is an extra and its commands, each run in an environment that has the wheel, that extra and nothing else.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])

K = "kernelcast"
# A server answers its first question, then ends.
_SERVED = """
import re, subprocess, sys, time, urllib.error, urllib.request
def asked(url):
    for _ in range(2000):  # an address may be printed before it answers
        try:
            return urllib.request.urlopen(url, timeout=600).read(200)
        except urllib.error.URLError:
            time.sleep(0.3)
    sys.exit("no answer")
with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
    try:
        for line in server.stdout:
            print(line, end="")
            if address := re.search(r"http://[^ /]*:\\d+", line):
                print(asked(address[0] + sys.argv[1]))
                break
        else:
            sys.exit("no address")
    finally:
        server.terminate()
"""
_DASK = """
import subprocess, sys
from distributed import LocalCluster
with LocalCluster(n_workers=1, processes=False, protocol="tcp://", dashboard_address=None) as cluster:
    command = "kernelcast search --hardware a100-sxm --model llama-2-7b --gpus 8 --global-batch 8 --dask".split()
    sys.exit(subprocess.run([sys.argv[1] + "/" + command[0], *command[1:], cluster.scheduler_address]).returncode)
"""
_PANDAS = """
from kernelcast.runtime import Estimator, predict
print(predict(Estimator.load("a100-sxm"), "llama-2-7b", dp=8, micro_batch=1, global_batch=8).to_pandas().describe())
"""
_COMMANDS: dict[str, tuple[Sequence[str], ...]] = {
    "store": (
        (K, "db", "info", "small.db"),
        (K, "db", "query", "small.db", "SELECT hardware, operator FROM coverage LIMIT 1"),
        (K, "import", "csv", "gelu.csv", "--db", "new.db", "--device-name", "Example GPU"),
    ),
    "parquet": ((K, "db", "export", "small.db", "parquet", "--format", "parquet"),),
    "datasette": (("python", "-c", _SERVED, "/", K, "db", "serve", "small.db", "--port", "0"),),
    "collector": (
        (K, "probe"),
        (K, "collect", "compute", "--plan", "tiny.toml", "--operator", "gelu", "--device", "cpu", "--db", "here.db"),
    ),
    "train": (
        (K, "import", "csv", "gelu.csv", "--db", "new.db", "--device-name", "Example GPU"),
        (K, "train", "--db", "new.db", "-o", "new.kcast"),
        (K, "bundle", "info", "new.kcast"),
    ),
    "dask": (("python", "-c", _DASK, "{programs}"),),
    "serve": (("python", "-c", _SERVED, "/health", K, "serve", "--hardware", "a100-sxm", "--listen", "127.0.0.1:0"),),
    "k8s": ((K, "walltime", "--k8s", "train-job.yaml", "--hardware", "a100-sxm"),),
    "plot": ((K, "validate", "steps", "--picture", "steps.png"),),
    "pandas": (("python", "-c", _PANDAS),),
}  # fmt: skip


def test_every_extra_is_tried() -> None:
    assert set(_COMMANDS) == EXTRAS - {"all", "dev", "docs"}


@pytest.fixture(params=_COMMANDS)
def installed(
    request: pytest.FixtureRequest, built: tuple[Path, Path], tmp_path: Path
) -> Iterator[tuple[str, Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]]]:
    """An extra, and what runs a program of an environment with it."""
    extra, programs = request.param, tmp_path / "venv" / "bin"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    environment |= {"KERNELCAST_SITE": "", "PATH": f"{programs}:{environment['PATH']}"}
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "data" / "small.db", folder)
    shutil.copy(ROOT / "tests" / "data" / "plans" / "tiny.toml", folder)
    shutil.copy(ROOT / "integrations" / "kubernetes" / "train-job.yaml", folder)
    rows = (f"gelu,forward,float32,1,{4096 * n},1024,{3 + 5.0 * n:.3f}\n" for n in range(1, 41))
    (folder / "gelu.csv").write_text("operator,direction,dtype,b,l,d,time_us\n" + "".join(rows))

    def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [part.format(programs=programs) if part == "{programs}" else part for part in command],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=3000, check=False,
        )  # fmt: skip

    for command in (
        (sys.executable, "-m", "venv", str(tmp_path / "venv")),
        ("python", "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{built[1]}[{extra}]"),
    ):
        done = run(command)
        assert done.returncode == 0, done.stderr
    yield extra, run
    shutil.rmtree(tmp_path / "venv")


@pytest.mark.slow(minutes=1)
def test_an_extra_alone(
    installed: tuple[str, Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]],
) -> None:
    extra, run = installed
    for command in _COMMANDS[extra]:
        done = run(command)
        assert (done.returncode, bool(done.stdout)) == (0, True), (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
