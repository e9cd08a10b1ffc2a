"""What a request names: model, fabric, hardware and software stack; and all names (GET /catalogue).

Names are the site's and the shipped ones; a model and a fabric may also be given by their fields. No
request names a file of the server's machine.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelcast.runtime import Estimator, ModelConfig
from kernelcast.runtime.answers import fabric_choice
from kernelcast.runtime.answers.fabric_choice import FabricChoice, measured_fabric_names
from kernelcast.runtime.catalogue import Hardware, all_hardware, shipped_names
from kernelcast.runtime.errors import UsageError, error_context
from kernelcast.runtime.frameworks.software import choose_software, frameworks
from kernelcast.runtime.hardware.attention_kernels import all_kernels, kernels_on
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.fabric import Fabric, fabric_from_values, fabric_named, shipped_fabrics
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.model import FoundModel
from kernelcast.runtime.request.models import built_in_name, unknown_model
from kernelcast.runtime.request.models.huggingface import from_huggingface
from kernelcast.runtime.stack import shipped_stacks, stack_named
from kernelcast.runtime.step.parameters import active_parameters, total_parameters
from kernelcast.serve.loaded import Loaded
from kernelcast.serve.messages import known_fields, require_field


def model_of(loaded: Loaded, values: dict[str, Any]) -> FoundModel:
    """The model that a request names or describes, and its sequence length.

    Raises:
        UsageError: it is missing, unknown or wrong.
    """
    return find_model(
        require_field(values, "model"), loaded.models, sequence_length=values.get("sequence_length")
    )


def of_request(loaded: Loaded, values: dict[str, Any]) -> tuple[Estimator, dict[str, Any]]:
    """The estimator for a request's hardware and stack, and the other values, completed by the stack's defaults.

    Raises:
        UsageError: no such hardware or stack ships.
    """
    estimator = loaded.estimator_of(values.get("hardware"))
    values = {name: value for name, value in values.items() if name != "hardware"}
    value = values.get("stack")
    if value is not None and value not in shipped_stacks():
        raise UsageError(field="stack", found=value, expected=f"one of {', '.join(shipped_stacks())}")
    chosen = choose_software(values, hardware=shipped_names(estimator.bundle), is_open="gpus" in values)
    return (estimator if chosen.stack is None else estimator.with_stack(chosen.stack)), chosen.values


_INLINE = "model"


def find_model(
    value: object, known: Mapping[str, ModelConfig], *, sequence_length: int | None = None
) -> FoundModel:
    """The model that a request asks for, with the requested sequence length if given.

    A text is the name of one of `known`, as `built_in_name` reads it. An object holds the fields of a model file
    or of a Hugging Face `config.json` (recognized by `model_type`).

    Raises:
        UsageError: no such model, wrong fields, or a length that it cannot have.
    """
    return _find(value, known).with_length(sequence_length)


def _find(value: object, known: Mapping[str, ModelConfig]) -> FoundModel:
    if isinstance(value, dict):
        if "model_type" in value:
            return from_huggingface(value, Path(_INLINE))
        return FoundModel(model=ModelConfig.from_document(value, where=_INLINE, name=_INLINE))
    if isinstance(value, str):
        name = value if value in known else built_in_name(value, known)
        if name is None:
            raise unknown_model(value, known, "the fields of a model file work too")
        return FoundModel(model=known[name])
    raise UsageError(field="model", found=value, expected="a name or the fields of a model file")


def find_fabric(value: object, known: Mapping[str, FabricChoice]) -> FabricChoice | None:
    """The requested fabric, or None.

    A text is the name of one of `known` (the site's) or of one that ships. An object holds the fields of a description.

    Raises:
        UsageError: no such fabric, or wrong fields.
    """
    if value is None:
        return None
    if isinstance(value, dict):
        with error_context(kind=UsageError):
            return fabric_from_values(value, where="fabric")
    if isinstance(value, str) and value in known:
        return known[value]
    if isinstance(value, str) and value in shipped_fabrics():
        return fabric_named(value)
    if isinstance(value, str) and value in measured_fabric_names():
        return fabric_choice.find_fabric(value)
    names = ", ".join((*known, *shipped_fabrics(), *measured_fabric_names()))
    raise UsageError(field="fabric", found=value, expected=f"the fields of a description, or one of {names}")


CATALOGUE_FORMAT, MODEL_FORMAT = "kernelcast.catalogue/1", "kernelcast.model/1"
MODEL_REQUEST = ("model", "sequence_length")


def catalogue(loaded: Loaded) -> dict[str, Any]:
    """Hardware, fabrics, models and stacks by name; `bundle` is the server's own. Form `kernelcast.catalogue/1`."""
    described = [one for one in loaded.fabrics.values() if isinstance(one, Fabric)]
    shipped = [fabric_named(name) for name in shipped_fabrics()]
    measured = [one.name for one in loaded.fabrics.values() if not isinstance(one, Fabric)]
    return {
        "format": CATALOGUE_FORMAT,
        "bundle": loaded.name,
        "hardware": [_hardware(one) for one in all_hardware().values()],
        "fabrics": [one.to_dict() for one in (*described, *shipped)],
        "measured_fabrics": [*measured, *measured_fabric_names()],
        "models": [{"name": name, **_sizes(model)} for name, model in loaded.models.items()],
        "attention_kernels": list(all_kernels()),
        "frameworks": [values_of(one, "name", "title", "stack") for one in frameworks().values()],
        "stacks": [{"name": name, "software": stack_named(name).software} for name in shipped_stacks()],
    }


def model_fields(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model by name, of a model file, or of a `config.json`; form `kernelcast.model/1`.

    Raises:
        UsageError: no such model, or a field of it is unknown, missing or wrong.
    """
    values = known_fields(values, MODEL_REQUEST)
    found = model_of(loaded, values)
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
