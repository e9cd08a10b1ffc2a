"""Hugging Face's `config.json`, as downloaded, read as a `ModelConfig`.

Taken are the sizes and what changes parameters or cost. What does not (rotary base and scaling, initialisation, token
ids, dropout, serving) is left aside; what would change cost and is not modelled is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.fields import MAX_LAYERS, MAX_SIZE, require_choice, require_integer
from kernelcast.runtime.request.model import DERIVED, ModelConfig
from kernelcast.runtime.request.model_file import model_file

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_TYPES = ("moe", "mixtral", "deepseek_v", "dbrx", "switch", "jamba", "gpt_oss", "llama4")


def from_huggingface(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model of a Hugging Face configuration: families llama, mistral, qwen2, gpt_neox and gpt2.

    - The sequence length is the longest that the model was pre-trained on, as far as the file says so: the
      smallest of `max_position_embeddings` (`n_positions`), `original_max_position_embeddings` where rotary
      scaling stretched it later, and the attention window where one is used.
    - Rotary embedding counts as applied to whole heads, also where it turns a part (`rotary_pct`).
    - Attention is the fused kernel (flash); dropout is left out, as in the operators that are measured.
    - The name is the last part of `_name_or_path`, else that of the file, or of its folder for a `config.json`.

    Raises:
        UsageError: another family, a mixture of experts, a quantised model, or a field that is missing or
            wrong; one line that names file, field, what was found and what was expected.
    """
    try:
        config = _Config(values)
        return _family(config)(config, _name(config, path))
    except UsageError as error:
        raise UsageError(f"{model_file(path)}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Config:
    """Typed access to the fields of a configuration; null counts as absent."""

    values: Mapping[str, Any]

    def integer(self, field: str, *, high: int = MAX_SIZE) -> int:
        """A positive whole number that has to be there."""
        if self.values.get(field) is None:
            raise UsageError(f"field {field} is missing, expected a whole number from 1 to {high}")
        return self.optional_integer(field, 0, high=high)

    def optional_integer(self, field: str, default: int, *, high: int = MAX_SIZE) -> int:
        """A positive whole number, or `default` where it is absent."""
        value = self.values.get(field)
        if value is None:
            return default
        require_integer(field, value, low=1, high=high)
        return int(value)

    def flag(self, field: str, default: bool) -> bool:
        """True or false, or `default` where it is absent."""
        value = self.values.get(field)
        if value is not None and type(value) is not bool:
            raise UsageError(f"{field} is {shown(value)}, expected true or false")
        return default if value is None else value

    def choice(self, field: str, allowed: tuple[str, ...], default: str) -> str:
        """One of `allowed`, or `default` where it is absent."""
        value = self.values.get(field)
        if value is None:
            return default
        if len(allowed) == 1 and value != allowed[0]:
            raise UsageError(f"{field} is {shown(value)}, expected {allowed[0]}")
        if len(allowed) > 1:
            require_choice(field, value, allowed)
        return str(value)

    def table(self, field: str) -> "_Config":
        """A nested table, empty where it is absent."""
        value = self.values.get(field)
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{field} is {shown(value)}, expected a table or null")
        return _Config(value or {})


def _family(config: _Config) -> Callable[[_Config, str], ModelConfig]:
    kind = config.values["model_type"]
    for field in _EXPERTS:
        if config.optional_integer(field, 1) > 1:
            raise UsageError(f"{field} is {config.values[field]}: mixtures of experts are not modelled yet")
    known = ", ".join(_FAMILIES)
    if type(kind) is str and kind not in _FAMILIES and any(part in kind for part in _EXPERT_TYPES):
        raise UsageError(
            f"model_type is {shown(kind)}: mixtures of experts are not modelled yet, expected {known}"
        )
    if type(kind) is not str or kind not in _FAMILIES:
        raise UsageError(f"model_type is {shown(kind)}, expected {known}")
    if config.values.get("quantization_config") is not None:
        raise UsageError("quantization_config is set: training quantised weights is not modelled")
    return _FAMILIES[kind]


def _llama(config: _Config, name: str) -> ModelConfig:
    attention = config.flag("attention_bias", False)
    mlp = config.flag("mlp_bias", False)
    biases = {(True, True): "all", (True, False): "attention", (False, True): "mlp"}.get(
        (attention, mlp), "none"
    )
    return _gated(config, name, biases=biases, window=0)


def _mistral(config: _Config, name: str) -> ModelConfig:
    return _gated(config, name, biases="none", window=config.optional_integer("sliding_window", 0))


def _qwen2(config: _Config, name: str) -> ModelConfig:
    windowed = config.flag("use_sliding_window", False)
    window = config.optional_integer("sliding_window", 0) if windowed else 0
    return _gated(config, name, biases="qkv", window=window)


def _gated(config: _Config, name: str, *, biases: Any, window: int) -> ModelConfig:
    """What llama, mistral and qwen2 share: RMSNorm, SwiGLU, rotary embedding, grouped queries."""
    config.choice("hidden_act", ("silu",), "silu")
    heads = config.integer("num_attention_heads")
    return ModelConfig(
        name=name,
        hidden_size=config.integer("hidden_size"),
        sequence_length=_sequence_length(config, "max_position_embeddings", window),
        attention_heads=heads,
        kv_heads=config.optional_integer("num_key_value_heads", heads),
        head_size=config.optional_integer("head_dim", 0) or DERIVED,
        layers=config.integer("num_hidden_layers", high=MAX_LAYERS),
        vocabulary_size=config.integer("vocab_size"),
        mlp_size=config.integer("intermediate_size"),
        norm="rms_norm",
        activation="swiglu",
        biases=biases,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        sliding_window=window,
    )


def _gpt_neox(config: _Config, name: str) -> ModelConfig:
    config.choice("hidden_act", _GELU, "gelu")
    return ModelConfig(
        name=name,
        hidden_size=config.integer("hidden_size"),
        sequence_length=_sequence_length(config, "max_position_embeddings", 0),
        attention_heads=config.integer("num_attention_heads"),
        layers=config.integer("num_hidden_layers", high=MAX_LAYERS),
        vocabulary_size=config.integer("vocab_size"),
        mlp_size=config.integer("intermediate_size"),
        parallel_residual=config.flag("use_parallel_residual", True),
        biases="all" if config.flag("attention_bias", True) else "mlp",
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )


def _gpt2(config: _Config, name: str) -> ModelConfig:
    config.choice("activation_function", _GELU, "gelu_new")
    positions = config.integer("n_positions")
    hidden_size = config.integer("n_embd")
    return ModelConfig(
        name=name,
        hidden_size=hidden_size,
        sequence_length=positions,
        attention_heads=config.integer("n_head"),
        layers=config.integer("n_layer", high=MAX_LAYERS),
        vocabulary_size=config.integer("vocab_size"),
        mlp_size=config.optional_integer("n_inner", 4 * hidden_size),
        rotary=False,
        learned_positions=positions,
        tied_embeddings=config.flag("tie_word_embeddings", True),
    )


_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
_FAMILIES: Mapping[str, Callable[[_Config, str], ModelConfig]] = MappingProxyType(
    {"llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "gpt_neox": _gpt_neox, "gpt2": _gpt2}
)


def _sequence_length(config: _Config, field: str, window: int) -> int:
    lengths = [config.integer(field)]
    # Newer files keep the scaling beside the rotary base, in rope_parameters.
    for table in ("rope_scaling", "rope_parameters"):
        lengths.append(config.table(table).optional_integer("original_max_position_embeddings", lengths[0]))
    return min([*lengths, window] if window else lengths)


def _name(config: _Config, path: Path) -> str:
    given = config.values.get("_name_or_path")
    last = given.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if type(given) is str else ""
    folder = path.resolve().parent.name if path.stem == "config" else path.stem
    for name in (last, folder, str(config.values["model_type"])):
        if name.strip(" .") and name.isprintable():
            return name
    return "model"
