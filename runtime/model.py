"""The model whose training step is asked for: sizes and architecture, from Python, TOML or JSON."""

import json
import os
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from kernelcast.runtime.errors import DataError, UsageError

Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["gelu", "swiglu"]
Attention = Literal["flash", "fused_softmax", "unfused"]

MAX_SIZE = 2**31 - 1
MAX_ENCODERS = 10_000
_MAX_FILE_BYTES = 1 << 20
# Marks a field that was not given and follows from the others; `__post_init__` replaces it.
_DERIVED = cast(int, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer (docs/method.md, Symbols and the paper's Table IV).

    `vocabulary_size` is the tokenizer's own (v_raw, unpadded). Not given, `kv_heads` is `attention_heads`,
    `mlp_size` is 4 · `hidden_size`, and an encoder's all-reduces are 1 forward with a parallel residual, else
    2, and 2 backward.

    Raises:
        UsageError: a field has a wrong type or value; the message names field, found and expected.
    """

    name: str
    hidden_size: int
    sequence_length: int
    attention_heads: int
    encoders: int
    vocabulary_size: int
    kv_heads: int = _DERIVED
    mlp_size: int = _DERIVED
    norm: Norm = "layer_norm"
    activation: Activation = "gelu"
    attention: Attention = "flash"
    rotary: bool = True
    parallel_residual: bool = False
    forward_syncs: int = _DERIVED
    backward_syncs: int = _DERIVED

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name.strip() or not self.name.isprintable():
            raise UsageError(f"name is {self.name!r}, expected a text on one line")
        for flag in ("rotary", "parallel_residual"):
            if type(getattr(self, flag)) is not bool:
                raise UsageError(f"{flag} is {getattr(self, flag)!r}, expected true or false")
        self._derive("kv_heads", self.attention_heads)
        self._derive("mlp_size", 4 * self.hidden_size if type(self.hidden_size) is int else 0)
        self._derive("forward_syncs", 1 if self.parallel_residual else 2)
        self._derive("backward_syncs", 2)
        for size in (
            "hidden_size",
            "sequence_length",
            "attention_heads",
            "kv_heads",
            "vocabulary_size",
            "mlp_size",
        ):
            require_integer(size, getattr(self, size), low=1, high=MAX_SIZE)
        require_integer("encoders", self.encoders, low=1, high=MAX_ENCODERS)
        require_integer("forward_syncs", self.forward_syncs, low=0, high=100)
        require_integer("backward_syncs", self.backward_syncs, low=0, high=100)
        for choice, allowed in (("norm", Norm), ("activation", Activation), ("attention", Attention)):
            require_choice(choice, getattr(self, choice), get_args(allowed))
        if self.hidden_size % self.attention_heads:
            multiple = f"a multiple of attention_heads ({self.attention_heads})"
            raise UsageError(f"hidden_size is {self.hidden_size}, expected {multiple}")
        if self.attention_heads % self.kv_heads:
            multiple = f"a multiple of kv_heads ({self.kv_heads})"
            raise UsageError(f"attention_heads is {self.attention_heads}, expected {multiple}")

    def _derive(self, name: str, value: int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @property
    def head_size(self) -> int:
        """d/h, elements of one attention head."""
        return self.hidden_size // self.attention_heads

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML (`.toml`) or JSON (`.json`) file, fields at the top level or under `model`.

        `name` may be left out: it is then the file's name without suffix.

        Raises:
            DataError: the file is missing, unreadable, or not TOML or JSON.
            UsageError: a field is unknown, missing, or has a wrong type or value; the message names file,
                field, what was found and what was expected.
        """
        source = Path(path)
        values = _read(source)
        if "model" in values:
            beside = sorted(set(values) - {"model"})
            # A file may keep other tables beside [model], say of a training run; loose fields are a slip.
            loose = [name for name in beside if not isinstance(values[name], dict)]
            if loose:
                raise UsageError(f"model file {source}: {loose[0]} stands beside [model], expected inside it")
            values = values["model"]
            if not isinstance(values, dict):
                raise UsageError(f"model file {source}: model is {values!r:.80}, expected a table of fields")
        known = [f.name for f in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise UsageError(
                    f"model file {source}: field {name!r:.80} is unknown, known are {', '.join(known)}"
                )
            if value is None:
                raise UsageError(f"model file {source}: {name} is null; leave it out to have its default")
        values = {"name": source.stem, **values}
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        if missing:
            raise UsageError(f"model file {source}: field {missing[0]} is missing, needed are {_needed(cls)}")
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"model file {source}: {error}") from error


def require_integer(name: str, value: object, *, low: int, high: int) -> None:
    """Check that `value` is a whole number (not a bool) from `low` to `high`.

    Raises:
        UsageError: it is not; the message names the field, what was found and what is allowed.
    """
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is {value!r:.80}, expected a whole number from {low} to {high}")


def require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check that `value` is one of `allowed`.

    Raises:
        UsageError: it is not; the message names the field, what was found and what is allowed.
    """
    if value not in allowed:
        *others, last = allowed
        raise UsageError(f"{name} is {value!r:.80}, expected {', '.join(others)} or {last}")


def _needed(cls: type[ModelConfig]) -> str:
    return ", ".join(f.name for f in fields(cls) if f.default is MISSING and f.name != "name")


def _read(source: Path) -> dict[str, Any]:
    if source.suffix not in (".toml", ".json"):
        raise UsageError(f"model file {source}: suffix is {source.suffix!r}, expected .toml or .json")
    try:
        with source.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(f"model file {source}: no such file") from error
    except OSError as error:
        raise DataError(f"model file {source}: cannot be read ({error.strerror})") from error
    if len(content) > _MAX_FILE_BYTES:
        raise DataError(f"model file {source}: larger than {_MAX_FILE_BYTES} bytes")
    kind = source.suffix[1:].upper()
    try:
        text = content.decode()
        values = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"model file {source}: not valid {kind} ({str(error).splitlines()[0]})") from error
    if not isinstance(values, dict):
        raise DataError(f"model file {source}: holds a {type(values).__name__}, expected an object of fields")
    return values
