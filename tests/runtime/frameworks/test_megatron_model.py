"""The model that Megatron-LM's flags describe, alone and in a configuration of its functional tests."""

from dataclasses import replace

import pytest

from kernelcast.runtime import UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text

MODEL = load_model("llama-3-8b")
CONFIG = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --tensor-model-parallel-size: 2
  --recompute-granularity: selective
  --recompute-modules: [core_attn mlp]
  --swiglu: true
  --sequence-parallel: false
  --bf16: true
  --vocab-size: 50257
TEST_TYPE: regular
"""


def test_the_configuration_of_a_functional_test_is_model_and_layout() -> None:
    file = read_layout_text(CONFIG, "model_config.yaml")
    model = file.model()
    assert (model.layers, model.hidden_size, model.vocabulary_size) == (12, 512, 50_257)
    assert (model.learned_positions, model.rotary, model.tied_embeddings) == (1024, False, True)
    assert model.biases == "all"
    assert model.mlp_size == 1344  # a multiple of 64 near 4 · 512 · 2 / 3
    fields, _, _ = file.request(model, {}, 8)
    expected = {"tp": 2, "dp": 4, "recompute_modules": ("core_attn", "mlp"), "sequence_parallel": False}
    assert expected.items() <= fields.items()


def test_arguments_of_other_models_are_refused() -> None:
    text = CONFIG.replace("--swiglu: true", "--hybrid-layer-pattern: M-M*")
    with pytest.raises(
        UsageError, match=r"hybrid-layer-pattern is 'M-M\*', expected a decoder-only transformer"
    ):
        read_layout_text(text, "model_config.yaml").model()


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("--tokenizer-type: Llama2Tokenizer\n  --tokenizer-model: own.model", 32_000),
        ("--tokenizer-type: HuggingFaceTokenizer\n  --tokenizer-model: meta-llama/Meta-Llama-3-8B", 128_256),
        ("--vocab-file: data/bpe/vocab.json", 50_257),
        ("--tokenizer-type: GPT2BPETokenizer", 50_257),
        ("--tokenizer-type: Llama2Tokenizer", 32_000),
        ("--tokenizer-model: words.model", "and the tokenizer words.model is unknown: give it or --model"),
        ("", "model_config.yaml: --vocab-size is missing: give it or --model"),
    ],
)
def test_the_vocabulary_of_a_tokenizer(setting: str, found: int | str) -> None:
    file = read_layout_text(CONFIG.replace("--vocab-size: 50257", setting), "model_config.yaml")
    if isinstance(found, int):
        assert file.model().vocabulary_size == found
        assert not any("tokenizer" in key or "vocab" in key for key in file.unread_keys)
    else:
        with pytest.raises(UsageError, match=found):
            file.model()
    assert read_layout_text(f"{CONFIG}  {setting}\n", "").model().vocabulary_size == 50_257


def test_an_unknown_vocabulary_file_of_a_known_tokenizer_has_a_note() -> None:
    flags = "pretrain_gpt.py --tokenizer-type GPT2BPETokenizer --vocab-file {} --micro-batch-size 1"
    note = "--vocab-file own.json is not read: 50,257 entries are taken, GPT2BPETokenizer's"
    for file, found in (("own.json", True), ("bpe/vocab.json", False)):
        _, notes, _ = read_layout_text(flags.format(file), "x").request(
            replace(MODEL, vocabulary_size=50_257), {}, 8
        )
        assert (note in notes) == found
