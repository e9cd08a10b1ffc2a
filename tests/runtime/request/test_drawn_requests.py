"""How fields, layouts, models and others' configurations are read or refused: `drawn_requests.txt`.

WRITE_DRAWN_REQUESTS=1 pytest THIS_FILE writes it again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import KernelcastError, ModelConfig, Parallelism, load_model
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.request.fields import LAYOUT, MEMORY, MODEL, REQUEST, SEARCH, WISHES
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.request.models import built_in_name, built_in_names
from kernelcast.runtime.request.models.huggingface import from_huggingface
from tests.runtime.request.models.released import BUILT_IN, PUBLISHED

TEXT = Path(__file__).with_name("drawn_requests.txt")
VALUES: list[Any] = [
    0, 1, 2, 3, 7, 101, 20_000, 2**31, -1, 0.5, 1.5, 1e6, True, False, None, "", "1", "1.5", "1e3", "2k",
    "3B", "4GiB", "x", "full", "none", "interleaved", "1,2,3", "core_attn,mlp", [1, 2], ["qkv"], {"a": 1},
    float("nan"), "1_000", "true", "700W", "M-E", "*", "all-linear", "999999999999999999999",
]  # fmt: skip
MODELS = (
    "llama-3-8b",
    "mixtral-8x7b",
    "deepseek-v3",
    "nemotron-h-8b",
    "gemma-3-4b",
    "qwen3-next-80b-a3b",
    "gpt3-175b",
)


def said(read: Any, *values: Any, **named: Any) -> str:
    try:
        return str(read(*values, **named))
    except KernelcastError as error:
        return f"{type(error).__name__}: {error}"[:300]


def of_fields() -> Iterator[str]:
    for field in {**REQUEST, **MODEL, **MEMORY, **SEARCH, **WISHES}.values():
        read = {str(value): said(field.kind.parse, field.name, value) for value in VALUES}
        refused = [one for one in read.values() if "Error" in one]
        yield f"{field.option} {field.unit} {field.old} {field.is_required} {json.dumps(field.schema, sort_keys=True)}"
        yield f"  { ({value: one for value, one in read.items() if 'Error' not in one}) }"
        yield f"  {len(refused)} refused: {refused[:1]}"
    for text in ("1", "1-4", "1,2,8-", "-3", "4-2", "x", "1,,2", "1-2-3", "2-2,5", ""):
        numbers = said(NumberSet.parse, text)
        inside = (
            [one for one in range(-1, 12) if one in NumberSet.parse(text)] if "Error" not in numbers else ""
        )
        yield f"{text!r}: {numbers} {inside}"


def shown_layout(layout: Parallelism) -> str:
    figures = (
        "world_size",
        "replicas",
        "copies",
        "expert_replicas",
        "shards",
        "samples_per_update",
        "chunks",
        "forward_passes",
    )
    return f"{layout.degrees}: {[getattr(layout, name) for name in figures]}"


def of_layouts() -> Iterator[str]:
    random = Random(3)
    plain = {"pp": 2, "tp": 2, "dp": 4, "micro_batch": 1, "micro_batches": 8, "sequence_parallel": True}
    for place in range(400):
        model = load_model(MODELS[place % len(MODELS)])
        asked: dict[str, Any] = dict(plain)
        for name in random.sample(sorted(LAYOUT), random.randint(1, 4)):
            kind = LAYOUT[name].kind
            schema = kind.schema
            names = schema.get("items", {}).get("enum", ())
            usual = [
                *schema.get("enum", ()),
                0,
                1,
                2,
                3,
                4,
                6,
                8,
                0.5,
                True,
                (1, 3),
                (8,) * 4,
                names[:1],
                names[1:3],
            ]
            asked[name] = random.choice([one for one in usual if kind.accepts(one)] or [LAYOUT[name].default])

        def checked(**given: Any) -> str:
            layout = Parallelism(**given)
            layout.check(model)  # noqa: B023
            return shown_layout(layout)

        more = {name: value for name, value in asked.items() if plain.get(name) != value}
        yield f"{model.name} {more}: {said(checked, **asked)}"
    names = [
        "pp",
        "dp",
        "micro_batch",
        "tp",
        "micro_batches",
        "global_batch",
        "gpus_per_node",
        "gpu_memory_bytes",
    ]
    for _ in range(40):
        given = {name: random.choice([1, 2, 3, 4, 6, "2"]) for name in random.sample(names, 5)}
        yield f"{given}: {said(read_request, given)[:700]}"


def different(one: object, other: object) -> dict[str, Any]:
    assert type(one) is type(other)
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]
    return {name: getattr(one, name) for name in names if getattr(one, name) != getattr(other, name)}


def of_models() -> Iterator[str]:
    random = Random(5)
    for place in range(200):
        model = load_model(MODELS[place % len(MODELS)])
        changes: dict[str, Any] = {}
        for name in random.sample(sorted(MODEL), 2):
            kind, now = MODEL[name].kind, getattr(model, name, None)
            scaled = [now * 2, now // 2, now + 1] if type(now) is int else []
            usual = [*kind.schema.get("enum", ()), *scaled, 0, 1, 2, True, False, 0.5, "*-M-", "E", ""]
            changes[name] = random.choice([one for one in usual if kind.accepts(one)] or [now])

        def changed() -> str:
            other = replace(model, **changes)  # noqa: B023
            derived = (
                other.value_size,
                other.rotated_size,
                other.expert_width,
                other.routed_size,
                other.expert_layers,
            )
            return f"{derived} {sorted(other.target_modules)} {len(other.layer_parts)}"

        yield f"{model.name} {changes}: {said(changed)}"
    names = (
        "LLaMA-3.1-8B",
        "meta-llama/Llama-3.1-8B",
        "gpt_20b",
        "llama",
        "mixtral 8x7b",
        "llama-3.1-9b",
        "",
        "qwen3",
    )
    yield str({name: built_in_name(name) for name in names}) + str(built_in_names()[:12])
    yield from (said(load_model, name) for name in names if built_in_name(name) is None)


def of_configurations() -> Iterator[str]:
    random = Random(6)
    released: Mapping[str, Mapping[str, Any]] = {
        **BUILT_IN,
        **{name: values for name, (_, values) in PUBLISHED.items()},
    }
    for name, values in released.items():
        path = Path("folder") / name / "config.json"
        plain = from_huggingface(values, path)
        yield f"{name}: {different(plain.model, ModelConfig(**SMALL))} {plain.all_notes}"
        for _ in range(5):
            key = random.choice(sorted(values.keys() - {"model_type"}))
            given, now = dict(values), values[key]
            if random.random() < 0.3:
                del given[key]
            else:
                number = (
                    [now * 2, now + 1, 1, 0]
                    if type(now) in (int, float)
                    else [not now]
                    if now in (True, False)
                    else []
                )
                given[key] = random.choice([*number, number and number[0], "x", None, [1, 0]])

            def read() -> str:
                found = from_huggingface(given, path)  # noqa: B023
                new = [one for one in found.all_notes if one not in plain.all_notes]  # noqa: B023
                return f"{different(found.model, plain.model)} {new}"  # noqa: B023  # noqa: B023

            yield f"  {key} = {given.get(key, 'gone')!r:.60}: {said(read)}"


SMALL = {
    "name": "small",
    "hidden_size": 64,
    "sequence_length": 8,
    "attention_heads": 8,
    "layers": 4,
    "vocabulary_size": 100,
}


def test_drawn_requests() -> None:
    printed = "\n".join((*of_fields(), *of_layouts(), *of_models(), *of_configurations())) + "\n"
    if "WRITE_DRAWN_REQUESTS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
