"""What drawn layouts are as files, and what is read of files with a setting changed: `drawn_layouts.txt`.

WRITE_DRAWN_LAYOUTS=1 pytest THIS_FILE writes it again.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import KernelcastError, ModelConfig, load_model
from kernelcast.runtime.frameworks.layout_files import FRAMEWORKS, LayoutFile, read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.frameworks.software import frameworks, stacks_that_run
from kernelcast.runtime.request.fields import LAYOUT, MODEL
from kernelcast.runtime.request.layout import Parallelism

TEXT = Path(__file__).with_name("drawn_layouts.txt")
MODELS = (
    "llama-3-8b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "gpt3-175b",
    "gemma-2-9b",
    "qwen3-30b-a3b",
    "nemotron-h-8b",
)
CHOICES: dict[str, list[Any]] = {
    "pp": [1, 2, 4], "tp": [1, 2, 4], "dp": [1, 2, 4, 6], "cp": [1, 1, 2], "ep": [1, 1, 2], "expert_tp": [1, 1, 2],
    "micro_batch": [1, 2, 3], "micro_batches": [8, 16], "schedule": ["1f1b", "gpipe", "interleaved", "zero_bubble",
    "zb_v", "dualpipe_v"], "zero": [0, 1, 2, 3], "recompute": ["none", "selective", "full"],
    "recompute_modules": [("core_attn",), ("mlp", "layernorm"), ("core_attn", "mlp"), ("moe_act",)],
    "recompute_layers": [0, 2], "recompute_together": [1, 2], "dropout": [0.0, 0.1], "sequence_parallel": [True, False],
    "vocabulary_multiple": [1, 128], "offload_optimizer": [0.0, 0.5, 1.0], "layer_split": ["even", "balanced"],
}  # fmt: skip
WRONG = ["0", "-1", "1.5", "x", '"x"', "true", "[1, 2]", "3", "7", "1000000000000", "full", "none"]


def drawn_layout(random: Random, model: ModelConfig) -> Parallelism:
    """Of the fields above, and one or two of all others; drawn again until it fits the model."""
    while True:
        asked = {
            name: random.choice(CHOICES[name]) for name in ("pp", "tp", "dp", "micro_batch", "micro_batches")
        }
        asked |= {name: random.choice(CHOICES[name]) for name in random.sample(sorted(CHOICES), 7)}
        for name in random.sample(sorted(LAYOUT.keys() - CHOICES.keys()), 2):
            kind = LAYOUT[name].kind
            values = [*kind.schema.get("enum", ()), True, 1, 2, 0.5]
            asked[name] = random.choice(
                [one for one in values if kind.accepts(one)] or [LAYOUT[name].default]
            )
        if asked.get("schedule") in ("interleaved", "zb_v", "dualpipe_v"):
            asked["virtual_stages"] = 2
        try:
            layout = Parallelism(**asked)
            layout.check(model)
        except (KernelcastError, TypeError):
            continue
        return layout


def of_request(file: LayoutFile, model: ModelConfig, given: dict[str, Any]) -> str:
    try:
        found = file.request(model, given, 64 if not given else None)
    except KernelcastError as error:
        return f"{type(error).__name__}: {error}"
    usual = {name: field.default for name, field in LAYOUT.items()}
    said = " ".join(f"{name}={value}" for name, value in found.fields.items() if value != usual.get(name))
    places = " ".join(f"{one.field}:{one.line}" for one in found.sources)
    return f"{said}; notes {found.notes}; lines {places}"


def changed(random: Random, text: str) -> str:
    """With the value of a setting replaced, a line left out, or a line twice."""
    places = [*re.finditer(r"(?<=[ =:])-?\w[\w.-]*(?=,?(?:\\?$| \\))", text, re.MULTILINE)]
    if random.random() < 0.8 and places:
        place = random.choice(places)
        return text[: place.start()] + random.choice(WRONG) + text[place.end() :]
    lines = text.splitlines()
    row = random.randrange(len(lines))
    lines[row : row + 1] = [] if random.random() < 0.5 else [lines[row], lines[row]]
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Of a model what a file must not leave out, and what differs from the defaults."""
    if not isinstance(value, ModelConfig):
        return str(value)
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    return str({name: one for name, one in found.items() if one != getattr(MODEL.get(name), "default", None)})


def read(text: str, model: ModelConfig) -> Iterator[str]:
    try:
        file = read_layout_text(text, "FILE")
    except KernelcastError as error:
        yield f"  {type(error).__name__}: {error}"
        return
    yield f"  alone: {of_request(file, model, {})}"
    yield f"  given: {of_request(file, model, {'dp': 2, 'micro_batches': 4})}"
    for of_file in (file.trained, file.sequence_length, file.model):
        try:
            said = shown(of_file())
        except KernelcastError as error:
            said = f"{type(error).__name__}: {error}"
        yield f"  {of_file.__name__}: {said}"
    yield f"  {file.name} {file.model_name} {file.model_key} {file.unread}"


def of_files() -> Iterator[str]:
    random = Random(8)
    for place in range(28):
        model = load_model(MODELS[place % len(MODELS)])
        layout = drawn_layout(random, model)
        for name in FRAMEWORKS:
            yield f"*** {place} {model.name} {name}"
            try:
                dtype = random.choice(["bfloat16", "float8_e4m3fn", "float32"])
                job = Job(model=model, parallelism=layout, gpus_per_node=random.choice([4, 8]), dtype=dtype)
                written = write_layout(name, job)
            except KernelcastError as error:
                yield f"{type(error).__name__}: {error}"
                continue
            if place < 10:
                yield written.text
            yield f"{written.title}: {written.warning}"
            yield from (before := [*read(written.text, model)])
            for _ in range(3):
                other = changed(random, written.text)
                yield f"- {sorted({*other.splitlines()} ^ {*written.text.splitlines()})}"
                yield from (line for line in read(other, model) if line not in before)


def of_software() -> Iterator[str]:
    random = Random(9)
    for place in range(30):
        layout = drawn_layout(random, load_model("llama-3-8b"))
        values = {name: getattr(layout, name) for name in LAYOUT}
        different = {name: value for name, value in values.items() if value != LAYOUT[name].default}
        yield f"{place} {different}"
        for hardware in (["h100-sxm"], ["a100-sxm", "h100-sxm"], ["mi300x"]):
            stacks = stacks_that_run(values, hardware)
            yield f"  stacks on {hardware}: {[(name, stack.name, dict(stack.options)) for name, stack in stacks]}"
        for name, software in frameworks().items():
            try:
                found, notes = software.as_run(values)
            except KernelcastError as error:
                yield f"  {name}: {error}"
                continue
            changes = {key: value for key, value in found.items() if value != values.get(key)}
            yield f"  {name}: {software.runs(values)} {changes} {notes}"


def test_drawn_layouts() -> None:
    printed = "\n".join((*of_files(), *of_software())) + "\n"
    if "WRITE_DRAWN_LAYOUTS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
