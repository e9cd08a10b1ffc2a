"""What drawn searches and goals find or refuse, on hardware that ships: `drawn_searches.txt`, to four digits.

WRITE_DRAWN_SEARCHES=1 pytest THIS_FILE writes it again, also after a bundle was trained again.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import Estimator, KernelcastError, predict, search_layouts
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.search.result import SearchResult, layout_text

TEXT = Path(__file__).with_name("drawn_searches.txt")
CHOICES: dict[str, list[Any]] = {
    "tp": [1, 2, (1, 2), 3], "pp": [1, 2, (1, 4)], "dp": [1, 4], "cp": [1, 2], "ep": [1, 2], "micro_batch": [1, (1, 2)],
    "schedules": ["1f1b", "interleaved", ("1f1b", "zero_bubble")], "zero": [0, 1, (1, 3)], "sequence_parallel": [True],
    "recompute": ["none", "full", ("none", "selective")], "virtual_stages": [1, 2], "micro_batches": [4, 8],
    "gpu_memory_bytes": [2 << 30, 12 << 30, 24 << 30], "rank_by": ["step-time", "tokens-per-gpu"], "top": [1, 3],
    "fit_probability": [0.5, 0.99], "timeline": ["closed-form"], "gpus_per_node": [2, 4], "global_batch": [12, 32],
    "framework": ["megatron-lm", "torchtitan"], "fabric": ["h100-400g"], "layer_split": ["balanced"],
    "gpus": [1, (2, 4), 6], "reserved_memory_bytes": [0, 1 << 29], "sequence_length": [1024, 8192],
}  # fmt: skip
MODELS = ("qwen3-0.6b", "olmoe-1b-7b", "llama-3.2-1b", "gemma-3-1b")
GOALS: dict[str, list[Any]] = {
    "gpus": [8], "tokens": [10**9], "samples": [10**5], "epochs": [2.0], "sample_tokens": [500.0, 1e6], "days": [3.0],
    "packing_efficiency": [0.7], "largest": ["global-batch", "sequence-length"], "rank_by": ["cost", "days", "energy"],
    "prices": [{"": 2.0}, {"h100-sxm": 3.0}, {"x": 1.0}],
}  # fmt: skip


@cache
def estimator(hardware: str) -> Estimator:
    return Estimator.load(hardware)


def shown(found: SearchResult) -> Iterator[str]:
    counts = found.to_dict(tokens=10**9, price_per_gpu_hour=2.0)
    numbers = [counts[name] for name in ("layouts", "out_of_memory", "unanswered", "evaluated")]
    yield f"  {numbers} {found.problems}"
    yield f"  {counts['invalid']}"
    yield f"  { ({name: value for name, value in counts['asked'].items() if value}) }"
    for name, answers in (("top", found.top), ("front", found.front)):
        for one in answers[:4]:
            days = one.to_dict(tokens=10**9)["days"]
            yield (
                f"  {name}: {layout_text(one.parallelism)}: {one.step_time_s:.4g} s, {one.tokens_per_s_per_gpu:.4g}/s, "
                f"{one.memory_bytes:,} bytes, {days:.4g} days, {one.estimate.cluster}"
            )
    smallest = found.smallest
    least = smallest and (layout_text(smallest.parallelism), smallest.memory_bytes, smallest.what_fits)
    yield f"  {least} {found.why_nothing()}"


def of_searches() -> Iterator[str]:
    random = Random(10)
    for place in range(15):
        hardware, model = ("h100-sxm", "a100-sxm", "mi300x")[place % 3], MODELS[place % len(MODELS)]
        asked = {"gpus": random.choice([2, 4]), "global_batch": 8, "top": 3, "zero": 1}
        asked |= {
            name: random.choice(CHOICES[name])
            for name in random.sample(sorted(CHOICES), random.randint(3, 6))
        }
        yield f"*** {place} {model} on {hardware}: {asked}"
        try:
            yield from shown(search_layouts(estimator(hardware), model, **asked))
        except KernelcastError as error:
            yield f"  {type(error).__name__}: {error}"
        if place % 3:
            continue
        fields = {name: value[0] if isinstance(value, tuple) else value for name, value in asked.items()}
        fields = {
            name: value for name, value in fields.items() if name not in ("top", "rank_by", "schedules")
        }
        try:
            found = predict(estimator(hardware), model, **fields)
            yield f"  predicted: {layout_text(found.parallelism)}: {found.step_time_s:.4g} s"
        except KernelcastError as error:
            yield f"  predicted: {type(error).__name__}: {error}"


def of_wishes() -> Iterator[str]:
    random = Random(11)
    for _ in range(120):
        asked = {
            name: random.choice(GOALS[name]) for name in random.sample(sorted(GOALS), random.randint(1, 4))
        }
        hardware = random.choice([(), ("h100-sxm",), ("h100-sxm", "a100-sxm")])
        values = random.choice([{"global_batch": 8}, {}, {"micro_batch": 1, "micro_batches": 2}, {"global_batch": 8,
                                "sequence_length": 64}])  # fmt: skip
        try:
            wish = Wish(**asked)
            said = f"{wish.is_open} {wish.has_data} {wish.price('h100-sxm')} {wish.data(4096)} {wish.steps(8, 4096)}"
            wish.check(values, hardware)
        except KernelcastError as error:
            said = f"{type(error).__name__}: {error}"
        yield f"{asked} of {hardware} with {values}: {said}"


def test_drawn_searches() -> None:
    printed = re.sub(r"'seconds': [\d.e-]+", "", "\n".join((*of_searches(), *of_wishes())) + "\n")
    if "WRITE_DRAWN_SEARCHES" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
