"""How long the command takes from its start, in multiples of `python -c 'import numpy, onnxruntime'` in the same run.

Every command is a new process; all take turns, so that other work on the machine slows all of them alike. Multiples
are of wall time, and of CPU time in parentheses: numpy's threads spin while they start, which CPU
time contains. `--base` runs the same commands in a worktree of another commit too.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelcast.benchmarks.harness import ROOT, Bench, process, script
from kernelcast.docs.markdown import table

_LAYOUT = "--pp 4 --tp 8 --dp 64 --micro-batch 1 --micro-batches 16"
_IMPORT = "import numpy, onnxruntime"
# What is timed by the name of its row: `kernelcast` and words, or a statement.
_TIMED = {
    f"`{_IMPORT}`": _IMPORT,
    "`import kernelcast.runtime`, `Estimator`": "from kernelcast.runtime import Estimator",
    "`--help`": "kernelcast --help",
    "`predict` with a layout, h100-sxm": f"kernelcast predict --hardware h100-sxm --model llama-3-70b {_LAYOUT}",
    **{
        f"`{command} --gpus {gpus}`, {model}, h100-sxm": f"kernelcast {command} --hardware h100-sxm --model {model} "
        f"--gpus {gpus} --global-batch {batch}"
        for command, model, gpus, batch in (
            ("predict", "llama-3-70b", 64, 512),
            ("search", "llama-3-70b", 64, 512),
            ("search", "llama-3-70b", 1024, 2048),
            ("search", "llama-3-70b", 16384, 16384),
            ("search", "deepseek-v3", 2048, 8192),
        )
    },
    "`search --gpus 1024`, gpt3-175b, a100-sxm": "kernelcast search --hardware a100-sxm --model gpt3-175b --gpus 1024 "
    "--global-batch 1536",
    "`walltime` of a job script": "kernelcast walltime JOB",
    "`trace report` of a small trace": f"kernelcast trace report {ROOT}/tests/data/traces/cuda.json",
}
_JOB = """#!/bin/sh
#SBATCH --nodes=256
#KERNELCAST hardware=h100-sxm model=llama-3-70b pp=4 tp=8 dp=64 micro_batch=1 micro_batches=16 steps=1000
srun python train.py
"""


def measured(code: str, tree: Path, folder: Path) -> tuple[float, float, float]:
    """One new process with the package in `tree`, a folder that holds it as `kernelcast`."""
    words = ["-c", code]
    if code.startswith("kernelcast "):
        words = ["-m", "kernelcast.cli.main", *code.replace("JOB", str(folder / "job.sh")).split()[1:]]
    # Compiled modules are kept: a new worktree has none.
    own = {"PYTHONPATH": str(tree), "XDG_CONFIG_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    return process([sys.executable, *words], env=os.environ | own, cwd=folder)


def rows(trees: list[Path], repeat: int, folder: Path) -> list[tuple[str, ...]]:
    """The cells of each command, the first tree first."""
    rounds = [
        {(name, tree): measured(code, tree, folder) for name, code in _TIMED.items() for tree in trees}
        for _ in range(repeat + 1)
    ][1:]  # the first compiles the modules and fills the system's cache

    def median(name: str, tree: Path, figure: int) -> float:
        return statistics.median(one[name, tree][figure] for one in rounds)

    def multiple(name: str, tree: Path) -> str:
        wall, cpu = (median(name, tree, of) / median(next(iter(_TIMED)), trees[0], of) for of in (0, 1))
        return f"{wall:.1f} × ({cpu:.1f} ×)"

    return [
        (
            name,
            *(multiple(name, tree) for tree in trees),
            *(f"{median(name, trees[0], figure):.2f}" for figure in (0, 1)),
            f"{median(name, trees[0], 2):.0f} MB",
        )
        for name in _TIMED
    ]


@script(
    page="performance.md",
    repeat=5,
    options={"--base": {"metavar": "COMMIT", "help": "measure this commit as well"}},
)
def main(bench: Bench) -> None:
    base = bench.given.base
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "job.sh").write_text(_JOB)
        trees = [folder / "here"]
        trees[0].mkdir()
        (trees[0] / "kernelcast").symlink_to(ROOT)
        git = ["git", "-C", str(ROOT), "worktree"]
        try:
            if base:
                trees.append(folder / "base")
                subprocess.run([*git, "add", "--detach", "-q", trees[1] / "kernelcast", base], check=True)
            cells = rows(trees, bench.repeat, folder)
        finally:
            if base:
                subprocess.run([*git, "remove", "--force", trees[1] / "kernelcast"], check=True)
    heads = (
        "command",
        "× import",
        *([f"× import, {base}"] if base else []),
        "wall s",
        "CPU s",
        "peak memory",
    )
    bench.publish("\n".join([f"{bench.machine('numpy', 'onnxruntime')}.", "", *table(heads, cells)]))
