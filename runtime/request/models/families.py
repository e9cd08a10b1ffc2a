"""Which field of a family's `config.json` gives which field of `ModelConfig`: one row per family.

For every field that differs from its default, a row has the names in config.json (`of`), a value that is the same in
the whole family, or a reader that computes it. Names and defaults come from the configuration classes of Hugging Face's
transformers (src/transformers/models/*/configuration_*.py).
"""

from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.request.model import DERIVED
from kernelcast.runtime.request.models.computed import (
    all_biases_or,
    biases,
    falcons_kv_heads,
    falcons_parallel_residual,
    first_dense,
    gated,
    global_interval,
    more,
    mpts_kv_heads,
    mpts_norms_of_heads,
    mpts_positions,
    no_biases_if,
    plain,
    product,
    rotated,
    times,
    total,
    unless,
    unrotated_interval,
    window,
)

NEEDED = object()


@dataclass(frozen=True, slots=True)
class Given:
    """Names of a configuration's field, the first present one counts, and its default."""

    names: tuple[str, ...]
    default: Any


def of(*names: str, default: Any = NEEDED) -> Given:
    """A field of the configuration; needed without a default."""
    return Given(names, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row. `only` are fields that change the mathematics, with the one value that is modelled (or absent)."""

    fields: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=dict)

    def but(self, *, only: Mapping[str, Any] | None = None, **fields: Any) -> "Family":
        """The same with other fields."""
        return replace(self, fields={**self.fields, **fields}, only={**self.only, **(only or {})})


_BASE = Family(
    fields={
        "hidden_size": of("hidden_size"),
        "sequence_length": of("max_position_embeddings"),
        "attention_heads": of("num_attention_heads"),
        "kv_heads": of("num_key_value_heads", default=DERIVED),
        "head_size": of("head_dim", default=DERIVED),
        "layers": of("num_hidden_layers"),
        "vocabulary_size": of("vocab_size"),
        "mlp_size": of("intermediate_size"),
        "tied_embeddings": of("tie_word_embeddings", default=False),
    }
)
_GATED = _BASE.but(norm="rms_norm", activation=gated(), biases=biases("attention_bias"))
_PLAIN = _BASE.but(norm="layer_norm", activation=plain())
_LLAMA = _GATED.but(biases=biases("attention_bias", "mlp_bias"))
_MISTRAL = _GATED.but(biases="none", sliding_window=of("sliding_window", default=0))
_WINDOW_IF_USED: dict[str, Any] = {"sliding_window": window(), "global_interval": global_interval()}
_QWEN2 = _GATED.but(biases="qkv", **_WINDOW_IF_USED)
_QWEN3 = _GATED.but(qk_norm=True, **_WINDOW_IF_USED)
_MIXTURE: dict[str, Any] = {
    "experts": of("num_local_experts"),
    "experts_per_token": of("num_experts_per_tok"),
}
_QWEN_MIXTURE: dict[str, Any] = {
    "experts": of("num_experts"),
    "experts_per_token": of("num_experts_per_tok"),
    "expert_size": of("moe_intermediate_size"),
    "expert_interval": of("decoder_sparse_step", default=1),
    "dense_layers": first_dense("mlp_only_layers"),
}
_DEEPSEEK_MIXTURE: dict[str, Any] = {
    "experts": of("n_routed_experts", default=0),
    "experts_per_token": of("num_experts_per_tok", default=0),
    "expert_size": of("moe_intermediate_size", default=0),
    "shared_expert_size": product("n_shared_experts", "moe_intermediate_size"),
    "dense_layers": of("first_k_dense_replace", default=0),
    "extra_predictions": of("num_nextn_predict_layers", default=0),
}
_GEMMA = _GATED.but(
    activation=gated("gelu_pytorch_tanh"), tied_embeddings=of("tie_word_embeddings", default=True)
)
_DEEPSEEK_V2 = _GATED.but(
    only={"moe_layer_freq": 1},
    biases="none",
    kv_heads=DERIVED,
    head_size=total("qk_nope_head_dim", "qk_rope_head_dim"),
    rotary_size=of("qk_rope_head_dim"),
    value_head_size=of("v_head_dim"),
    query_rank=of("q_lora_rank", default=0),
    kv_rank=of("kv_lora_rank"),
    router=of("scoring_func", default="softmax"),
    **_DEEPSEEK_MIXTURE,
)
_DEEPSEEK_V3 = _DEEPSEEK_V2.but(router=of("scoring_func", default="sigmoid"))
_OLMO2 = _GATED.but(qk_norm=True)
_GPT2 = _PLAIN.but(
    hidden_size=of("n_embd"),
    sequence_length=of("n_positions"),
    attention_heads=of("n_head"),
    layers=of("n_layer"),
    mlp_size=of("n_inner", default=DERIVED),
    rotary=False,
    learned_positions=of("n_positions"),
    tied_embeddings=of("tie_word_embeddings", default=True),
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    # Norms of queries and keys have no weights.
    "llama4_text": _GATED.but(
        mlp_size=of("intermediate_size_mlp"),
        expert_size=of("intermediate_size"),
        shared_expert_size=of("intermediate_size"),
        expert_interval=of("interleave_moe_layer_step", default=1),
        router="sigmoid",
        qk_norm=of("use_qk_norm", default=True),
        unrotated_interval=unrotated_interval(4),
        sliding_window=window(8192, names=("attention_chunk_size",), interval=4),
        global_interval=global_interval(4),
        window_chunks=True,
        **_MIXTURE,
    ),
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL.but(**_MIXTURE),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2.but(
        shared_expert_size=of("shared_expert_intermediate_size", default=0), **_QWEN_MIXTURE
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3.but(**_QWEN_MIXTURE),
    "gemma": _GEMMA,
    "gemma2": _GEMMA.but(
        post_norms=True, sliding_window=window(4096, interval=2), global_interval=global_interval(2)
    ),
    # Files of the released models leave out what is the class's default.
    "gemma3_text": _GEMMA.but(
        attention_heads=of("num_attention_heads", default=8),
        kv_heads=of("num_key_value_heads", default=4),
        head_size=of("head_dim", default=256),
        vocabulary_size=of("vocab_size", default=262_208),
        sequence_length=of("max_position_embeddings", default=131_072),
        qk_norm=True,
        post_norms=True,
        sliding_window=window(4096, interval=6),
        global_interval=global_interval(6),
    ),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": _GATED.but(
        biases=all_biases_or("attention_bias"),
        attention_sinks=True,
        sliding_window=window(128, interval=2),
        global_interval=global_interval(2),
        experts=of("num_local_experts"),
        experts_per_token=of("num_experts_per_tok", "experts_per_token"),
    ),
    "glm4_moe": _GATED.but(
        biases=biases("attention_bias", attention_means="qkv"),
        qk_norm=of("use_qk_norm", default=False),
        router="sigmoid",
        rotary_size=rotated("partial_rotary_factor"),
        **_DEEPSEEK_MIXTURE,
    ),
    "phi3": _GATED.but(
        sliding_window=of("sliding_window", default=0), rotary_size=rotated("partial_rotary_factor")
    ),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2.but(sliding_window=window(interval=4), global_interval=global_interval(4)),
    "olmoe": _OLMO2.but(experts=of("num_experts"), experts_per_token=of("num_experts_per_tok")),
    "granite": _LLAMA,
    "granitemoe": _GATED.but(**_MIXTURE),
    "smollm3": _LLAMA.but(
        tied_embeddings=of("tie_word_embeddings", default=True), unrotated_interval=unrotated_interval(4)
    ),
    "opt": _PLAIN.but(
        only={"do_layer_norm_before": True},
        activation=plain("relu"),
        mlp_size=of("ffn_dim"),
        biases=biases("enable_bias", "enable_bias", default=True),
        rotary=False,
        learned_positions=more("max_position_embeddings", 2),
        tied_embeddings=of("tie_word_embeddings", default=True),
    ),
    "gpt2": _GPT2,
    "gpt_neox": _PLAIN.but(
        kv_heads=DERIVED,
        head_size=DERIVED,
        parallel_residual=of("use_parallel_residual", default=True),
        biases=all_biases_or("attention_bias"),
        rotary_size=rotated("rotary_pct", "partial_rotary_factor"),
    ),
    "falcon": _PLAIN.but(
        sequence_length=of("max_position_embeddings", default=2048),
        attention_heads=of("num_attention_heads", "n_head"),
        layers=of("num_hidden_layers", "n_layer"),
        kv_heads=falcons_kv_heads,
        mlp_size=of("ffn_hidden_size", default=DERIVED),
        biases=biases("bias", "bias"),
        parallel_residual=falcons_parallel_residual,
        rotary=unless("alibi"),
        tied_embeddings=of("tie_word_embeddings", default=True),
    ),
    "mpt": _PLAIN.but(
        hidden_size=of("d_model"),
        sequence_length=of("max_seq_len"),
        attention_heads=of("n_heads"),
        layers=of("n_layers"),
        kv_heads=mpts_kv_heads,
        head_size=DERIVED,
        mlp_size=times("hidden_size", "expansion_ratio", 4),
        biases=no_biases_if("no_bias"),
        qk_norm=mpts_norms_of_heads,
        rotary=False,
        learned_positions=mpts_positions,
        tied_embeddings=of("tie_word_embeddings", default=True),
    ),
    "starcoder2": _PLAIN.but(
        biases=biases("use_bias", "use_bias", default=True),
        sliding_window=of("sliding_window", default=0),
        tied_embeddings=of("tie_word_embeddings", default=True),
    ),
    "phi": _PLAIN.but(
        parallel_residual=True,
        biases="all",
        rotary_size=rotated("partial_rotary_factor"),
        qk_norm=of("qk_layernorm", default=False),
    ),
    "stablelm": _GATED.but(
        norm="layer_norm",
        biases=biases("use_qkv_bias", attention_means="qkv"),
        rotary_size=rotated("partial_rotary_factor"),
        parallel_residual=of("use_parallel_residual", default=False),
        qk_norm=of("qk_layernorm", default=False),
    ),
}
"""By `model_type`."""

TEXT_PART: Mapping[str, str] = {"llama4": "llama4_text", "gemma3": "gemma3_text", "mistral3": "mistral"}
"""Models with a vision encoder whose text model stands apart in `text_config`, and its usual `model_type`."""

_SCAN = "state-space or recurrent layers are not modelled"
_LINEAR = "linear attention is not modelled"
_SPARSE = "attention to chosen tokens (sparse attention) is not modelled"
_VISION = "a vision or audio encoder is not modelled"
_ENCODER = "an additional encoder is not modelled"
_BIDIRECTIONAL = "an encoder alone is not modelled"

_REASONS = {
    _SCAN: "mamba mamba2 falcon_mamba rwkv jamba bamba zamba zamba2 falcon_h1 recurrent_gemma nemotron_h "
    "granitemoehybrid xlstm lfm2 lfm2_moe plamo2",
    _LINEAR: "qwen3_next minimax minimax_text_01 minimax_m1 kimi_linear bailing_moe_linear olmo_hybrid",
    _SPARSE: "deepseek_v32 glm_moe_dsa",
    _VISION: "mllama llava llava_next qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe pixtral paligemma idefics2 idefics3 "
    "internvl glm4v glm4v_moe gemma3n phi3_v phi4mm phi4_multimodal deepseek_vl_v2 kimi_vl qwen2_audio",
    _ENCODER: "t5 mt5 umt5 bart mbart pegasus whisper",
    _BIDIRECTIONAL: "bert roberta xlm-roberta deberta-v2 electra modernbert",
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Why a `model_type` is not modelled."""
VISION = _VISION
