"""How fast the runtime is: a cold command, a warm estimator, searches, and how cost grows with work.

Everything is measured in one run, every part in processes of its own, so that its peak memory is its own. Without
--bundle the operators of a shipped device answer. With --calculon, the checkout of that program in
FOLDER searches the same number of devices for comparison.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kernelcast.benchmarks.harness import (
    SHIPPED,
    Bench,
    in_turn,
    peak_mb,
    process,
    script,
    seconds_of,
    write_shipped_bundle,
)
from kernelcast.docs.markdown import table
from kernelcast.runtime import Cluster, Estimator, Parallelism, load_model

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


def cold(bench: Bench, bundle: Path) -> Iterator[str]:
    """A command that predicts once, and a bare import of ONNX Runtime, taken in turn."""
    program = "from kernelcast.cli.main import main; main()"
    layout = {"pp": 8, "tp": 8, "dp": 2, "micro-batch": 1, "micro-batches": 32, "gpus-per-node": NODE}
    predict = [sys.executable, "-c", program, "predict", "--bundle", str(bundle), "--model", MODEL, "--json"]
    predict += [text for name, value in layout.items() for text in (f"--{name}", str(value))]
    bare = [sys.executable, "-c", "import onnxruntime"]
    process(predict)  # both find their files in the system's cache
    pairs = [(process(bare), process(predict)) for _ in range(max(5, bench.repeat))]
    (bare_s, bare_mb), (predict_s, predict_mb) = (
        (statistics.median(one[0] for one in found), max(one[2] for one in found))
        for found in zip(*pairs, strict=True)
    )
    ratio = f"{predict_s / bare_s:.1f} × the time, {predict_mb / bare_mb:.1f} × the memory"
    what = "`kernelcast predict`: start, load, one prediction"
    return table(
        ("cold, as a command", "seconds", "peak memory", "against the bare import"),
        [
            ("`import onnxruntime` alone", f"{bare_s:.2f}", f"{bare_mb:.0f} MB", ""),
            (what, f"{predict_s:.2f}", f"{predict_mb:.0f} MB", ratio),
        ],
    )


def warm(bench: Bench, bundle: Path) -> Iterator[str]:
    """Predictions on an estimator that has its models loaded."""
    found = bench.part("warm", bundle=bundle)
    rows = [
        (what, *(f"{found[name] * 1e3:.2f} ms" for name in (kind, f"{kind}_bare")))
        for kind, what in (
            ("closed", "a new configuration, closed form"),
            ("simulated", "a new configuration, simulated 1F1B, pp 16, m 64"),
        )
    ]
    again = ("the same configuration again", f"{found['again'] * 1e6:.0f} µs", "")
    return table(("warm estimator", "median time", "without the interval"), [*rows, again])


def searches(bench: Bench, bundle: Path, calculon: Path | None) -> Iterator[str]:
    """Layouts per second, by closed form and simulated."""
    peer, source = CALCULON_SAID, "as reported, not measured in this run"
    if calculon is not None:
        peer, source = round(measure_calculon(calculon)), "measured in this run"
    rows = []
    for title, way in (
        ("closed form", {"timeline": "closed-form"}),
        ("simulated, with a lower bound ruling layouts out", {"timeline": "simulate"}),
        ("simulated, every layout", {"timeline": "simulate", "prune": False}),
    ):
        found = bench.part("search", bundle=bundle, **SEARCH, **way)
        rate = found["layouts"] / found["seconds"]
        counts = (f"{found[name]:,.0f}" for name in ("layouts", "simulated"))
        rows.append((f"search, {title}", *counts, f"{rate:,.0f}", f"{rate / peer:,.0f} ×"))
    rows.append((f"Calculon (analytical), {source}", "", "", f"{peer:,}", "1 ×"))
    return table(("one core", "layouts", "of them simulated", "layouts/s", "against Calculon"), rows)


def growth(bench: Bench, bundle: Path) -> list[str]:
    """Cost against work."""
    lines: list[str] = []
    for title, name_of, spaces in (
        ("cost against layouts", "{} layouts", SIZES),
        ("cost against devices", "{} devices", DEVICES),
        ("mixtures of experts, 78 GiB per device", "DeepSeek-V3 on {}", MIXTURES),
    ):
        rows = []
        for name, space in spaces.items():
            for way, timeline in (("closed form", "closed-form"), ("simulated", "simulate")):
                found = bench.part("search", bundle=bundle, **space, timeline=timeline)
                layouts, seconds = found["layouts"], found["seconds"]
                rows.append(
                    (
                        f"{name_of.format(name)}, {way}",
                        f"{layouts:,.0f}",
                        f"{seconds:.3f}",
                        f"{layouts / seconds:,.0f}",
                        f"{seconds / layouts * 1e6:.1f} µs",
                        *(f"{found[part]:.0f} MB" for part in ("peak_mb", "added_mb")),
                    )
                )
        heads = (title, "layouts", "seconds", "layouts/s", "per layout", "peak memory", "of it, added")
        lines += ["", *table(heads, rows)]
    return lines[1:]


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
    rate = re.search(r"Calculation rate: ([\d.]+)", done.stdout + done.stderr)
    if rate is None:
        raise SystemExit(f"calculon in {folder}: prints no calculation rate")
    return float(rate[1])


def measure_warm(bundle: str) -> dict[str, float]:
    """Median seconds per prediction, for new layouts and for a repeated layout."""
    loaded, model = Estimator.load(Path(bundle)).bundle, load_model(MODEL)
    kinds = {
        "closed": ("closed-form", True),
        "simulated": ("simulate", True),
        "closed_bare": ("closed-form", False),
        "simulated_bare": ("simulate", False),
    }
    estimators = {name: Estimator(loaded) for name in kinds}
    for one in estimators.values():
        one.predictor.load()

    def asked(name: str, micro_batch: int) -> Callable[[], object]:
        # Another micro-batch has other workloads: no cached time serves it.
        layout = Parallelism(pp=16, tp=8, dp=4, micro_batch=micro_batch, micro_batches=64, zero=1)
        timeline, interval = kinds[name]
        return partial(
            estimators[name].predict,
            model=model,
            parallelism=layout,
            cluster=Cluster(gpus_per_node=NODE),
            timeline=timeline,  # type: ignore[arg-type]
            interval=interval,
        )

    times = [{name: seconds_of(asked(name, first)) for name in kinds} for first in range(1, 41)]
    answers = {name: statistics.median(one[name] for one in times[5:]) for name in kinds}
    return answers | in_turn({"again": asked("simulated", 40)}, 200, warm_up=1)


def measure_search(bundle: str, **asked: object) -> dict[str, float]:
    """Seconds and counts of a search, memory unlimited by default; models are loaded before."""
    from kernelcast.runtime.request.field_types import NumberSet
    from kernelcast.runtime.search.question import Question
    from kernelcast.runtime.search.space import Space
    from kernelcast.runtime.search.sweep import sweep

    of_question = ("timeline", "prune", "gpu_memory_bytes")
    options = {name: asked.pop(name) for name in of_question if name in asked}
    # As JSON gives them: lists, and sets of numbers as texts.
    limits = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
    if "virtual_stages" in limits:
        limits["virtual_stages"] = NumberSet.parse(str(limits["virtual_stages"]))
    model = load_model(str(limits.pop("model", MODEL)))
    space = Space(model=model, gpus_per_node=NODE, **limits)  # type: ignore[arg-type]
    estimator = Estimator.load(Path(bundle))
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


@script(
    page="performance.md",
    repeat=5,
    options={
        "--bundle": {"type": Path, "help": "a bundle with every operator that a GPT calls"},
        "--calculon": {"type": Path, "metavar": "FOLDER"},
    },
    warm=measure_warm,
    search=measure_search,
)
def main(bench: Bench) -> None:
    given = bench.given
    with tempfile.TemporaryDirectory() as folder:
        bundle, name = given.bundle, "a bundle of a user"
        if bundle is None:
            bundle, name = Path(folder) / f"{SHIPPED}.kcast", f"the bundle of {SHIPPED}"
            write_shipped_bundle(bundle)
        regressors = len(Estimator.load(bundle).bundle.entries)
        about = f"{name} of {bundle.stat().st_size / 1e6:.1f} MB, {regressors} regressors"
        lines = [f"{bench.machine('numpy', 'onnxruntime')}; {about}; model {MODEL}."]
        print(lines[0])
        for measured in (
            lambda: cold(bench, bundle),
            lambda: warm(bench, bundle),
            lambda: searches(bench, bundle, given.calculon),
            lambda: growth(bench, bundle),
        ):
            found = ["", *measured()]
            print("\n".join(found), flush=True)
            lines += found
    bench.publish("\n".join(lines), is_printed=False)
