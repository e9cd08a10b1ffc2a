"""The golden files: the cases (`cases.json.xz`) and their answers (one file per device, and shared sizes)."""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DEVICES = ("h100-sxm", "a100-sxm", "b200-sxm")
FAST_PART = 16
"""One case in `FAST_PART` is part of the fast test."""

_OF_FIRST_DEVICE = ("hfu", "known", "warnings")


@dataclass(frozen=True, slots=True)
class Case:
    """One layout of one model. `fields` of `Parallelism`, and options of `Estimator.predict`."""

    model: str
    layout: str
    fields: dict[str, Any]
    index: int

    @property
    def key(self) -> str:
        return f"{self.model}: {self.layout}"


def read(name: str) -> Any:
    """A JSON file of this folder, compressed where its name ends in .xz."""
    data = (FOLDER / name).read_bytes()
    return json.loads(lzma.decompress(data) if name.endswith(".xz") else data)


def write(name: str, value: Any) -> int:
    """Write a compressed JSON file, the same bytes for the same value; returns its size."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    data = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (FOLDER / name).write_bytes(data)
    return len(data)


def rounded(value: Any) -> Any:
    """`value` with floats of 11 significant digits: enough for 1e-9, and a third shorter."""
    if isinstance(value, float):
        short = float(f"{value:.10e}")
        return int(short) if short.is_integer() and abs(short) < 1e9 else short
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def reduced(device: str, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it is kept: of all devices but the first without what follows from the first's, and with one number
    for all stages, Σ (i + 1) · tᵢ.
    """
    if device == DEVICES[0] or "refused" in answer:
        return answer
    of_stages = {
        field: {
            name: sum((index + 1) * value for index, value in enumerate(values))
            for name, values in answer[field].items()
        }
        for field in ("stages", "calls_total_s")
    }
    kept = {name: value for name, value in answer.items() if name not in _OF_FIRST_DEVICE}
    return {**kept, **of_stages}


@cache
def golden_models() -> dict[str, dict[str, Any] | None]:
    """Models by name: fields of an artificial one, None of one that ships."""
    models: dict[str, dict[str, Any] | None] = read("cases.json.xz")["models"]
    return models


@cache
def golden_cases() -> dict[str, tuple[Case, ...]]:
    """Cases of every model."""
    return {
        model: tuple(Case(model, layout, fields, index) for index, (layout, fields) in enumerate(layouts))
        for model, layouts in read("cases.json.xz")["cases"].items()
    }


@cache
def quick_cases() -> dict[str, frozenset[str]]:
    """Keys of the cases per device that together reach every option, and every model, at least once."""
    return {device: frozenset(keys) for device, keys in read("cases.json.xz")["quick"].items()}


@cache
def golden_answers(device: str) -> dict[str, dict[str, Any]]:
    """Answers of a device by the key of their case."""
    shared, own = read("sizes.json.xz"), read(f"{device}.json.xz")
    return {
        key: answer if "refused" in answer else shared.get(key, {}) | answer for key, answer in own.items()
    }


@cache
def golden_operators() -> dict[str, dict[str, list[Any]]]:
    """All calls of the quick cases, by device and key."""
    found: dict[str, dict[str, list[Any]]] = read("operators.json.xz")
    return found


@cache
def golden_searches() -> dict[str, dict[str, Any]]:
    """Answers of the searches by their names."""
    found: dict[str, dict[str, Any]] = read("search_answers.json.xz")
    return found


def fast_cases(model: str) -> tuple[Case, ...]:
    """Cases of the fast test: every `FAST_PART`-th, shifted from model to model, so that every layout is among them."""
    turn = list(golden_models()).index(model)
    return tuple(case for case in golden_cases()[model] if (case.index + turn) % FAST_PART == 0)
