"""Whole answers to goals on hardware that ships, and what notebooks show of them: `drawn_goals.txt`, to four digits.

WRITE_DRAWN_GOALS=1 pytest THIS_FILE writes it again, also after a bundle was trained again.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kernelcast.runtime import Estimator, KernelcastError, load_model, search_layouts
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.intent.answer import answer
from kernelcast.runtime.intent.best import read_open_request
from kernelcast.runtime.intent.comparison import compare
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.search.choices import choices
from tests.runtime.estimate.test_drawn_answers import short

TEXT = Path(__file__).with_name("drawn_goals.txt")
LEFT_OUT = (
    "operators",
    "model",
    "provenance",
    "stages",
    "memory",
    "warnings",
    "warning_groups",
    "peak",
    "seconds",
)
# Fixed as far as the goal leaves it: a search of everything takes seconds.
FEW = {"pp": 1, "cp": 1, "schedule": "1f1b", "zero": 1, "recompute": "none", "sequence_parallel": False}
GOALS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("qwen3-0.6b", {"gpus": 4, "tokens": 10**10}, {"global_batch": 8}),
    ("qwen3-0.6b", {"days": 40.0, "tokens": 10**10}, {"global_batch": 32, **FEW, "micro_batch": 1}),
    ("qwen3-0.6b", {"days": 0.01, "tokens": 10**12}, {"global_batch": 32, **FEW, "micro_batch": 1}),
    ("llama-3.2-1b", {"gpus": 2, "largest": "global-batch"}, {**FEW, "tp": 1}),
    ("llama-3.2-1b", {"gpus": 2, "largest": "sequence-length"}, {"global_batch": 2, **FEW, "tp": 2}),
    ("llama-3-8b", {}, {"tp": 1, "dp": 16, "micro_batch": 4, "micro_batches": 2, "gpus_per_node": 8}),
    ("llama-3-8b", {"samples": 10**5, "epochs": 2.0, "sample_tokens": 700.0}, {"tp": 8, "micro_batch": 1,
     "micro_batches": 4, "framework": "megatron-lm"}),
]  # fmt: skip


@cache
def estimator(hardware: str) -> Estimator:
    return Estimator.load(hardware)


def plain(value: Any) -> Any:
    """Without long parts, and of a layout what is not usual."""
    if isinstance(value, dict):
        if "world_size" in value:
            return {
                name: value[name]
                for name in ("pp", "tp", "dp", "micro_batch", "micro_batches", "schedule", "zero")
            }
        return {name: plain(one) for name, one in value.items() if name not in LEFT_OUT}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def of_goals() -> Iterator[str]:
    for place, (model, wished, values) in enumerate(GOALS):
        hardware = ("h100-sxm", "a100-sxm")[place % 2]
        fabric = find_fabric("h100-400g") if place in (0, 5) else None
        yield f"*** {model} on {hardware}: {wished} {values}"
        try:
            wish = Wish(**wished)
            wish.check(values, (hardware,))
            found = answer(
                estimator(hardware),
                wish,
                values,
                model=load_model(model),
                fabric=fabric,
                price_per_gpu_hour=2.0,
            )
        except KernelcastError as error:
            yield f"{type(error).__name__}: {error}"
            continue
        yield from (f"{name}: {short(value)}" for name, value in plain(found.to_dict()).items())
        yield from re.sub(r"\s*<[^>]*>\s*", "\n", found.estimate._repr_html_()).split("\n")


def of_comparisons() -> Iterator[str]:
    values = {"global_batch": 8, "gpus": 2, **FEW}
    for rank_by, more in (("time", {}), ("cost", {"tokens": 10**9, "prices": {"h100-sxm": 3.0, "": 1.0}})):
        wish = Wish(gpus=2, rank_by=rank_by, **more)  # type: ignore[arg-type]
        requests = {
            name: read_open_request(values, model=load_model("qwen3-0.6b"), estimator=estimator(name))
            for name in ("a100-sxm", "h100-sxm", "b200-sxm")
        }
        yield f"{short(plain(compare(requests, wish).to_dict()))}"


def of_choices() -> Iterator[str]:
    for model, fields in (("llama-3.2-1b", {"gpus": 8, "global_batch": 12, "tp": 2}),
                          ("olmoe-1b-7b", {"gpus": 4, "global_batch": 8, "ep": 2})):  # fmt: skip
        found = search_layouts(estimator("h100-sxm"), model, top=2, zero=1, cp=1, recompute="none", **fields)
        yield from re.sub(r"\s*<[^>]*>\s*", "\n", found._repr_html_()).split("\n")
        assert found.best is not None
        layout = found.best.parallelism
        bundle = estimator("h100-sxm").bundle
        for usable in (None, 24 << 30):
            several = choices(
                layout, load_model(model), bundle, usable_bytes=usable, simulated=usable is None
            )
            for name, ones in several.items():
                for one in ones:
                    degrees = one.layout and one.layout.degrees
                    yield f"{name}: {one.value} {degrees} {one.problem} {one.memory_bytes} {one.fits}"


def test_drawn_goals() -> None:
    printed = (
        "\n".join(line for line in (*of_goals(), *of_comparisons(), *of_choices()) if line.strip()) + "\n"
    )
    if "WRITE_DRAWN_GOALS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
