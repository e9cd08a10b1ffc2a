"""GET /catalogue and POST /model: names that a question may use, and the fields read from a model file."""

from dataclasses import asdict
from typing import Any

from kernelcast.runtime.answers.fabric_choice import measured_fabric_names
from kernelcast.runtime.catalogue.hardware import Hardware, all_hardware
from kernelcast.runtime.frameworks.software import frameworks
from kernelcast.runtime.hardware.attention_kernels import all_kernels, kernels_on
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.hardware.fabric_file import fabric_named, shipped_fabrics
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.stack.stack_file import shipped_stacks, stack_named
from kernelcast.runtime.step.parameters import active_parameters, total_parameters
from kernelcast.serve.answering import model_of
from kernelcast.serve.bodies import known_fields
from kernelcast.serve.warm import Warm

CATALOGUE_FORMAT, MODEL_FORMAT = "kernelcast.catalogue/1", "kernelcast.model/1"
MODEL_REQUEST = ("model", "sequence_length")


def catalogue(warm: Warm) -> dict[str, Any]:
    """Hardware, fabrics, models and stacks by name; `bundle` is the server's own. Form `kernelcast.catalogue/1`."""
    described = [one for one in warm.fabrics.values() if isinstance(one, Fabric)]
    shipped = [fabric_named(name) for name in shipped_fabrics()]
    measured = [one.name for one in warm.fabrics.values() if not isinstance(one, Fabric)]
    return {
        "format": CATALOGUE_FORMAT,
        "bundle": warm.name,
        "hardware": [_hardware(one) for one in all_hardware().values()],
        "fabrics": [one.to_dict() for one in (*described, *shipped)],
        "measured_fabrics": [*measured, *measured_fabric_names()],
        "models": [{"name": name, **_sizes(model)} for name, model in warm.models.items()],
        "attention_kernels": list(all_kernels()),
        "frameworks": [values_of(one, "name", "title", "stack") for one in frameworks().values()],
        "stacks": [{"name": name, "software": stack_named(name).software} for name in shipped_stacks()],
    }


def model_fields(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model by name, of a model file, or of a `config.json`; form `kernelcast.model/1`.

    Raises:
        UsageError: no such model, or a field of it is unknown, missing or wrong.
    """
    values = known_fields(values, MODEL_REQUEST)
    found = model_of(warm, values)
    return {
        "format": MODEL_FORMAT,
        "model": asdict(found.model),
        "notes": list(found.all_notes),
        **_sizes(found.model),
    }


def _hardware(one: Hardware) -> dict[str, Any]:
    row = device(one.device)
    return {
        "name": one.name,
        "device": row.title,
        "memory_bytes": row.memory_bytes,
        "fabric": one.fabric,
        "is_measured": one.bundle is not None,
        "attention_kernels": list(kernels_on(row.architecture)),
        "data": one.data,
    }


def _sizes(model: ModelConfig) -> dict[str, Any]:
    return {
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        **values_of(model, "layers", "sequence_length", "experts", "attention"),
    }
