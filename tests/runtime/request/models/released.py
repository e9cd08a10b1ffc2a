"""Fields of config.json of released models that matter, as facts, with the values of the released configurations."""

from typing import Any

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
    "nemotron-3-super": sizes("nemotron_h", 4096, 88, 32, 2688, 131_072, 262_144, num_key_value_heads=2, head_dim=128,
                              hybrid_override_pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*" + 4 * "EMEMEMEMEM*"
                              + "EMEMEMEM*EMEMEMEME", mamba_num_heads=128, mamba_head_dim=64, n_groups=8,
                              ssm_state_size=128, conv_kernel=4, n_routed_experts=512, num_experts_per_tok=22,
                              moe_intermediate_size=2688, moe_latent_size=1024,
                              moe_shared_expert_intermediate_size=5376, mlp_hidden_act="relu2", use_conv_bias=True,
                              mamba_proj_bias=False, rope_theta=10_000, num_nextn_predict_layers=2),
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
