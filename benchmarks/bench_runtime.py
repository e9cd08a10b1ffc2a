"""How fast the runtime is: a cold command, a warm estimator, searches, and how cost grows with work.

    python benchmarks/bench_runtime.py [--bundle FILE] [--repeat 5] [--write docs/performance.md] [--calculon FOLDER]

Everything is measured in one run, every part in processes of its own, so that its peak memory is its own. Without
--bundle a synthetic one is written, in the size of a trained one. With --calculon, the checkout of that program in
FOLDER searches the same number of devices beside it. Prints Markdown, and with --write puts it between the marks of
that file.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from synthetic_bundle import write_synthetic_bundle

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism, load_model
from kernelcast.validate.markdown import fill, table

MODEL, NODE = "gpt3-175b", 8

SEARCH = {"gpus": (64,), "global_batch": 1536}
CALCULON_SAID = 280
# (devices, global batch, limits): about 10², 10⁴ and 10⁶ layouts, then 10, 10³ and 10⁵ devices.
SIZES: dict[str, dict[str, object]] = {
    "10²": {"gpus": (4,), "global_batch": 4, "recompute": ("none",)},
    "10⁴": {"gpus": (64,), "global_batch": 96},
    "10⁶": {"gpus": (2520, 5040), "global_batch": 720720, "virtual_stages": "2-12"},
}
DEEPSEEK = {"model": "deepseek-v3", "global_batch": 15360, "gpu_memory_bytes": 78 << 30}
MIXTURES: dict[str, dict[str, object]] = {
    "2,048 devices": {**DEEPSEEK, "gpus": (2048,)},
    "512 to 4,096 devices": {**DEEPSEEK, "gpus": (512, 1024, 2048, 4096)},
}
DEVICES: dict[str, dict[str, object]] = {
    "10": {"gpus": (10,), "global_batch": 1000},
    "10³": {"gpus": (1000,), "global_batch": 1000},
    "10⁵": {"gpus": (100_000,), "global_batch": 100_000},
}

# A process begins as a copy of the one that starts it, whose memory counts as its own: a small one starts it.
STARTER = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - begin, used.ru_maxrss]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Bench:
    """Runs parts in processes of their own, and remembers the bundle that they use."""

    def __init__(self, bundle: Path, repeat: int) -> None:
        self.bundle, self.repeat = bundle, repeat

    def part(self, name: str, **arguments: object) -> dict[str, float]:
        """Median of every number that a part answers, `peak_mb` the largest."""
        answers = []
        for _ in range(self.repeat):
            asked = [sys.executable, __file__, "--part", name, "--bundle", str(self.bundle)]
            done = subprocess.run(
                [*asked, "--arguments", json.dumps(arguments)], stdout=subprocess.PIPE, check=True, text=True
            )
            answers.append(json.loads(done.stdout))
        medians = {key: statistics.median(one[key] for one in answers) for key in answers[0]}
        return medians | {"peak_mb": max(one["peak_mb"] for one in answers)}


def command(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds and peak memory (MB) of a command."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", STARTER, *arguments],
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: ended with {done.returncode}")
    seconds, peak_kb = json.loads(done.stdout)
    return seconds, peak_kb / 1024


def cold(bench: Bench) -> Iterator[str]:
    """A command that predicts once, beside a bare import of ONNX Runtime, taken in turn."""
    program = "from kernelcast.cli.main import main; main()"
    layout = {"pp": 8, "tp": 8, "dp": 2, "micro-batch": 1, "micro-batches": 32, "gpus-per-node": NODE}
    predict = [
        sys.executable,
        "-c",
        program,
        "predict",
        "--bundle",
        str(bench.bundle),
        "--model",
        MODEL,
        "--json",
    ]
    predict += [text for name, value in layout.items() for text in (f"--{name}", str(value))]
    bare = [sys.executable, "-c", "import onnxruntime"]
    command(predict)  # so that files are in the system's cache for both
    pairs = [(command(bare), command(predict)) for _ in range(max(5, bench.repeat))]
    (bare_s, bare_mb), (predict_s, predict_mb) = (
        (statistics.median(pair[which][0] for pair in pairs), max(pair[which][1] for pair in pairs))
        for which in (0, 1)
    )
    return table(
        ("cold, as a command", "seconds", "peak memory", "against the bare import"),
        [
            ("`import onnxruntime` alone", f"{bare_s:.2f}", f"{bare_mb:.0f} MB", ""),
            (
                "`kernelcast predict`: start, load, one prediction",
                f"{predict_s:.2f}",
                f"{predict_mb:.0f} MB",
                f"{predict_s / bare_s:.1f} × the time, {predict_mb / bare_mb:.1f} × the memory",
            ),
        ],
    )


def warm(bench: Bench) -> Iterator[str]:
    """Predictions on an estimator that has its models loaded."""
    found = bench.part("warm")
    return table(
        ("warm estimator", "median time", "without the interval"),
        [
            ("a new configuration, closed form", ms(found["closed"]), ms(found["closed_bare"])),
            (
                "a new configuration, simulated 1F1B, pp 16, m 64",
                ms(found["simulated"]),
                ms(found["simulated_bare"]),
            ),
            ("the same configuration again", f"{found['again'] * 1e6:.0f} µs", ""),
        ],
    )


def searches(bench: Bench, calculon: Path | None) -> Iterator[str]:
    """Layouts per second, by closed form and simulated."""
    rows, ways = (
        [],
        (
            ("closed form", {"timeline": "closed-form"}),
            ("simulated, with a lower bound ruling layouts out", {"timeline": "simulate"}),
            ("simulated, every layout", {"timeline": "simulate", "prune": False}),
        ),
    )
    peer, source = CALCULON_SAID, "as reported, not measured in this run"
    if calculon is not None:
        peer, source = round(measure_calculon(calculon)), "measured in this run"
    for title, way in ways:
        found = bench.part("search", **SEARCH, **way)
        rate = found["layouts"] / found["seconds"]
        rows.append(
            (
                f"search, {title}",
                f"{found['layouts']:,.0f}",
                f"{found['simulated']:,.0f}",
                f"{rate:,.0f}",
                f"{rate / peer:,.0f} ×",
            )
        )
    rows.append((f"Calculon (analytical), {source}", "", "", f"{peer:,}", "1 ×"))
    return table(("one core", "layouts", "of them simulated", "layouts/s", "against Calculon"), rows)


def growth(bench: Bench) -> list[str]:
    """Cost against work."""
    lines = []
    for title, spaces in (("layouts", SIZES), ("devices", DEVICES), ("experts", MIXTURES)):
        rows = []
        for name, space in spaces.items():
            for way, options in (
                ("closed form", {"timeline": "closed-form"}),
                ("simulated", {"timeline": "simulate"}),
            ):
                found = bench.part("search", **space, **options)
                layouts = found["layouts"]
                rows.append(
                    (
                        f"DeepSeek-V3 on {name}, {way}" if title == "experts" else f"{name} {title}, {way}",
                        f"{layouts:,.0f}",
                        f"{found['seconds']:.3f}",
                        f"{layouts / found['seconds']:,.0f}",
                        f"{found['seconds'] / layouts * 1e6:.1f} µs",
                        f"{found['peak_mb']:.0f} MB",
                        f"{found['added_mb']:.0f} MB",
                    )
                )
        headers = (
            "mixtures of experts, 78 GiB per device" if title == "experts" else f"cost against {title}",
            "layouts",
            "seconds",
            "layouts/s",
            "per layout",
            "peak memory",
            "of it, added",
        )
        lines += [*table(headers, rows), ""]
    return lines[:-1]


def measure_calculon(folder: Path) -> float:
    """Configurations per second that Calculon reports for its own search on one core."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [
                sys.executable, "bin/calculon", "llm-optimal-execution", "models/gpt3-175B.json", "64", "1536",
                "float16", "systems/a100_80g.json", str(Path(scratch) / "best.json"), "--cpus", "1", "--noneok",
            ],
            cwd=folder, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    said = re.search(r"Calculation rate: ([\d.]+)", done.stdout + done.stderr)
    if said is None:
        raise SystemExit(f"calculon in {folder}: prints no calculation rate")
    return float(said[1])


