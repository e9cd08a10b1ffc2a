"""Which model is meant: a built-in name, a file of ours, or a Hugging Face configuration."""

import os
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from kernelcast.runtime.errors import UsageError, alternatives, shown
from kernelcast.runtime.request.model import FoundModel, ModelConfig, model_file, read_document
from kernelcast.runtime.shipped import MODELS

_NO_SIZE = re.compile(
    r"instruct|base|hf|it|pt|chat|meta|v0\.\d|0\d{3}|1124|2[3-9](0[1-9]|1[0-2])|17b|16e|128e"
)
"""Words of published names that do not tell models of other sizes apart: what was trained later, dates, versions, and
Llama 4's second sizes."""
_PUBLISHED = re.compile(r"([A-Za-z][\w.-]*/)?[\w. -]+")
"""Names as models are published under, with or without their organisation."""
_LONGEST_NAME = 200


@cache
def built_in_names() -> tuple[str, ...]:
    """Names of the models that come with kernelcast; each is a TOML file in runtime/shipped/models, with its source."""
    return tuple(sorted((path.stem for path in MODELS.glob("*.toml")), key=_by_size))


def _by_size(name: str) -> list[tuple[int, float, str]]:
    """Numbers in names by their value: llama-3-8b before llama-3-70b."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(0, float(part), "") if index % 2 else (1, 0.0, part) for index, part in enumerate(parts)]


def built_in_name(asked: object, known: Iterable[str] | None = None) -> str | None:
    """The name in `known` (by default the built-in models) that is meant, or None.

    In any case, with or without organisation, and with what published names add (-Instruct, -Base, -hf, dates).

    >>> built_in_name("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3.1-8b'
    """
    if type(asked) is not str or len(asked) > _LONGEST_NAME or not _PUBLISHED.fullmatch(asked):
        return None
    names = built_in_names() if known is None else known
    return {_plain(name): name for name in names}.get(_plain(asked.rsplit("/", 1)[-1]))


@lru_cache(maxsize=1 << 10)  # of names that anybody may ask for
def _plain(name: str) -> str:
    words = [word for word in re.split(r"[-_ ]", name.lower()) if not _NO_SIZE.fullmatch(word)]
    return "".join(words)


def unknown_model(asked: str, names: Iterable[str], more: str) -> UsageError:
    """The error about a name that no model has: the nearest ones, else all. `more` says what else is accepted."""
    wanted = asked[-_LONGEST_NAME:].rsplit("/", 1)[-1]
    return UsageError(
        f"model {shown(asked)} is unknown, {alternatives(wanted, names)}; {more}", field="model"
    )


def load_model(name_or_path: str | os.PathLike[str], *, sequence_length: int | None = None) -> ModelConfig:
    """The model that `name_or_path` means, as `find_model` finds it. Errors as `find_model`.

    >>> load_model("llama-2-7b").mlp_size
    11008
    """
    return find_model(name_or_path, sequence_length=sequence_length).model


def find_model(name_or_path: str | os.PathLike[str], *, sequence_length: int | None = None) -> FoundModel:
    """The model that `name_or_path` means, with notes.

    - One of `built_in_names`, see `built_in_name`. A file or folder of this name in the current folder is meant where
      the name has a folder or a suffix.
    - A `.toml` or `.json` file with the fields of `ModelConfig`, at the top level or under `model`.
    - A Hugging Face `config.json` as downloaded, whatever the file is called, or the folder that holds one:
      known by its `model_type` (see `from_huggingface`).

    `sequence_length` replaces the model's own. DataError where the file is missing, unreadable, or not TOML or JSON;
    UsageError for no such model, another family, or a field that is unknown, missing or wrong. One line that names
    file, field, what was found and what was expected.
    """
    return _find(name_or_path).with_length(sequence_length)


def _find(name_or_path: str | os.PathLike[str]) -> FoundModel:
    path = Path(name_or_path)
    name = built_in_name(name_or_path)
    if name is not None and not _is_there(path, name_or_path):
        return FoundModel(model=ModelConfig.from_file(MODELS / f"{name}.toml"))
    try:
        is_folder = bool(os.fspath(name_or_path)) and path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if is_folder:
        path /= "config.json"
    elif not _means_a_file(name_or_path, path):
        raise unknown_model(
            os.fspath(name_or_path), built_in_names(), "the path of a .toml or .json file works too"
        )
    values = read_document(path)
    if "model_type" in values:
        from kernelcast.runtime.request.models.huggingface import from_huggingface

        return from_huggingface(values, path)
    return FoundModel(model=ModelConfig.from_document(values, where=model_file(path), name=path.stem))


def _is_there(path: Path, given: str | os.PathLike[str]) -> bool:
    """Whether a name with a folder is a path that exists; a bare name is the model's, whatever lies in the folder."""
    try:
        return os.sep in os.fspath(given) and path.exists()
    except (OSError, ValueError):
        return False


def _means_a_file(given: str | os.PathLike[str], path: Path) -> bool:
    text = os.fspath(given)
    if path.suffix in (".toml", ".json") or os.path.exists(text):
        return True
    # An organisation and a name, as published models have them, is no path.
    return os.sep in text and not _PUBLISHED.fullmatch(text)
