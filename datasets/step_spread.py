"""Write runtime/shipped/step_spread.csv from per-step times of MLPerf Training logs.

python datasets/step_spread.py [FOLDER]

FOLDER has runs.csv.gz and steps-*.csv.gz (shared/data/README.md). A row is a publisher's benchmark on a number of GPUs:
single steps over their run's median, steady ones only; start_s is from the process to the first step.
"""

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

OUTPUT = Path(__file__).resolve().parent.parent / "runtime" / "shipped" / "step_spread.csv"
FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "mlperf"
COLUMNS = ("publisher", "benchmark", "gpus", "steps", "p90", "p99", "mean", "std", "start_s")
_LEAST_STEPS = 20
Key = tuple[str, str, int]


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    starts: dict[Key, list[float]] = defaultdict(list)
    keys: dict[str, Key] = {}
    for run in _read(folder / "runs.csv.gz"):
        key = (run["org"], run["benchmark"], int(run["accelerators"]))
        keys[run["group"]] = key
        if run["startup_s"] and not run["duplicate_of"]:
            starts[key].append(float(run["startup_s"]))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("steps-*.csv.gz")):
        for step in _read(path):
            if step["steady"] == "1" and step["kind"] in ("step", "sampled") and step["steps"] == "1":
                times[step["group"], step["run"]].append(float(step["seconds"]))
    ratios: dict[Key, list[float]] = defaultdict(list)
    for (group, _), found in times.items():
        middle = median(found)
        ratios[keys[group]] += [one / middle for one in found]
    for key in sorted({*starts, *ratios}):
        found = ratios[key]
        shares = [""] * 4
        if len(found) >= _LEAST_STEPS:
            p90, p99 = np.quantile(found, (0.9, 0.99))
            shares = [f"{one:.4f}" for one in (p90, p99, np.mean(found), np.std(found))]
        start = f"{median(starts[key]):.0f}" if starts[key] else ""
        yield (*key, len(found) or "", *shares, start)


def _read(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


if __name__ == "__main__":
    with OUTPUT.open("w", encoding="utf-8", newline="") as output:
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
