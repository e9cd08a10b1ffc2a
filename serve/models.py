"""The model of a request: by name, or by the fields of a model file; never a file of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime import ModelConfig, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.models.huggingface import from_huggingface

_INLINE = "model"


def find_model(asked: object, known: Mapping[str, ModelConfig]) -> ModelConfig:
    """The model that a request asks for.

    A text is the name of one of `known`. An object holds the fields of a model file:
    ours, or those of a Hugging Face `config.json` (known by `model_type`).

    Raises:
        UsageError: no such model, or wrong fields.
    """
    if isinstance(asked, dict):
        if "model_type" in asked:
            return from_huggingface(asked, Path(_INLINE))
        return ModelConfig.from_document(asked, where=_INLINE, name=_INLINE)
    if isinstance(asked, str) and asked in known:
        return known[asked]
    names = ", ".join(known)
    raise UsageError(f"model is {shown(asked)}, expected the fields of a model file, or one of {names}")


def with_length(model: ModelConfig, sequence_length: Any) -> ModelConfig:
    """The model, on sequences of another length where one is given.

    Raises:
        UsageError: a length that it cannot have.
    """
    return model if sequence_length is None else model.with_sequence_length(sequence_length)
