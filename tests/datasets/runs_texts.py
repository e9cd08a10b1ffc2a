"""Texts of runs files from rows of published tables."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from textwrap import wrap
from typing import Any

from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.request.models import built_in_name

BESIDE = {"b300": "b200", "gb300": "gb200", "mi355x": "mi325x"}
"""Whose file names the steps of a device that the table lacks."""


def texts(files: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Texts of files; what cannot be predicted, by device, format or model, is named with the reason."""
    left_out: dict[str, list[str]] = {}
    for name, parts in files.items():
        asked = []
        family, device = name.rsplit("-", 1)
        has_device = parts["head"]["device"] in all_hardware()
        place = name if has_device else f"{family}-{BESIDE.get(device, device)}"
        found = left_out.setdefault(place, [])
        found += parts["head"].pop("left_out", [])
        for run in parts["runs"]:
            recipe = run.get("fp8_recipe", "none")
            why = (
                f"device {parts['head']['device']} is not in the table"
                if not has_device
                else f"format {recipe} has no measured operators"
                if recipe not in LAYOUT["fp8_recipe"].kind.values
                else f"model {run['model']} is not described"
                if not built_in_name(run["model"])
                else ""
            )
            if why:
                found.append(f"{run['name']}: {why}")
            else:
                asked.append(run)
        parts["runs"] = asked
    return {
        name: file_text(
            **parts | {"head": parts["head"] | ({"left_out": left_out[name]} if left_out.get(name) else {})}
        )
        for name, parts in files.items()
        if parts["runs"]
    }


def digest(content: bytes) -> str:
    return f"SHA-256 {sha256(content).hexdigest()}"


def file_text(
    *,
    comment: str,
    head: Mapping[str, Any],
    defaults: Mapping[str, Any],
    models: Mapping[str, Mapping[str, Any]],
    runs: Iterable[Mapping[str, Any]],
) -> str:
    lines = [*_comment(comment), "# Made by tests/datasets/convert_steps.py.", *_fields(head)]
    lines += ["", "[defaults]", *_fields(defaults)]
    for name, fields in models.items():
        lines += ["", f"[models.{name}]", *_fields(fields)]
    for run in runs:
        lines += ["", "[[runs]]", *_fields(run)]
    return "\n".join(lines) + "\n"


def _fields(values: Mapping[str, Any]) -> list[str]:
    # JSON's texts, numbers, booleans and lists are TOML's too.
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _comment(text: str) -> list[str]:
    return wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
