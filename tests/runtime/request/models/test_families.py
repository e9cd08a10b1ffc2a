"""Every family of config.json: fields of released models, against the built-in models or published parameters.

Only fields that matter are written here, as facts, with the values of the released configurations.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import KernelcastError
from kernelcast.runtime.request.models import find_model, load_model
from kernelcast.runtime.request.models.families import families
from kernelcast.runtime.step.kinds import kinds_of
from kernelcast.runtime.step.parameters import active_parameters, total_parameters

Values = dict[str, Any]


def sizes(
    family: str, d: int, layers: int, heads: int, mlp: int, vocabulary: int, positions: int, **more: Any
) -> Values:
    """The fields that most families call the same."""
    return {
        "model_type": family,
        "hidden_size": d,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        **more,
    }


def llama4(experts: int, step: int, positions: int) -> Values:
    """Text model next to a vision encoder; every fourth layer has no positions."""
    text = sizes(
        "llama4_text", 5120, 48, 40, 8192, 202_048, positions, num_key_value_heads=8, head_dim=128,
        intermediate_size_mlp=16384, num_local_experts=experts, num_experts_per_tok=1, use_qk_norm=True,
        interleave_moe_layer_step=step, attention_chunk_size=8192, no_rope_layers=[1, 1, 1, 0] * 12,
        rope_scaling={"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    )  # fmt: skip
    return {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}


def deepseek(
    family: str, d: int, layers: int, heads: int, mlp: int, vocabulary: int, positions: int, **more: Any
) -> Values:
    """Latent attention, and experts after the first layers."""
    latent = {
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_layer_freq": 1,
        "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 4096},
    }
    return sizes(family, d, layers, heads, mlp, vocabulary, positions, **latent, **more)


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
LOCAL, GLOBAL = "sliding_attention", "full_attention"

# fmt: off
BUILT_IN: dict[str, Values] = {
    "llama-3.1-405b": sizes("llama", 16384, 126, 128, 53248, 128_256, 131_072, num_key_value_heads=8,
                            rope_scaling={"original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    "llama-3.2-1b": sizes("llama", 2048, 16, 32, 8192, 128_256, 131_072, num_key_value_heads=8, head_dim=64,
                          tie_word_embeddings=True, rope_scaling={"original_max_position_embeddings": 8192}),
    "llama-4-scout": llama4(16, 1, 10_485_760),
    "llama-4-maverick": llama4(128, 2, 1_048_576),
    "mistral-7b": sizes("mistral", 4096, 32, 32, 14336, 32_000, 32_768, num_key_value_heads=8, sliding_window=4096),
    "mixtral-8x22b": sizes("mixtral", 6144, 56, 48, 16384, 32_000, 65_536, num_key_value_heads=8,
                           num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "qwen2.5-72b": sizes("qwen2", 8192, 80, 64, 29568, 152_064, 131_072, num_key_value_heads=8,
                         use_sliding_window=False, sliding_window=131_072, max_window_layers=70),
    "qwen3-0.6b": sizes("qwen3", 1024, 28, 16, 3072, 151_936, 40_960, num_key_value_heads=8, head_dim=128,
                        attention_bias=False, tie_word_embeddings=True, use_sliding_window=False),
    "qwen3-235b-a22b": sizes("qwen3_moe", 4096, 94, 64, 12288, 151_936, 40_960, num_key_value_heads=4, head_dim=128,
                             num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536, mlp_only_layers=[],
                             decoder_sparse_step=1, use_sliding_window=False),
    "gemma-2-27b": sizes("gemma2", 4608, 46, 32, 36864, 256_000, 8192, num_key_value_heads=16, head_dim=128,
                         sliding_window=4096, hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=30.0),
    "gemma-3-27b": {"model_type": "gemma3", "vision_config": {}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024}},
    "gemma-3-4b": {"model_type": "gemma3", "vision_config": {}, "text_config": {
        "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240, "sliding_window": 1024}},
    "deepseek-v2": deepseek("deepseek_v2", 5120, 60, 128, 12288, 102_400, 163_840, q_lora_rank=1536,
                            n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6,
                            moe_intermediate_size=1536, first_k_dense_replace=1, scoring_func="softmax"),
    "deepseek-v2-lite": deepseek("deepseek_v2", 2048, 27, 16, 10944, 102_400, 163_840, q_lora_rank=None,
                                 n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
                                 moe_intermediate_size=1408, first_k_dense_replace=1, scoring_func="softmax"),
    "deepseek-v3": deepseek("deepseek_v3", 7168, 61, 128, 18432, 129_280, 163_840, q_lora_rank=1536,
                            n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                            moe_intermediate_size=2048, first_k_dense_replace=3, scoring_func="sigmoid",
                            num_nextn_predict_layers=1, quantization_config=FP8),
    "kimi-k2": deepseek("kimi_k2", 7168, 61, 64, 18432, 163_840, 131_072, q_lora_rank=1536, n_routed_experts=384,
                        n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
                        first_k_dense_replace=1, scoring_func="sigmoid", num_nextn_predict_layers=0,
                        quantization_config=FP8),
    "gpt-oss-20b": sizes("gpt_oss", 2880, 24, 64, 2880, 201_088, 131_072, num_key_value_heads=8, head_dim=64,
                         num_local_experts=32, num_experts_per_tok=4, sliding_window=128, attention_bias=True,
                         layer_types=[LOCAL, GLOBAL] * 12, rope_scaling={"original_max_position_embeddings": 4096},
                         quantization_config={"quant_method": "mxfp4"}),
    "glm-4.5": sizes("glm4_moe", 5120, 92, 96, 12288, 151_552, 131_072, num_key_value_heads=8, head_dim=128,
                     n_routed_experts=160, n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=1536,
                     first_k_dense_replace=3, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5,
                     num_nextn_predict_layers=1),
    "phi-4": sizes("phi3", 5120, 40, 40, 17920, 100_352, 16_384, num_key_value_heads=10, sliding_window=None),
    "olmo-2-13b": sizes("olmo2", 5120, 40, 40, 13824, 100_352, 4096, num_key_value_heads=40),
    "olmoe-1b-7b": sizes("olmoe", 2048, 16, 16, 1024, 50_304, 4096, num_key_value_heads=16, num_experts=64,
                         num_experts_per_tok=8),
    "granite-3-8b": sizes("granite", 4096, 40, 32, 12800, 49_155, 4096, num_key_value_heads=8,
                          tie_word_embeddings=True, embedding_multiplier=12.0, residual_multiplier=0.22),
    "smollm3-3b": sizes("smollm3", 2048, 36, 16, 11008, 128_256, 65_536, num_key_value_heads=4),
    "falcon-7b": {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
                  "vocab_size": 65_024, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False},
    "falcon-180b": {"model_type": "falcon", "hidden_size": 14848, "n_head": 232, "n_layer": 80, "num_kv_heads": 8,
                    "vocab_size": 65_024, "new_decoder_architecture": True, "bias": False,
                    "tie_word_embeddings": False},
    "mpt-30b": {"model_type": "mpt", "d_model": 7168, "n_heads": 64, "n_layers": 48, "expansion_ratio": 4,
                "vocab_size": 50_432, "max_seq_len": 8192, "no_bias": True,
                "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False}},
    "starcoder2-15b": sizes("starcoder2", 6144, 40, 48, 24576, 49_152, 16_384, num_key_value_heads=4, use_bias=True,
                            sliding_window=4096, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False),
    "opt-66b": sizes("opt", 9216, 64, 72, 36864, 50_272, 2048, ffn_dim=36864, word_embed_proj_dim=9216,
                     activation_function="relu", do_layer_norm_before=True),
    "nemotron-3-nano": sizes("nemotron_h", 2688, 52, 32, 1856, 131_072, 262_144, num_key_value_heads=2, head_dim=128,
                             hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                             mamba_num_heads=64, mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4,
                             n_routed_experts=128, num_experts_per_tok=6, moe_intermediate_size=1856,
                             moe_shared_expert_intermediate_size=3712, mlp_hidden_act="relu2", use_conv_bias=True,
                             mamba_proj_bias=False, rope_theta=10_000),
    "qwen3-next-80b-a3b": sizes("qwen3_next", 2048, 48, 16, 5120, 151_936, 262_144, num_key_value_heads=2,
                                head_dim=256, full_attention_interval=4, linear_num_value_heads=32,
                                linear_value_head_dim=128, linear_num_key_heads=16, linear_key_head_dim=128,
                                linear_conv_kernel_dim=4, num_experts=512, num_experts_per_tok=10,
                                moe_intermediate_size=512, shared_expert_intermediate_size=512,
                                decoder_sparse_step=1, mlp_only_layers=[], partial_rotary_factor=0.25),
    "gpt-neox-20b": sizes("gpt_neox", 6144, 44, 64, 24576, 50_432, 2048, rotary_pct=0.25, hidden_act="gelu_fast"),
}

PUBLISHED: dict[str, tuple[int, Values]] = {
    # Counts of the released checkpoints, of Olmo 3 and Granite as their cards print them.
    "Qwen1.5-MoE-A2.7B": (14_315_784_192, sizes(
        "qwen2_moe", 2048, 24, 16, 5632, 151_936, 8192, num_key_value_heads=16, num_experts=60, num_experts_per_tok=4,
        moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1)),
    "nemotron-nano-9b-v2": (8_888_227_328, sizes(
        "nemotron_h", 4480, 56, 40, 15680, 131_072, 131_072, num_key_value_heads=8, head_dim=128, mamba_num_heads=128,
        mamba_head_dim=80, n_groups=8, ssm_state_size=128, mlp_hidden_act="relu2",
        hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-")),
    "gemma-7b": (8_537_680_896, sizes(
        "gemma", 3072, 28, 16, 24576, 256_000, 8192, num_key_value_heads=16, head_dim=256, hidden_act="gelu")),
    "Phi-4-mini": (3_836_021_760, sizes(
        "phi3", 3072, 32, 24, 8192, 200_064, 131_072, num_key_value_heads=8, partial_rotary_factor=0.75,
        tie_word_embeddings=True, original_max_position_embeddings=4096)),
    "Olmo-3-7B": (7_300_000_000, sizes(
        "olmo3", 4096, 32, 32, 11008, 100_278, 8192, num_key_value_heads=32, sliding_window=4096,
        layer_types=[LOCAL, LOCAL, LOCAL, GLOBAL] * 8)),
    "granite-3.0-3b-a800m": (3_300_000_000, sizes(
        "granitemoe", 1536, 32, 24, 512, 49_155, 4096, num_key_value_heads=8, num_local_experts=40,
        num_experts_per_tok=8, tie_word_embeddings=True)),
    "opt-6.7b": (6_658_473_984, sizes("opt", 4096, 32, 32, 16384, 50_272, 2048, ffn_dim=16384)),
    "phi-2": (2_779_683_840, sizes("phi", 2560, 32, 32, 10240, 51_200, 2048, partial_rotary_factor=0.4)),
    "stablelm-2-12b": (12_143_605_760, sizes(
        "stablelm", 5120, 40, 32, 13824, 100_352, 4096, num_key_value_heads=8, partial_rotary_factor=0.25,
        qk_layernorm=True, use_parallel_residual=True)),
    "falcon-40b": (41_303_293_952, {
        "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
        "vocab_size": 65_024, "new_decoder_architecture": True, "num_kv_heads": 8, "bias": False}),
}
# fmt: on


def written(folder: Path, values: Values, name: str = "config") -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_configuration_is_read_as_the_built_in_model(tmp_path: Path, name: str) -> None:
    built_in = load_model(name)
    model = load_model(written(tmp_path, BUILT_IN[name], name), sequence_length=built_in.sequence_length)
    assert model == built_in


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(tmp_path: Path, name: str) -> None:
    published, values = PUBLISHED[name]
    model = load_model(written(tmp_path, values, name))
    assert total_parameters(model) == pytest.approx(published, rel=0.01)


def test_every_family_is_read_by_a_test() -> None:
    values = [*BUILT_IN.values(), *(one for _, one in PUBLISHED.values())]
    read = {one.get("text_config", one).get("model_type") for one in values}
    # test_huggingface.py has the others.
    assert read | {"gpt2"} >= set(families().known)


def test_active_parameters_of_qwens_older_mixture(tmp_path: Path) -> None:
    # The model's name and card: 2.7 billion.
    model = load_model(written(tmp_path, PUBLISHED["Qwen1.5-MoE-A2.7B"][1]))
    assert active_parameters(model) == pytest.approx(2.7e9, rel=0.02)


def test_lengths_of_training(tmp_path: Path) -> None:
    names = (
        "llama-3.1-405b",
        "deepseek-v3",
        "gpt-oss-20b",
        "llama-4-scout",
        "gemma-2-27b",
        "opt-66b",
        "falcon-7b",
    )
    found = {name: find_model(written(tmp_path, BUILT_IN[name], name)) for name in names}
    assert {name: one.model.sequence_length for name, one in found.items()} == {
        "llama-3.1-405b": 8192,
        "deepseek-v3": 4096,
        "gpt-oss-20b": 4096,
        "llama-4-scout": 8192,
        "gemma-2-27b": 8192,
        "opt-66b": 2048,
        "falcon-7b": 2048,
    }
    assert all(one.require_length() is one for one in found.values())


def test_a_length_that_is_only_the_longest(tmp_path: Path) -> None:
    path = written(tmp_path, BUILT_IN["qwen2.5-72b"])
    found = find_model(path)
    assert found.model.sequence_length == 131_072
    said = f"model file {path}: max_position_embeddings is 131072, the longest sequence that the model serves"
    assert found.all_notes == (f"{said}, and is predicted; sequence_length gives that of training",)
    with pytest.raises(UsageError) as caught:
        found.require_length()
    assert str(caught.value) == (
        f"{said}, expected sequence_length (--sequence-length) with the tokens of a sequence in training"
    )
    given = find_model(path, sequence_length=4096)
    assert given.require_length().model.sequence_length == 4096
    assert given.all_notes == ()


def test_other_parts_are_said(tmp_path: Path) -> None:
    path = written(tmp_path, BUILT_IN["llama-4-scout"])
    assert find_model(path).notes == (
        f"model file {path}: the vision encoder of llama4 is left aside, the text model alone is predicted",
    )
    path = written(tmp_path, BUILT_IN["gpt-oss-20b"])
    [note] = find_model(path).notes
    assert note.endswith(
        "its weights are stored in mxfp4; training is predicted in the type of the measured operators"
    )


@pytest.mark.parametrize("kind", families().refused)
def test_another_mathematics_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, {"model_type": kind, "hidden_size": 8})
    with pytest.raises(UsageError) as caught:
        load_model(path)
    assert str(caught.value) == f"model file {path}: model_type is {kind!r}: {families().refused[kind]}"


def test_an_unknown_model_with_other_layers_is_refused_by_them(tmp_path: Path) -> None:
    values = {"model_type": "new", "ssm_cfg": {"layer": "Mamba2"}, "index_topk": 2048, "state_size": None}
    path = written(tmp_path, values)
    layers = r"of state-space and recurrent layers only .* \(ssm_cfg\); .*sparse attention.* \(index_topk\)$"
    with pytest.raises(UsageError, match=f"model_type is 'new': {layers}"):
        find_model(path)


def test_an_unknown_model_with_a_vision_encoder(tmp_path: Path) -> None:
    path = written(tmp_path, {"model_type": "new_vl", "vision_config": {}})
    with pytest.raises(UsageError, match="model_type is 'new_vl': a vision or audio encoder is not modelled"):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt-oss-20b", {"layer_types": [LOCAL] * 23 + [GLOBAL]}, None),
        ("gpt-oss-20b", {"layer_types": [GLOBAL, LOCAL] * 12}, "layers [0, 2, 4, 6, 8, 10, 12, 14] of 24 look back"),
        ("gpt-oss-20b", {"layer_types": [GLOBAL] * 23}, "kinds of layers are 23, expected 24, one per layer"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types has 'linear_attention', expected"),
        ("gpt-oss-20b", {"layer_types": 3}, "layer_types is 3, expected a list or null"),
        ("gpt-oss-20b", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is set: training"),
        ("qwen3-235b-a22b", {"mlp_only_layers": [5]}, "mlp_only_layers is [5], expected the first layers"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ("deepseek-v3", {"scoring_func": "tanh"}, "scoring_func is 'tanh', expected softmax or sigmoid"),
        ("glm-4.5", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5, expected a number above 0"),
        ("opt-66b", {"do_layer_norm_before": False}, "do_layer_norm_before is false, expected true"),
        ("mixtral-8x22b", {"num_local_experts": None}, "field num_local_experts is missing, expected a whole"),
        ("mixtral-8x22b", {"num_experts_per_tok": 9}, "experts_per_token is 9, expected from 1 to experts (8)"),
        ("nemotron-3-nano", {"moe_latent_size": 1024}, "moe_latent_size is 1024, expected 0"),
        ("nemotron-3-nano", {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "rwkv"]},
         "layers_block_type is 'rwkv', expected mamba, linear_attention, attention, full_attention, mlp or moe"),
        ("nemotron-3-nano", {"hybrid_override_pattern": "MEZ"}, "layer_pattern is 'MEZ', expected letters of M mamba2"),
        ("nemotron-3-nano", {"hybrid_override_pattern": None}, "recurrent_heads is 64, expected 0 without M or G"),
        ("qwen3-next-80b-a3b", {"mlp_only_layers": [0]}, "mlp_only_layers is [0], expected []"),
        ("qwen3-next-80b-a3b", {"layer_types": [3]}, "layer_types is 3, expected mamba, linear_attention"),
        ("phi-4", {"num_experts": 8}, "num_experts is 8, expected none: phi3 has no experts"),
    ],
)  # fmt: skip
def test_changes(tmp_path: Path, name: str, change: Values, message: str | None) -> None:
    path = written(tmp_path, BUILT_IN[name] | change)
    if message is None:
        assert load_model(path).global_interval == 24
        return
    with pytest.raises(UsageError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"model file {path}: {message}")
    assert "\n" not in str(caught.value)


def test_patterns_of_layers_one_by_one(tmp_path: Path) -> None:
    names = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    nano = BUILT_IN["nemotron-3-nano"]
    kinds = [names[letter] for letter in nano["hybrid_override_pattern"]]
    listed = {"hybrid_override_pattern": None, "layers_block_type": kinds}
    assert load_model(
        written(tmp_path, nano | listed, "nemotron-3-nano"), sequence_length=8192
    ) == load_model("nemotron-3-nano")
    # Nemotron-H has MLPs in the place of experts: 8 billion parameters (arXiv 2504.03624, Table 1).
    dense = sizes(
        "nemotron_h", 4096, 52, 32, 21504, 131_072, 8192, num_key_value_heads=8, head_dim=128,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", mamba_num_heads=128,
        mamba_head_dim=64, n_groups=8, ssm_state_size=128, n_routed_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    model = load_model(written(tmp_path, dense))
    assert (model.experts, model.router) == (0, "softmax")
    assert total_parameters(model) == pytest.approx(8.1e9, rel=0.01)
    types = ["linear_attention"] * 3 + ["full_attention"]
    spelled = BUILT_IN["qwen3-next-80b-a3b"] | {"layer_types": types * 12}
    assert kinds_of(load_model(written(tmp_path, spelled), sequence_length=4096)) == kinds_of(
        load_model("qwen3-next-80b-a3b")
    )


def test_qwens_windows_begin_with_a_layer(tmp_path: Path) -> None:
    used = BUILT_IN["qwen2.5-72b"] | {"use_sliding_window": True, "sliding_window": 4096}
    assert load_model(written(tmp_path, used | {"max_window_layers": 80})).sliding_window == 0
    assert load_model(written(tmp_path, used | {"max_window_layers": 0})).sliding_window == 4096
    with pytest.raises(UsageError, match="of 80 look back to the first token, expected every n-th"):
        load_model(written(tmp_path, used))


def test_layers_without_positions_are_every_nth(tmp_path: Path) -> None:
    smol = BUILT_IN["smollm3-3b"]
    every_third = [1, 1, 0] * 12
    assert load_model(written(tmp_path, smol | {"no_rope_layers": every_third})).unrotated_interval == 3
    assert load_model(written(tmp_path, smol | {"no_rope_layers": [1] * 36})).unrotated_interval == 0
    with pytest.raises(UsageError, match="of 36 have no positions, expected every n-th"):
        load_model(written(tmp_path, smol | {"no_rope_layers": [0, *every_third[1:]]}))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
_FIELDS = sorted({name for values in BUILT_IN.values() for name in values.get("text_config", values)})


@settings(deadline=None)
@given(
    base=st.sampled_from([values.get("text_config", values) for values in BUILT_IN.values()]),
    kind=st.none() | st.sampled_from(sorted(families().known)),
    change=st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3),
)
def test_any_file_is_a_model_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, base: Values, kind: str | None, change: Values
) -> None:
    values = base | ({} if kind is None else {"model_type": kind}) | change
    path = written(tmp_path_factory.getbasetemp(), values, "any")
    refusal, parameters = "", 0
    try:
        parameters = total_parameters(find_model(path).model)
    except KernelcastError as error:
        refusal = str(error)
    assert refusal or parameters > 0
    if refusal:
        assert refusal.startswith(f"model file {path}: ")
        assert refusal.isprintable()
        assert len(refusal) < 800
