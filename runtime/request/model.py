"""The model that is trained: sizes and architecture, from Python, TOML or JSON."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import (
    DataError,
    UsageError,
    error_context,
    one_line,
    shown_name,
    shown_path,
    unknown_field,
)
from kernelcast.runtime.request.fields import MODEL, Activation, Biases, ModelFields, Norm, renamed
from kernelcast.runtime.small_file import read_small_file, toml_fields

# Marks a field that was not given and follows from the others; `__post_init__` replaces it.
DERIVED = cast(int, None)
_OF_EXPERTS = ("experts_per_token", "expert_latent_size", "shared_expert_size", "dense_layers")
_OF_RECURRENT = ("recurrent_heads", "recurrent_head_size", "recurrent_groups", "recurrent_state_size")
_HALVES = ("MG*", "-E")
_PARTS = "at most one of M, G and *, and at most one of - and E, per layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelFields):
    """A decoder-only transformer (docs/method.md, Symbols and the paper's Table IV).

    `vocabulary_size` is the tokenizer's own (v_raw, unpadded). Not given, `kv_heads` is `attention_heads`,
    `head_size` is hidden_size / attention_heads, `mlp_size` is 4 · `hidden_size`, and a layer's
    all-reduces are 1 forward with a parallel residual, else 2, and 2 backward.

    - `biases`: which linears of a layer have one: "all", "attention" (QKV and output), "qkv", "mlp" or
      "none"; not given, the attention's with LayerNorm and the MLP's with GeLU (Table III).
    - `tied_embeddings`: the output projection is the embedding's matrix.
    - `learned_positions`: rows of the learned position table, 0 without one.
    - `sliding_window`: tokens that attention looks back, 0 for all; every `global_interval`-th layer looks back to the
      first token (0: none does). With `window_chunks` sequences are cut into chunks of this size, and attention
      looks back to the first token of its own.
    - `unrotated_interval`: every n-th layer has no rotary embedding (Llama 4, SmolLM3).
    - `attention_sinks`: a parameter per head, an additional entry of its softmax (gpt-oss, arXiv 2508.10925).
    - `attention_gate`: queries are projected with a gate of their width, whose sigmoid multiplies attention's output.
    - `query_rank`, `kv_rank`: latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries, and keys with
      values, come from vectors of these sizes. `rotary_size` entries of a head are then rotated, of keys the same for
      all heads; `value_head_size` is the size of a value head.
    - `experts`: routed experts of width `expert_size`, in all layers but the first `dense_layers`, or of the others in
      every `expert_interval`-th; a token goes to `experts_per_token` of them, and to shared ones, `shared_expert_size`
      wide together. With `expert_latent_size` tokens are projected to vectors of this size before they are sent to
      routed experts, and their sum back to `hidden_size` (LatentMoE, Nemotron 3 Super).
    - `layer_pattern`: parts of the layers by letter (`LAYER_PARTS`), repeated over all of them. "MEM*E" are five layers
      of one part each (Nemotron-H, arXiv 2504.03624), "GE GE GE *E" four of two (Qwen3-Next).
    - `post_norms`: two more norms per layer, on what attention and MLP return (Gemma 2).
    - `visible_share`: of the causal mask, where documents of a packed sequence do not see each other.
    - `extra_predictions`: layers after the last that predict further tokens (DeepSeek-V3, arXiv 2412.19437, 2.2).

    UsageError where a field has a wrong type or value; the message names field, found and expected.
    """

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
        for name, holds, expected in self._checks():
            if not holds:
                raise UsageError(field=name, found=getattr(self, name), expected=expected)

    @property
    def value_size(self) -> int:
        """Entries of a value head."""
        return self.value_head_size or self.head_size

    @property
    def rotated_size(self) -> int:
        """Entries of a query or key head that are rotated."""
        return self.rotary_size or self.head_size

    @property
    def expert_width(self) -> int:
        """Width of a routed expert."""
        return self.expert_size or self.mlp_size

    @property
    def routed_size(self) -> int:
        """Size of the vectors that routed experts read and write."""
        return self.expert_latent_size or self.hidden_size

    @property
    def _pattern(self) -> list[str]:
        words = self.layer_pattern.split()
        return words if len(words) > 1 else [*"".join(words)]

    @property
    def layer_parts(self) -> tuple[str, ...]:
        """Letters of the parts of each layer; empty without `layer_pattern`."""
        own = self._pattern
        return tuple(own[index % len(own)] for index in range(self.layers)) if own else ()

    @property
    def expert_layers(self) -> int:
        if parts := self.layer_parts:
            return sum("E" in one for one in parts)
        return (self.layers - self.dense_layers) // self.expert_interval if self.experts else 0

    @property
    def target_modules(self) -> frozenset[str]:
        """Linears that can have adapters (`lora_linears`): routed experts, and latent ones by PEFT's names, do not."""
        found = {"attention", "o_proj"}
        found |= set() if self.query_rank else {"q_proj"} if self.kv_rank else {"q_proj", "k_proj", "v_proj"}
        parts = self.layer_parts
        has_dense = any("-" in one for one in parts) if parts else self.expert_layers < self.layers
        if has_dense or self.shared_expert_size:
            found |= {"mlp", "up_proj", "down_proj"} | ({"gate_proj"} if "glu" in self.activation else set())
        return frozenset(found)

    def _checks(self) -> Iterator[tuple[str, object, str]]:
        """Fields that go together: the name of one, whether it holds, and what is expected."""
        heads, is_latent, rows = self.attention_heads, self.kv_rank > 0, self.learned_positions
        is_even = self.head_size is not None or not self.hidden_size % heads
        yield "hidden_size", is_even, f"a multiple of attention_heads ({heads})"
        self._derive("head_size", self.hidden_size // heads)
        yield "attention_heads", not heads % self.kv_heads, f"a multiple of kv_heads ({self.kv_heads})"
        yield "rotary_size", self.rotary_size <= self.head_size, f"at most head_size ({self.head_size})"
        yield "query_rank", is_latent or not self.query_rank, "0 where kv_rank is 0"
        yield "kv_heads", not is_latent or self.kv_heads == heads, f"attention_heads ({heads}) with kv_rank"
        yield "attention_gate", not (is_latent and self.attention_gate), "false with kv_rank"
        is_same = is_latent or self.value_size == self.head_size
        yield "value_head_size", is_same, f"head_size ({self.head_size}) without kv_rank"
        for name in _OF_EXPERTS:
            yield name, self.experts or not getattr(self, name), "0 where experts is 0"
        is_routed = not self.experts or 1 <= self.experts_per_token <= self.experts
        yield "experts_per_token", is_routed, f"from 1 to experts ({self.experts})"
        has_some = not self.experts or self.dense_layers < self.layers
        yield "dense_layers", has_some, f"fewer than layers ({self.layers}) with experts"
        yield from self._pattern_checks()
        has_window = self.sliding_window or not self.window_chunks
        yield "window_chunks", has_window, "false where sliding_window is 0"
        longest = f"at most learned_positions ({rows}): it has no more positions"
        yield "sequence_length", not rows or self.sequence_length <= rows, longest

    def _pattern_checks(self) -> Iterator[tuple[str, object, str]]:
        parts, own, groups = self.layer_parts, len(self._pattern), self.recurrent_groups
        is_recurrent = any(letter in "MG" for letter in "".join(parts))
        least = "at least 1 with" if is_recurrent else "0 without"
        for name in _OF_RECURRENT:
            yield name, bool(getattr(self, name)) == is_recurrent, f"{least} M or G in layer_pattern"
        is_even = not is_recurrent or not self.recurrent_heads % groups
        yield "recurrent_heads", is_even, f"a multiple of recurrent_groups ({groups})"
        if not parts:
            return
        pairs = [(set(one), half) for one in parts for half in _HALVES]
        is_single = all(len(one & set(half)) <= 1 for one, half in pairs)
        yield "layer_pattern", is_single and all(len(set(one)) == len(one) for one in parts), _PARTS
        yield "layers", not self.layers % own, f"a multiple of the {own} layers of layer_pattern"
        some = f"{'some' if self.experts else 'no'} E with experts {self.experts}"
        yield "layer_pattern", bool(self.experts) == bool(self.expert_layers), some
        for name in ("dense_layers", "expert_interval", "parallel_residual"):
            usual = MODEL[name].default
            yield name, getattr(self, name) == usual, f"{str(usual).lower()} with layer_pattern"

    def _derive(self, name: str, value: object) -> None:
        if getattr(self, name) is None:
            MODEL[name].check(value)
            object.__setattr__(self, name, value)

    def with_sequence_length(self, sequence_length: int) -> Self:
        """The same model, trained on sequences of `sequence_length` tokens; UsageError where it cannot be."""
        return replace(self, sequence_length=sequence_length)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML (`.toml`) or JSON (`.json`) file, fields at the top level or under `model`; `name` is by default
        the file's without suffix. DataError where it is not readable, UsageError where a field is unknown, missing or
        wrong; both name the file.
        """
        source = Path(path)
        return cls.from_document(read_document(source), where=model_file(source), name=source.stem)

    @classmethod
    def from_document(cls, values: dict[str, Any], *, where: str, name: str) -> Self:
        """A model of the fields of a file (see `from_file`), by default named `name`; errors begin with `where`.
        UsageError where a field is unknown, missing, or has a wrong type or value.
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
                raise UsageError(field="model", found=values, expected="a table of fields").within(where)
        with error_context(where):
            values = renamed(values, MODEL)
            for field, value in values.items():
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


def _usual_biases(norm: Norm, activation: Activation) -> Biases:
    """As Table III has them: GPT models have all, LLaMA models none, the paper's with GeLU the MLP's."""
    if norm == "layer_norm":
        return "all" if activation == "gelu" else "attention"
    return "mlp" if activation == "gelu" else "none"


_MAX_FILE_BYTES = 1 << 20


def model_file(source: Path) -> str:
    """How errors name a model file."""
    return f"model file {shown_path(source)}"


def read_document(source: Path) -> dict[str, Any]:
    """The fields of a TOML (`.toml`) or JSON (`.json`) file. DataError where the file is missing, unreadable, too
    large, or not TOML or JSON with fields; UsageError for another suffix.
    """
    where = model_file(source)
    if source.suffix not in (".toml", ".json"):
        raise UsageError(field="suffix", found=source.suffix, expected=".toml or .json").within(where)
    content = read_small_file(source, where=where, most_bytes=_MAX_FILE_BYTES)
    if source.suffix == ".toml":
        return toml_fields(content, where=where)
    try:
        values = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({one_line(str(error))})") from error
    if not isinstance(values, dict):
        raise DataError(f"{where}: holds a {type(values).__name__}, expected an object of fields")
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model, and `notes` about it, one sentence each; `longest` says where its sequence length is from, where that is
    the longest that the model serves; else empty.
    """

    model: ModelConfig
    notes: tuple[str, ...] = ()
    longest: str = ""

    def with_length(self, sequence_length: int | None) -> "FoundModel":
        """The model on sequences of a known length, where one is given; UsageError for one that it cannot have."""
        if sequence_length is None:
            return self
        return replace(self, model=self.model.with_sequence_length(sequence_length), longest="")

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and the one about its length."""
        if not self.longest:
            return self.notes
        length = (
            f"{self.longest}, the longest sequence that the model serves; it is predicted unless "
            "sequence_length is given"
        )
        return (*self.notes, length)

    def with_notes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Plain values of an answer with the notes, if any, under `model_notes`."""
        return {**values, "model_notes": list(self.all_notes)} if self.all_notes else values

    def require_length(self) -> "FoundModel":
        """The same, with a length of training; UsageError where only the longest is known."""
        if self.longest:
            raise UsageError(
                f"{self.longest}, the longest sequence that the model serves, expected sequence_length "
                "(--sequence-length) of training"
            )
        return self
