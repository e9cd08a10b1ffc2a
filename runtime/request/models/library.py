"""Which model is meant: a built-in name, a file of ours, or a Hugging Face configuration."""

import os
from pathlib import Path

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.model_file import model_file, read_document
from kernelcast.runtime.request.models.huggingface import from_huggingface
from kernelcast.runtime.shipped import MODELS

BUILT_IN = (
    "gpt-20b",
    "llama-13b",
    "llemma-7b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "gpt3-175b",
    "mistral-7b",
)
"""Names of the models that come with kernelcast; each is a TOML file in runtime/shipped/models, with its source."""


def load_model(name_or_path: str | os.PathLike[str], *, sequence_length: int | None = None) -> ModelConfig:
    """The model that `name_or_path` means.

    - One of `BUILT_IN`.
    - A `.toml` or `.json` file with the fields of `ModelConfig`, at the top level or under `model`.
    - A Hugging Face `config.json` as downloaded, whatever the file is called, or the folder that holds one:
      known by its `model_type` (see `from_huggingface`).

    `sequence_length` replaces the model's own.

    >>> load_model("llama-2-7b").mlp_size
    11008

    Raises:
        DataError: the file is missing, unreadable, or not TOML or JSON.
        UsageError: no such model, another family, or a field that is unknown, missing or wrong. One line that
            names file, field, what was found and what was expected.
    """
    model = _load(name_or_path)
    return model if sequence_length is None else model.with_sequence_length(sequence_length)


def _load(name_or_path: str | os.PathLike[str]) -> ModelConfig:
    if name_or_path in BUILT_IN:
        return ModelConfig.from_file(MODELS / f"{name_or_path}.toml")
    path = Path(name_or_path)
    try:
        is_folder = bool(os.fspath(name_or_path)) and path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if is_folder:
        path /= "config.json"
    elif not _means_a_file(name_or_path, path):
        raise UsageError(
            f"model {shown(os.fspath(name_or_path))} is unknown; built in are {', '.join(BUILT_IN)}; "
            "the path of a .toml or .json file works too"
        )
    values = read_document(path)
    if "model_type" in values:
        return from_huggingface(values, path)
    return ModelConfig.from_document(values, where=model_file(path), name=path.stem)


def _means_a_file(given: str | os.PathLike[str], path: Path) -> bool:
    text = os.fspath(given)
    return path.suffix in (".toml", ".json") or os.sep in text or os.path.exists(text)
