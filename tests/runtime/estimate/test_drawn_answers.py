"""All that is said of drawn steps on hardware that ships, but operators: `drawn_answers.txt`.

WRITE_DRAWN_ANSWERS=1 pytest THIS_FILE writes it again, also after a bundle was trained again; tests/golden has the
times of more layouts. Numbers have four digits, ends of intervals and what follows from them two.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import Cluster, Estimate, Estimator, KernelcastError, Parallelism, load_model
from kernelcast.runtime.estimate.doubts import origins, other_software, software_warning, warning_lines
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.estimate.fitting_changes import faster_changes, fitting_changes
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.operators import OPERATORS
from tests.runtime.frameworks.test_drawn_layouts import drawn_layout

TEXT = Path(__file__).with_name("drawn_answers.txt")
HARDWARE = ("a100-sxm", "h100-sxm", "b200-sxm", "a100-pcie", "h100-pcie", "gh200", "mi300x", "h200-sxm")
STACKS = (None, "torchtitan", "megatron-core", None, "fsdp-composer", "none", "megatron-bridge")
FABRICS = (None, "h100-400g", None, "perlmutter-measured", "gb200-nvl72", None)
MODELS = (
    "llama-3-8b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "gpt-20b",
    "gemma-2-9b",
    "qwen3-0.6b",
    "llama-2-7b",
)
UNSURE = re.compile("interval|low|high|probability|reason|grade")


@cache
def estimator(hardware: str, stack: str | None) -> Estimator:
    return Estimator.load(hardware, stack=stack)


def short(value: Any, *, digits: int = 4) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if abs(value) > 1e-9 else 0.0  # rounding
    if isinstance(value, dict):
        return {
            name: short(one, digits=2 if UNSURE.search(str(name)) else digits) for name, one in value.items()
        }
    return [short(one, digits=digits) for one in value] if isinstance(value, list | tuple) else value


def of_estimate(random: Random, asked: Estimator, estimate: Estimate) -> Iterator[str]:
    found = estimate.to_dict()
    for name in ("operators", "model", "parallelism", "format", "warnings"):
        del found[name]
    provenance, stages = found.pop("provenance"), found.pop("stages")
    yield from (f"{name}: {short(value)}" for name, value in found.items() if name != "memory")
    told = {name: value for name, value in provenance.items() if value and not name.endswith("digest")}
    yield f"provenance: {short(told)}"
    yield f"stages: {short(stages[0])} {short(stages[-1])}"
    memory = found["memory"]
    ends = {name: [memory["stages"][row][name] for row in (0, -1)] for name in memory["stages"][0]}
    yield f"memory: {short({**memory, 'stages': ends})}"
    yield from warning_lines(estimate.doubts)
    yield f"{origins(estimate.warnings)} {short(estimate.doubtful_share)} {short(estimate.hfu)}"
    yield software_warning(
        other_software("torch 2.9, FlashAttention 9", estimate.provenance), estimate.provenance
    )
    name = random.choice([*OPERATORS, "qkv", "Linear1"])
    try:
        explained = explain_operator(estimate, asked.bundle, name)
        yield from (f"{name}: {short(one.to_dict())}" for one in explained[:3])
    except KernelcastError as error:
        yield f"{name}: {error}"
    runs = training(estimate, 10**12, useful=random.choice([1.0, 0.7]), price_per_gpu_hour=2.5)
    yield f"training: {short(runs.to_dict())}"


def of_changes(asked: Estimator, estimate: Estimate) -> Iterator[str]:
    framework = "megatron-lm" if estimate.parallelism.dp > 2 else None
    for name, found in (("fits", fitting_changes(asked, estimate, fit_probability=0.9)),
                        ("faster", faster_changes(asked, estimate, framework=framework))):  # fmt: skip
        yield from (
            f"{name}: {one.fields_text} {one.devices_text} {one.step_time_s:.4g} s {one.memory_bytes:,}"
            for one in found
        )


def lines() -> Iterator[str]:
    random = Random(4)
    for place in range(28):
        hardware, stack = HARDWARE[place % len(HARDWARE)], STACKS[place % len(STACKS)]
        model = load_model(MODELS[place // 2 % len(MODELS)])
        layout: Parallelism = drawn_layout(random, model)
        if layout.offload_optimizer and place % 5:
            layout = replace(layout, host_memory_gb_per_s=50.0)
        yield f"*** {place} {model.name} on {hardware} {stack}: {layout.degrees}, {layout.schedule}"
        try:
            asked = estimator(hardware, stack)
            estimate = asked.predict(
                model=model, parallelism=layout, timeline="closed-form" if place % 7 in (0, 5) else "simulate",
                cluster=Cluster(gpus_per_node=8) if place % 3 else None, fabric=FABRICS[place % len(FABRICS)],
                bucket_entries=random.choice([50_000_000, 5_000_000]), interval=place % 4 != 1,
                gpu_memory_bytes=random.choice([None, 24 << 30]),
            )  # fmt: skip
        except KernelcastError as error:
            yield f"{type(error).__name__}: {error}"
            continue
        yield from of_estimate(random, asked, estimate)
        if place % 4 == 0:
            yield from of_changes(asked, estimate)


def test_drawn_answers() -> None:
    printed = "\n".join(lines()) + "\n"
    if "WRITE_DRAWN_ANSWERS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