def ms(seconds: float) -> str:
    """A time in ms."""
    return f"{seconds * 1e3:.2f} ms"


def measure_warm(bundle: Path) -> dict[str, float]:
    """Median seconds per prediction, for layouts that were never asked before, and for one that was."""
    estimator, model, cluster = Estimator.load(bundle), load_model(MODEL), Cluster(gpus_per_node=NODE)
    estimator.predictor.load()

    def layouts(micro_batches: int) -> list[Parallelism]:
        # Another micro-batch is other workloads: nothing of an earlier one is remembered.
        return [
            Parallelism(pp=16, tp=8, dp=4, micro_batch=first, micro_batches=micro_batches, zero=1)
            for first in range(1, 41)
        ]

    kinds = {
        "closed": ("closed-form", True),
        "simulated": ("simulate", True),
        "closed_bare": ("closed-form", False),
        "simulated_bare": ("simulate", False),
    }
    estimators = {name: Estimator(estimator.bundle) for name in kinds}
    for one in estimators.values():
        one.predictor.load()
    # In turn: a machine whose clock drifts is as fast for one kind as for another.
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for layout in layouts(64):
        for name, (timeline, interval) in kinds.items():
            asked = partial(predict, estimators[name], model, cluster, layout, timeline, interval)
            times[name].append(seconds_of(asked))
    answers = {name: statistics.median(found[5:]) for name, found in times.items()}
    estimator = estimators["simulated"]
    layout = layouts(64)[-1]
    predict(estimator, model, cluster, layout, "simulate", True)
    same = partial(predict, estimator, model, cluster, layout, "simulate", True)
    again = [seconds_of(same) for _ in range(200)]
    return answers | {"again": statistics.median(again)}


