"""The model of a request: by name, or by the fields of a model file; never a file of this machine."""

from collections.abc import Mapping
from pathlib import Path

from kernelcast.runtime import ModelConfig, UsageError
from kernelcast.runtime.request.models import FoundModel, built_in_name, unknown_model
from kernelcast.runtime.request.models.huggingface import from_huggingface

_INLINE = "model"


def find_model(
    asked: object, known: Mapping[str, ModelConfig], *, sequence_length: int | None = None
) -> FoundModel:
    """The model that a request asks for, on sequences of another length where one is given.

    A text is the name of one of `known`, as `built_in_name` reads it. An object holds the fields of a model file:
    ours, or those of a Hugging Face `config.json` (known by `model_type`).

    Raises:
        UsageError: no such model, wrong fields, or a length that it cannot have.
    """
    return _find(asked, known).with_length(sequence_length)


def _find(asked: object, known: Mapping[str, ModelConfig]) -> FoundModel:
    if isinstance(asked, dict):
        if "model_type" in asked:
            return from_huggingface(asked, Path(_INLINE))
        return FoundModel(model=ModelConfig.from_document(asked, where=_INLINE, name=_INLINE))
    if isinstance(asked, str):
        name = asked if asked in known else built_in_name(asked, known)
        if name is None:
            raise unknown_model(asked, known, "the fields of a model file work too")
        return FoundModel(model=known[name])
    raise UsageError(field="model", found=asked, expected="a name or the fields of a model file")
