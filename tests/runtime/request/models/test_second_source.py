"""Sizes of built-in models as a second source has them, apart from the one that each file names.

Facts read from configurations in the repositories of others: Lightning-AI/litgpt (litgpt/config.py, commit 0006c97) for
dense models, Mixtral and Qwen 3; NVIDIA-NeMo/Megatron-Bridge (src/megatron/bridge/models, 2025) for DeepSeek, Kimi K2,
GLM-4.5, OLMoE, gpt-oss, Nemotron 3 Nano and Qwen3-Next; NVIDIA/NeMo (nemo/collections/llm/gpt/model/starcoder2.py) for
StarCoder 2;
huggingface/transformers (src/transformers/models/*/configuration_*.py, commit 008e574) for SmolLM3 and Llama 4 Scout;
openai/gpt-oss (gpt_oss/torch/model.py) for its windows; Granite's model cards (ibm-granite/granite-3.0-8b-base) and the
metadata of its files elsewhere (ollama.com/library/granite3-dense).
"""

import pytest

from kernelcast.runtime.request.models import load_model

# Layers, hidden size, heads, key-value heads, entries of a head, width of the MLP, rows of the embedding.
SIZES = {
    "falcon-7b": (32, 4544, 71, 1, 64, 18176, 65_024),
    "falcon-180b": (80, 14848, 232, 8, 64, 59392, 65_024),
    "llama-2-7b": (32, 4096, 32, 32, 128, 11008, 32_000),
    "llama-2-13b": (40, 5120, 40, 40, 128, 13824, 32_000),
    "llama-2-70b": (80, 8192, 64, 8, 128, 28672, 32_000),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128_256),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128_256),
    "llama-3-70b": (80, 8192, 64, 8, 128, 28672, 128_256),
    "llama-3.1-70b": (80, 8192, 64, 8, 128, 28672, 128_256),
    "llama-3.1-405b": (126, 16384, 128, 8, 128, 53248, 128_256),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128_256),
    "llama-3.2-3b": (28, 3072, 24, 8, 128, 8192, 128_256),
    "llama-3.3-70b": (80, 8192, 64, 8, 128, 28672, 128_256),
    "olmo-2-7b": (32, 4096, 32, 32, 128, 11008, 100_352),
    "olmo-2-13b": (40, 5120, 40, 40, 128, 13824, 100_352),
    "gemma-2-2b": (26, 2304, 8, 4, 256, 9216, 256_000),
    "gemma-2-9b": (42, 3584, 16, 8, 256, 14336, 256_000),
    "gemma-2-27b": (46, 4608, 32, 16, 128, 36864, 256_000),
    "gemma-3-1b": (26, 1152, 4, 1, 256, 6912, 262_144),
    # litgpt has the tokenizer's 262,144 tokens; embeddings of models with vision have 64 rows more (transformers'
    # Gemma3TextConfig).
    "gemma-3-4b": (34, 2560, 8, 4, 256, 10240, 262_208),
    "gemma-3-12b": (48, 3840, 16, 8, 256, 15360, 262_208),
    "gemma-3-27b": (62, 5376, 32, 16, 128, 21504, 262_208),
    "phi-4": (40, 5120, 40, 10, 128, 17920, 100_352),
    "mistral-7b": (32, 4096, 32, 8, 128, 14336, 32_000),
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 14336, 32_000),
    # litgpt has the 32,768 tokens of the instruction-tuned one.
    "mixtral-8x22b": (56, 6144, 48, 8, 128, 16384, 32_000),
    "qwen2.5-0.5b": (24, 896, 14, 2, 64, 4864, 151_936),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151_936),
    "qwen2.5-3b": (36, 2048, 16, 2, 128, 11008, 151_936),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 18944, 152_064),
    "qwen2.5-14b": (48, 5120, 40, 8, 128, 13824, 152_064),
    "qwen2.5-32b": (64, 5120, 40, 8, 128, 27648, 152_064),
    "qwen2.5-72b": (80, 8192, 64, 8, 128, 29568, 152_064),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151_936),
    "qwen3-1.7b": (28, 2048, 16, 8, 128, 6144, 151_936),
    "qwen3-4b": (36, 2560, 32, 8, 128, 9728, 151_936),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151_936),
    "qwen3-14b": (40, 5120, 40, 8, 128, 17408, 151_936),
    "qwen3-32b": (64, 5120, 64, 8, 128, 25600, 151_936),
    "qwen3-30b-a3b": (48, 2048, 32, 4, 128, 6144, 151_936),
    "qwen3-235b-a22b": (94, 4096, 64, 4, 128, 12288, 151_936),
    "deepseek-v2": (60, 5120, 128, 128, 192, 12288, 102_400),
    "deepseek-v2-lite": (27, 2048, 16, 16, 192, 10944, 102_400),
    "deepseek-v3": (61, 7168, 128, 128, 192, 18432, 129_280),
    "kimi-k2": (61, 7168, 64, 64, 192, 18432, 163_840),
    "glm-4.5": (92, 5120, 96, 8, 128, 12288, 151_552),
    "glm-4.5-air": (46, 4096, 96, 8, 128, 10944, 151_552),
    "gpt-oss-20b": (24, 2880, 64, 8, 64, 2880, 201_088),
    "gpt-oss-120b": (36, 2880, 64, 8, 64, 2880, 201_088),
    "starcoder2-15b": (40, 6144, 48, 4, 128, 24576, 49_152),
    "smollm3-3b": (36, 2048, 16, 4, 128, 11008, 128_256),
    "llama-4-scout": (48, 5120, 40, 8, 128, 16384, 202_048),
    "olmoe-1b-7b": (16, 2048, 16, 16, 128, 1024, 50_304),
    "granite-3-2b": (40, 2048, 32, 8, 64, 8192, 49_155),
    "granite-3-8b": (40, 4096, 32, 8, 128, 12800, 49_155),
    "nemotron-3-nano": (52, 2688, 32, 2, 128, 1856, 131_072),
    "nemotron-3-super": (88, 4096, 32, 2, 128, 2688, 131_072),
    "nemotron-h-56b": (118, 8192, 64, 8, 128, 32768, 131_072),
    "nemotron-nano-9b-v2": (56, 4480, 40, 8, 128, 15680, 131_072),
    "qwen3-next-80b-a3b": (48, 2048, 16, 2, 256, 5120, 151_936),
}
# Experts, of a token, width of one, of those that all tokens go to, first layers without.
EXPERTS = {
    "mixtral-8x7b": (8, 2, 14336, 0, 0),
    "mixtral-8x22b": (8, 2, 16384, 0, 0),
    "qwen3-30b-a3b": (128, 8, 768, 0, 0),
    "qwen3-235b-a22b": (128, 8, 1536, 0, 0),
    "deepseek-v2": (160, 6, 1536, 3072, 1),
    "deepseek-v2-lite": (64, 6, 1408, 2816, 1),
    "deepseek-v3": (256, 8, 2048, 2048, 3),
    "kimi-k2": (384, 8, 2048, 2048, 1),
    "glm-4.5": (160, 8, 1536, 1536, 3),
    "glm-4.5-air": (128, 8, 1408, 1408, 1),
    "llama-4-scout": (16, 1, 8192, 8192, 0),
    "olmoe-1b-7b": (64, 8, 1024, 0, 0),
    "gpt-oss-20b": (32, 4, 2880, 0, 0),
    "gpt-oss-120b": (128, 4, 2880, 0, 0),
    "nemotron-3-nano": (128, 6, 1856, 3712, 0),
    "nemotron-3-super": (512, 22, 2688, 5376, 0),
    "qwen3-next-80b-a3b": (512, 10, 512, 512, 0),
}
# Heads of Mamba-2 or value heads, their size, groups or key heads, size of the state or of a key head, parts of layers.
RECURRENT = {
    "nemotron-3-nano": (64, 64, 8, 128, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"),
    "qwen3-next-80b-a3b": (32, 128, 16, 128, "GE GE GE *E"),
}
# Ranks of queries and of keys with values, rotated entries, entries of a value head.
LATENT = {
    "deepseek-v2": (1536, 512, 64, 128),
    "deepseek-v2-lite": (0, 512, 64, 128),
    "deepseek-v3": (1536, 512, 64, 128),
    "kimi-k2": (1536, 512, 64, 128),
}
# Tokens that layers look back, and every which layer looks back to the first.
WINDOWS = {
    "gemma-2-2b": (4096, 2),
    "gemma-2-9b": (4096, 2),
    "gemma-2-27b": (4096, 2),
    "gemma-3-1b": (512, 6),
    "gemma-3-4b": (1024, 6),
    "gemma-3-12b": (1024, 6),
    "gemma-3-27b": (1024, 6),
    "mistral-7b": (4096, 0),
    "llama-4-scout": (8192, 4),
    # NeMo does not model the window, which its 4,096 tokens of pre-training do not reach.
    "starcoder2-15b": (4096, 0),
    "gpt-oss-20b": (128, 2),
    "gpt-oss-120b": (128, 2),
}
# Every n-th layer has no rotary embedding.
UNROTATED = {"llama-4-scout": 4, "smollm3-3b": 4}
BIASES = {"qwen2.5": "qkv", "glm-4.5": "qkv", "gpt-oss": "all", "starcoder2": "all"}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    model = load_model(name)
    found = (model.layers, model.hidden_size, model.attention_heads, model.kv_heads, model.head_size)
    assert (*found, model.mlp_size, model.vocabulary_size) == SIZES[name]
    assert (model.sliding_window, model.global_interval) == WINDOWS.get(name, (0, 0))
    assert model.unrotated_interval == UNROTATED.get(name, 0)
    assert model.biases == next((biases for of, biases in BIASES.items() if name.startswith(of)), "none")


@pytest.mark.parametrize("name", SIZES)
def test_experts(name: str) -> None:
    model = load_model(name)
    found = (
        model.experts,
        model.experts_per_token,
        model.expert_width if model.experts else 0,
        model.shared_expert_size,
        model.dense_layers,
    )
    assert found == EXPERTS.get(name, (0, 0, 0, 0, 0))


@pytest.mark.parametrize("name", SIZES)
def test_latent_attention(name: str) -> None:
    model = load_model(name)
    if name in LATENT:
        assert (model.query_rank, model.kv_rank, model.rotary_size, model.value_head_size) == LATENT[name]
    else:
        assert (model.query_rank, model.kv_rank) == (0, 0)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    model = load_model(name)
    heads = (model.recurrent_heads, model.recurrent_head_size)
    found = (*heads, model.recurrent_groups, model.recurrent_state_size, model.layer_pattern)
    assert found == RECURRENT[name]