def predict(
    estimator: Estimator,
    model: ModelConfig,
    cluster: Cluster,
    layout: Parallelism,
    timeline: str,
    interval: bool,
) -> None:
    """One prediction."""
    estimator.predict(
        model=model,
        parallelism=layout,
        cluster=cluster,
        timeline=timeline,  # type: ignore[arg-type]
        interval=interval,
    )


def seconds_of(work: Callable[[], None]) -> float:
    """Seconds that some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure_search(bundle: Path, **asked: object) -> dict[str, float]:
    """Seconds and counts of a search, memory not limited unless asked; models are loaded before."""
    from kernelcast.runtime.search import NumberSet, Question, Space
    from kernelcast.runtime.search.sweep import sweep

    of_question = ("timeline", "prune", "gpu_memory_bytes")
    options = {name: asked.pop(name) for name in of_question if name in asked}
    # As JSON gives them: lists, and sets of numbers as texts.
    limits = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
    if "virtual_stages" in limits:
        limits["virtual_stages"] = NumberSet.parse(str(limits["virtual_stages"]))
    model = load_model(str(limits.pop("model", MODEL)))
    space = Space(model=model, gpus_per_node=NODE, **limits)  # type: ignore[arg-type]
    estimator = Estimator.load(bundle)
    estimator.predictor.load()
    before_mb = peak_mb()
    begin = time.perf_counter()
    counts = sweep(estimator.predictor, Question(space=space, **options)).counts  # type: ignore[arg-type]
    return {
        "seconds": time.perf_counter() - begin,
        "layouts": counts.layouts,
        "simulated": counts.simulated,
        "added_mb": peak_mb() - before_mb,
    }


def peak_mb() -> float:
    """Peak memory of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine(bundle: str, regressors: int) -> str:
    """What this was measured on, in one line."""
    import numpy
    import onnxruntime

    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    load = os.getloadavg()[0]
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} core(s), load average before {load:.1f}; "
        f"Python {platform.python_version()}, numpy {numpy.__version__}, onnxruntime {onnxruntime.__version__}; "
        f"{bundle}, {regressors} regressors; model {MODEL}."
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def main() -> None:
    """Measure everything, or one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="a bundle with every operator that a GPT calls")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--calculon", type=Path, metavar="FOLDER")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        arguments = json.loads(given.arguments)
        parts = {"warm": measure_warm, "search": measure_search}
        found = parts[given.part](given.bundle, **arguments)
        print(json.dumps(found | {"peak_mb": peak_mb()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle, name = given.bundle, "a bundle of others"
        if bundle is None:
            bundle, name = Path(folder) / "synthetic.kcast", "a synthetic bundle"
            write_synthetic_bundle(bundle)
        about = f"{name} of {bundle.stat().st_size / 1e6:.1f} MB"
        lines = [machine(about, len(Estimator.load(bundle).bundle.entries))]
        bench = Bench(bundle, given.repeat)
        for part in (
            lambda: cold(bench),
            lambda: warm(bench),
            lambda: searches(bench, given.calculon),
            lambda: growth(bench),
        ):
            found = list(part())
            print("\n".join([*lines[:1], "", *found] if len(lines) == 1 else ["", *found]), flush=True)
            lines += ["", *found]
    if given.write:
        fill(given.write, "bench-runtime", "\n".join(lines))


if __name__ == "__main__":
    main()
