"""Runs files that are drawn, read and scored: drawn_scores.txt, to five digits; WRITE_DRAWN_SCORES=1 writes it again.

Fields are left out, unknown or wrong in some of them. Intervals follow from steps of others and are left out.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import Estimator, KernelcastError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.stack import shipped_stacks, stack_named
from kernelcast.validate.comparison import compare_runs
from kernelcast.validate.run_steps import layout_columns
from kernelcast.validate.runs import COMPONENT_NAMES, RunsFile
from kernelcast.validate.steps import score_steps

TEXT = Path(__file__).with_name("drawn_scores.txt")
LAYOUTS: list[dict[str, Any]] = [
    {}, {"dp": 4}, {"pp": 2, "micro_batches": 4}, {"tp": 2, "dp": 2, "sequence_parallel": True}, {"dp": 8, "zero": 3},
    {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}, {"recompute": "full", "dp": 2}, {"cp": 2},
    {"dp": 2, "lora_rank": 4}, {"offload_activations": 0.5}, {"mp": 2}, {"sequence_length": 65536},
    {"fp8_recipe": "mxfp8"},
]  # fmt: skip
WRONG: list[Any] = ["", 0, -1, 1.5, "x", True, [], {}, [1, 2, 3], 1e300]
CHANGED: list[dict[str, Any]] = [{}, {}, {"exposed_share": 1.0}, {"recompute": "full"}, {"shard_group": 3}]
INTERVALS = ("interval_s", "is_inside", "inside", "median_half_width")


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else repr(value)
    )


def document(drawn: Random) -> dict[str, Any]:
    """Two models and some runs."""
    size = {"hidden_size": 64, "sequence_length": 32, "attention_heads": 4, "vocabulary_size": 1000}
    found: dict[str, Any] = {
        "site": "Example", "hardware": "two devices", "source": "A. Author, 2026",
        "models": {"small": size | {"layers": 4}, "of experts": size | {
            "layers": 2, "activation": "swiglu", "biases": "none", "experts": 4, "experts_per_token": 2,
            "expert_size": 32,
        }},
        "defaults": {"model": "small", "pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2},
        "runs": [],
    }  # fmt: skip
    more = {
        "device": "a100-sxm",
        "fabric": "a100-1600g",
        "stack": "it",
        "licence": "CC0",
        "left_out": ["one: odd"],
    }
    found |= {name: value for name, value in more.items() if drawn.random() < 0.4}
    for _ in range(drawn.choice([1, 3, 5])):
        run = {"measured_s": round(10 ** drawn.uniform(-3.5, -2), 6), **drawn.choice(LAYOUTS)}
        if drawn.random() < 0.06:
            run |= drawn.choice([{"tp": 3}, {"pp": 9}, {"dp": 3, "ep": 2}])
        options: dict[str, Any] = {
            "model": drawn.choice(["of experts"] * 3 + ["nothing"]), "name": "a name", "flag": "disturbed",
            "mean_s": round(run["measured_s"] * drawn.choice([1.1, 1.6]), 6),
            "published_error": drawn.choice([-0.1, 0.25]),
            "memory_gib": drawn.choice([0.01, [0.01] * run.get("pp", 1)]), "gpus_per_node": 4,
            "bucket_entries": 1000, "measured_components": {drawn.choice(COMPONENT_NAMES): 1e-4},
            "published_components": {drawn.choice(COMPONENT_NAMES): 0.1}, "dtype": "float32",
        }  # fmt: skip
        chance = {"dtype": 0.02}
        found["runs"].append(
            run | {n: one for n, one in options.items() if drawn.random() < chance.get(n, 0.25)}
        )
    if drawn.random() < 0.45:
        tables = [found, found["defaults"], *found["runs"], *found["runs"], found["models"]["small"]]
        table = drawn.choice(tables)
        name = drawn.choice([*table, "odd"])
        if drawn.random() < 0.3:
            table.pop(name, None)
        else:
            table[name] = drawn.choice(WRONG)
    return found


def flat(value: Any, name: str = "") -> Iterator[str]:
    """What is not empty, by its path."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in INTERVALS:
                yield from flat(one, f"{name}.{key}" if name else key)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple):
        for number, one in enumerate(value):
            yield f"{name}[{number}]: " + " ".join(flat(one))
    elif value not in (None, "", [], (), {}, False):
        yield f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"


def scored(path: Path, drawn: Random, bundle: Path) -> Iterator[str]:
    file = RunsFile.read(path)
    yield from flat({name: one for name, one in asdict(file).items() if name not in ("digest", "runs")})
    yield f"publisher={file.publisher}"
    for run in file.runs:
        yield f"run {run.label}: {run.kind} {run.is_steady} {' '.join(flat(layout_columns(run.parallelism)))}"
    stack = stack_named(drawn.choice(shipped_stacks())) if drawn.random() < 0.3 else None
    timeline, changed = drawn.choice(["simulate", "closed-form"]), drawn.choice(CHANGED)
    yield f"asked: {timeline} {changed} {stack and stack.name}"
    [found] = score_steps([path], bundle=str(bundle), stack=stack, timeline=timeline, changed=changed)  # type: ignore[arg-type]
    told = found.to_dict()
    steps = [{name: one[name] for name in one if name not in layout_columns(run.parallelism)}
             for run, one in zip(file.runs, told.pop("steps"), strict=True)]  # fmt: skip
    told = {name: one for name, one in told.items() if "digest" not in name and name not in asdict(file)}
    defaults = asdict(file.runs[0].parallelism)
    yield from flat(told | {"steps": [{n: v for n, v in one.items() if n not in defaults} for one in steps]})
    estimator = Estimator.load(bundle)
    for run in file.runs:
        try:
            [both] = compare_runs(estimator, [run], lambda run, estimate: {"PP_P2P": 1e-5})
        except KernelcastError as error:
            yield f"both ways: {error}"
        else:
            told = both.to_dict()
            parts = {n: v for n, v in told.items() if n not in ("label", "model", "warnings", "components")}
            measured = [one for one in told["components"] if one["measured_s"] or one["published_error"]]
            yield "both ways: " + " ".join(flat(parts | {"components": measured}))


def everything(folder: Path, make_bundle: Callable[..., Path]) -> str:
    gpu = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=2)
    bundle, path, lines = make_bundle({"gemm": 30.0}, compute=[gpu]), folder / "site.toml", list[str]()
    for seed in range(50):
        drawn = Random(seed)
        given = document(drawn)
        runs, heads = given.pop("runs", None), given.items()
        text = "".join(f"{toml(name) if name == '' else name} = {toml(one)}\n" for name, one in heads)
        text = re.sub(r"\bof experts\b(?= =)", '"of experts"', text)
        if isinstance(runs, list) and all(isinstance(one, dict) for one in runs):
            tables = ("".join(f"{name} = {toml(one)}\n" for name, one in run.items()) for run in runs)
            text += "".join(f"[[runs]]\n{one}" for one in tables)
        elif runs is not None:
            text += f"runs = {toml(runs)}\n"
        path.write_text(text, encoding="utf-8")
        lines.append(f"{seed}:")
        try:
            lines += scored(path, drawn, bundle)
        except KernelcastError as error:
            lines.append(str(error))
    # What is known grows with kernelcast.
    said = (re.sub(r"(known are .{20}).*", r"\1", line).rstrip() for line in lines)
    return "\n".join(said).replace(str(folder), "HERE") + "\n"


def test_files_that_are_drawn(tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    found = everything(tmp_path, make_bundle)
    if "WRITE_DRAWN_SCORES" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
