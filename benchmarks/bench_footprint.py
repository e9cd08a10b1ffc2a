"""What `pip install kernelcast` alone puts on a disk, and how long its imports take.

Builds the wheel and installs it with its base dependencies into an empty environment. The size of a package adds up
the files that pip lists, compiled modules included. Times are medians of new processes, taken in turn. `--only
sizes` leaves out the times, which a busy machine falsifies.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from kernelcast.benchmarks.harness import ROOT, Bench, in_turn, script
from kernelcast.docs.markdown import table

# Sizes of all distributions of an environment, as JSON. A file may be listed twice.
SIZES = """
import json
from importlib.metadata import distributions
print(json.dumps({
    found.metadata["Name"]: [found.version, sum(
        path.stat().st_size for path in {file.locate().resolve() for file in found.files or ()} if path.is_file()
    )]
    for found in distributions()
}))
"""

# What is timed: the words after the environment's Python.
TIMED = {
    "Python alone": ["-c", "pass"],
    "`import numpy`": ["-c", "import numpy"],
    "`import onnxruntime`": ["-c", "import onnxruntime"],
    "`import kernelcast.runtime`": ["-c", "import kernelcast.runtime"],
    "`from kernelcast.runtime import Estimator`": ["-c", "from kernelcast.runtime import Estimator"],
    "`import kernelcast.walltime`": ["-c", "import kernelcast.walltime"],
    "`kernelcast --version`": ["-m", "kernelcast.cli.main", "--version"],
    "`kernelcast walltime --help`": ["-m", "kernelcast.cli.main", "walltime", "--help"],
}


def install(folder: Path) -> Path:
    """An environment with the wheel of this tree and nothing else; its Python."""
    source = folder / "source"
    everywhere = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "docs")
    # Files that a user made in this folder; the bundles that ship are in another.
    made_here = shutil.ignore_patterns("*.kcast", "*.db")

    def left_out(place: str, names: list[str]) -> set[str]:
        return everywhere(place, names) | (made_here(place, names) if Path(place) == ROOT else set())

    shutil.copytree(ROOT, source, ignore=left_out)
    run(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(source))
    return Path(python)


def run(*command: str) -> str:
    """Run a command away from this checkout, and give what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        command, env=environment, cwd=tempfile.gettempdir(), stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout


def sizes(python: Path) -> list[str]:
    """The table of sizes, the largest first."""
    found = {
        f"{name} {version}": size_bytes / 1e6
        for name, (version, size_bytes) in json.loads(run(str(python), "-c", SIZES)).items()
        if name not in ("pip", "setuptools")
    }
    rows = [*sorted(found.items(), key=lambda item: -item[1]), ("together", sum(found.values()))]
    cells = [(name, f"{size_mb:.1f}") for name, size_mb in rows]
    return list(table(("on the disk", "MB"), cells, is_padded=False))


def times(python: Path, repeat: int) -> list[str]:
    ways = {name: partial(run, str(python), *words) for name, words in TIMED.items()}
    medians = in_turn(ways, repeat, warm_up=1)  # the first fills the system's cache
    alone = medians["Python alone"]
    cells = [(name, f"{1e3 * value:.0f}", f"{value / alone:.1f}") for name, value in medians.items()]
    return list(table(("a process that does", "ms", "× Python alone"), cells, is_padded=False))


@script(page="deploy.md", repeat=21, options={"--only": {"choices": ["sizes", "times"]}})
def main(bench: Bench) -> None:
    only = bench.given.only
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder))
        if only != "times":
            about = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}."
            bench.publish("\n".join([about, "", *sizes(python)]), "sizes")
        if only != "sizes":
            bench.publish("\n".join([f"{bench.machine()}.", "", *times(python, bench.repeat)]), "times")
