"""The model whose training step is asked for: sizes and architecture, from Python, TOML or JSON."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from kernelcast.runtime.errors import UsageError, shown, shown_name
from kernelcast.runtime.request.fields import (
    MODEL,
    Activation,
    Attention,
    Biases,
    Norm,
    renamed,
    unknown_field,
)
from kernelcast.runtime.request.model_file import model_file, read_document

# Marks a field that was not given and follows from the others; `__post_init__` replaces it.
DERIVED = cast(int, None)
DERIVED_BIASES = cast(Biases, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer (docs/method.md, Symbols and the paper's Table IV).

    `vocabulary_size` is the tokenizer's own (v_raw, unpadded). Not given, `kv_heads` is `attention_heads`,
    `head_size` is hidden_size / attention_heads, `mlp_size` is 4 · `hidden_size`, and a layer's
    all-reduces are 1 forward with a parallel residual, else 2, and 2 backward.

    - `biases`: which linears of a layer have one: "all", "attention" (QKV and output), "qkv", "mlp" or
      "none"; not given, the attention's with LayerNorm and the MLP's with GeLU (Table III).
    - `tied_embeddings`: the output projection is the embedding's matrix.
    - `learned_positions`: rows of the learned position table, 0 without one.
    - `sliding_window`: tokens that attention looks back, 0 for all. Only sequences within the window are
      taken: there the window changes nothing.

    Raises:
        UsageError: a field has a wrong type or value; the message names field, found and expected.
    """

    name: str
    hidden_size: int
    sequence_length: int
    attention_heads: int
    layers: int
    vocabulary_size: int
    kv_heads: int = DERIVED
    head_size: int = DERIVED
    mlp_size: int = DERIVED
    norm: Norm = MODEL["norm"].default
    activation: Activation = MODEL["activation"].default
    attention: Attention = MODEL["attention"].default
    rotary: bool = MODEL["rotary"].default
    parallel_residual: bool = MODEL["parallel_residual"].default
    biases: Biases = DERIVED_BIASES
    tied_embeddings: bool = MODEL["tied_embeddings"].default
    learned_positions: int = MODEL["learned_positions"].default
    sliding_window: int = MODEL["sliding_window"].default
    forward_syncs: int = DERIVED
    backward_syncs: int = DERIVED

    def __post_init__(self) -> None:
        for field in MODEL.values():
            value = getattr(self, field.name)
            if value is not None or not field.otherwise:
                field.check(value)
        self._derive("kv_heads", self.attention_heads)
        self._derive("mlp_size", 4 * self.hidden_size)
        self._derive("forward_syncs", 1 if self.parallel_residual else 2)
        self._derive("backward_syncs", 2)
        self._derive("biases", _usual_biases(self.norm, self.activation))
        self._check_heads()
        self._check_sequence()

    def _check_heads(self) -> None:
        if self.head_size is None and self.hidden_size % self.attention_heads:
            multiple = f"a multiple of attention_heads ({self.attention_heads})"
            raise UsageError(f"hidden_size is {self.hidden_size}, expected {multiple}")
        self._derive("head_size", self.hidden_size // self.attention_heads)
        if self.attention_heads % self.kv_heads:
            multiple = f"a multiple of kv_heads ({self.kv_heads})"
            raise UsageError(f"attention_heads is {self.attention_heads}, expected {multiple}")

    def _check_sequence(self) -> None:
        limits = (
            ("learned_positions", self.learned_positions, "it has no more positions"),
            ("sliding_window", self.sliding_window, "attention through a window is not modelled"),
        )
        for name, limit, reason in limits:
            if limit and self.sequence_length > limit:
                raise UsageError(
                    f"sequence_length is {self.sequence_length}, expected at most {name} ({limit}): {reason}"
                )

    def _derive(self, name: str, value: object) -> None:
        if getattr(self, name) is None:
            MODEL[name].check(value)
            object.__setattr__(self, name, value)

    def with_sequence_length(self, sequence_length: int) -> Self:
        """The same model, trained on sequences of `sequence_length` tokens.

        Raises:
            UsageError: not a positive whole number, or more than the model's positions or window.
        """
        return replace(self, sequence_length=sequence_length)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML (`.toml`) or JSON (`.json`) file, fields at the top level or under `model`.

        `name` may be left out: it is then the file's name without suffix. (`load_model` also takes the names
        of built-in models and Hugging Face's `config.json`.)

        Raises:
            DataError: the file is missing, unreadable, or not TOML or JSON.
            UsageError: a field is unknown, missing, or has a wrong type or value; the message names file,
                field, what was found and what was expected.
        """
        source = Path(path)
        return cls.from_document(read_document(source), where=model_file(source), name=source.stem)

    @classmethod
    def from_document(cls, values: dict[str, Any], *, where: str, name: str) -> Self:
        """A model of the fields of a file (see `from_file`), by default named `name`; errors begin with `where`.

        Raises:
            UsageError: a field is unknown, missing, or has a wrong type or value.
        """
        if "model" in values:
            others = sorted(set(values) - {"model"})
            # A file may have other tables than [model], say of a training run; fields outside are a slip.
            loose = [name for name in others if not isinstance(values[name], dict)]
            if loose:
                raise UsageError(
                    f"{where}: {shown_name(loose[0])} stands outside [model], expected inside it"
                )
            values = values["model"]
            if not isinstance(values, dict):
                raise UsageError(f"{where}: model is {shown(values)}, expected a table of fields")
        try:
            values = renamed(values, MODEL)
            for field, value in values.items():
                if field not in MODEL and "expert" in field:
                    raise UsageError(
                        f"field {shown(field)} is unknown: mixtures of experts are not modelled yet"
                    )
                if field not in MODEL:
                    raise unknown_field(field, MODEL)
                if value is None:
                    raise UsageError(f"{field} is null; leave it out to have its default")
            values = {"name": name, **values}
            needed = [field.name for field in MODEL.values() if field.is_required]
            if missing := [field for field in needed if field not in values]:
                needed.remove("name")
                raise UsageError(f"field {missing[0]} is missing, needed are {', '.join(needed)}")
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error


def _usual_biases(norm: Norm, activation: Activation) -> Biases:
    """As Table III has them: GPT models have all, LLaMA models none, the paper's with GeLU the MLP's."""
    if norm == "layer_norm":
        return "all" if activation == "gelu" else "attention"
    return "mlp" if activation == "gelu" else "none"
