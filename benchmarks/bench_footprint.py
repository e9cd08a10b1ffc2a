"""What `pip install kernelcast` alone puts on a disk, and how long its imports take.

    python benchmarks/bench_footprint.py [--repeat 21] [--only sizes] [--write docs/deploy.md]

Builds the wheel, installs it with its base dependencies into an empty environment, and looks there. Sizes are those of
the files that pip lists of each package, compiled modules included. Times are medians of new processes, taken in turn.
Prints Markdown, and with --write puts it between the marks of that file. `--only sizes` leaves out the times, which a
busy machine falsifies.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelcast.validate.markdown import fill

ROOT = Path(__file__).resolve().parent.parent

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
    # Of this folder only what somebody made in it: the bundles that ship are in another.
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
        name: (version, size)
        for name, (version, size) in json.loads(run(str(python), "-c", SIZES)).items()
        if name not in ("pip", "setuptools")
    }
    rows = sorted(found.items(), key=lambda item: -item[1][1])
    total = sum(size for _, (_, size) in rows)
    lines = [f"| {name} {version} | {megabytes(size)} |" for name, (version, size) in rows]
    return ["| on the disk | MB |", "| --- | ---: |", *lines, f"| together | {megabytes(total)} |"]


def megabytes(size: int) -> str:
    """Megabytes (10⁶ bytes) of a size in bytes."""
    return f"{size / 1e6:.1f}"


def times(python: Path, repeat: int) -> list[str]:
    """The table of start times."""
    taken: dict[str, list[float]] = {name: [] for name in TIMED}
    for round_ in range(repeat + 1):
        for name, words in TIMED.items():
            begin = time.perf_counter()
            run(str(python), *words)
            if round_:  # the first fills the system's cache
                taken[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(found) for name, found in taken.items()}
    alone = medians["Python alone"]
    lines = [f"| {name} | {1e3 * value:.0f} | {value / alone:.1f} |" for name, value in medians.items()]
    return ["| a process that does | ms | × Python alone |", "| --- | ---: | ---: |", *lines]


def main() -> None:
    """Build, install, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--only", choices=["sizes", "times"])
    parser.add_argument("--write", type=Path, metavar="FILE")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder))
        machine = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
        about = f"{machine}, {os.cpu_count()} core(s), load average before {load:.1f}."
        parts = {}
        if given.only != "times":
            parts["sizes"] = [f"{machine}.", "", *sizes(python)]
        if given.only != "sizes":
            parts["times"] = [about, "", *times(python, given.repeat)]
    for part, lines in parts.items():
        text = "\n".join(lines)
        print(text)
        if given.write:
            fill(given.write, f"bench-footprint, {part}", text)


if __name__ == "__main__":
    main()
