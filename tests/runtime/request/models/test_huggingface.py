"""Hugging Face configurations as downloaded (test_families.py has the families that are not here).

The files in configs/ hold the published values of the models they are named after.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.step.parameters import total_parameters

CONFIGS = Path(__file__).parent / "configs"


def changed(folder: Path, name: str, change: dict[str, Any], *, file: str = "config.json") -> Path:
    values = json.loads((CONFIGS / f"{name}.json").read_text()) | change
    path = folder / file
    path.write_text(json.dumps({field: value for field, value in values.items() if value != "absent"}))
    return path


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # The released checkpoints' own counts: every element of every tensor.
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
        ("mistral-nemo-12b", 12_247_782_400),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-0.5b", 494_032_768),
        ("gpt-neox-20b", 20_554_567_680),
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_are_exactly_those_of_the_checkpoint(name: str, published: int) -> None:
    assert total_parameters(load_model(CONFIGS / f"{name}.json")) == published


def test_llama() -> None:
    model = load_model(CONFIGS / "llama-2-7b.json")
    assert asdict(model) == asdict(load_model("llama-2-7b")) | {"name": "Llama-2-7b-hf"}
    assert load_model(CONFIGS / "gpt-neox-20b.json").rotary_size == 24  # a quarter of a head


def test_sequence_lengths() -> None:
    lengths = {path.stem: load_model(path).sequence_length for path in CONFIGS.glob("*.json")}
    assert lengths == {
        "llama-2-7b": 4096,
        "llama-3.1-8b": 8192,  # stretched to 131,072 by rotary scaling
        "mistral-7b": 32768,
        "mixtral-8x7b": 32768,
        "mistral-nemo-12b": 131072,
        "qwen2-7b": 131072,  # its window is not in use
        "qwen2-0.5b": 131072,
        "gpt-neox-20b": 2048,
        "gpt2": 1024,
        "gpt2-xl": 1024,
    }
    assert load_model(CONFIGS / "qwen2-7b.json", sequence_length=4096).sequence_length == 4096


def test_gpt_neox() -> None:
    model = load_model(CONFIGS / "gpt-neox-20b.json")
    assert (model.parallel_residual, model.norm, model.activation) == (True, "layer_norm", "gelu")
    assert (model.biases, model.rotary, model.tied_embeddings, model.forward_syncs) == ("all", True, False, 1)


def test_gpt2(tmp_path: Path) -> None:
    model = load_model(CONFIGS / "gpt2.json")
    assert (model.rotary, model.learned_positions, model.tied_embeddings) == (False, 1024, True)
    assert (model.mlp_size, model.biases, model.kv_heads) == (3072, "all", 12)
    wide = load_model(changed(tmp_path, "gpt2", {"n_inner": 1000, "tie_word_embeddings": False}))
    assert (wide.mlp_size, wide.tied_embeddings) == (1000, False)


def test_heads_of_their_own_size() -> None:
    model = load_model(CONFIGS / "mistral-nemo-12b.json")
    assert (model.hidden_size, model.attention_heads, model.head_size, model.kv_heads) == (5120, 32, 128, 8)


def test_biases(tmp_path: Path) -> None:
    assert load_model(CONFIGS / "qwen2-7b.json").biases == "qkv"
    for attention, mlp, biases in (
        (True, True, "all"),
        (True, False, "attention"),
        (False, True, "mlp"),
        (False, "absent", "none"),
    ):
        change = {"attention_bias": attention, "mlp_bias": mlp}
        assert load_model(changed(tmp_path, "llama-3.1-8b", change)).biases == biases
    assert load_model(changed(tmp_path, "gpt-neox-20b", {"attention_bias": False})).biases == "mlp"


def test_fields_that_older_files_lack(tmp_path: Path) -> None:
    older = load_model(
        changed(tmp_path, "llama-2-7b", {"num_key_value_heads": "absent", "rope_scaling": "absent"})
    )
    assert older.kv_heads == 32
    newer = {"rope_parameters": {"rope_theta": 1e6, "original_max_position_embeddings": 2048}}
    assert load_model(changed(tmp_path, "llama-2-7b", newer)).sequence_length == 2048


def test_windows_that_are_used(tmp_path: Path) -> None:
    used = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}
    assert load_model(CONFIGS / "qwen2-7b.json").sliding_window == 0
    assert load_model(changed(tmp_path, "qwen2-7b", used)).sliding_window == 4096
    assert load_model(CONFIGS / "mistral-7b.json").sliding_window == 4096
    path = changed(tmp_path, "mistral-7b", {"sliding_window": None})
    assert load_model(path).sliding_window == 0


def test_names(tmp_path: Path) -> None:
    folder = tmp_path / "Own-7B"
    folder.mkdir()
    assert load_model(changed(folder, "mistral-7b", {})).name == "Own-7B"
    assert load_model(changed(folder, "mistral-7b", {}, file="other.json")).name == "other"
    assert load_model(changed(folder, "mistral-7b", {"_name_or_path": "./a/b/"})).name == "b"
    assert load_model(changed(folder, "mistral-7b", {"_name_or_path": "a\nb"})).name == "Own-7B"
    assert load_model(changed(folder, "mistral-7b", {"_name_or_path": 7})).name == "Own-7B"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral-8x7b", {"num_local_experts": "absent"}, "field num_local_experts is missing, expected"),
        ("qwen2-7b", {"model_type": "qwen2_moe"}, "field num_experts is missing, expected a whole number"),
        ("llama-2-7b", {"num_experts": 16}, "num_experts is 16, expected none: llama has no experts"),
        (
            "llama-2-7b",
            {"num_experts": -1},
            "num_experts is -1, expected a whole number from 1 to 2147483647",
        ),
        (
            "llama-2-7b",
            {"model_type": "xyz"},
            "model_type is 'xyz', expected llama, llama4_text, mistral, ",
        ),
        ("llama-2-7b", {"model_type": None}, "model_type is null, expected llama, llama4_text, mistral, "),
        (
            "llama-2-7b",
            {"model_type": ["llama"]},
            "model_type is ['llama'], expected llama, llama4_text, mistral, ",
        ),
        (
            "llama-2-7b",
            {"quantization_config": {"bits": 4}},
            "quantization_config is set: training quantised",
        ),
        ("llama-2-7b", {"hidden_act": "relu"}, "hidden_act is 'relu', expected silu, swish, gelu, "),
        ("gpt2", {"activation_function": "tanh"}, "activation_function is 'tanh', expected gelu, gelu_new, "),
        ("gpt-neox-20b", {"hidden_act": ["gelu"]}, "hidden_act is ['gelu'], expected gelu, gelu_new, "),
        ("llama-2-7b", {"hidden_size": "absent"}, "field hidden_size is missing, expected a whole number"),
        ("llama-2-7b", {"hidden_size": None}, "field hidden_size is missing, expected a whole number"),
        ("llama-2-7b", {"hidden_size": 4096.0}, "hidden_size is 4096.0, expected a whole number"),
        ("llama-2-7b", {"hidden_size": float("nan")}, "hidden_size is nan, expected a whole number"),
        ("llama-2-7b", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, expected a whole number"),
        (
            "llama-2-7b",
            {"num_key_value_heads": 5},
            "attention_heads is 32, expected a multiple of kv_heads (5)",
        ),
        ("llama-2-7b", {"num_attention_heads": 33}, "hidden_size is 4096, expected a multiple of attention"),
        ("llama-2-7b", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ("llama-2-7b", {"rope_scaling": "linear"}, "rope_scaling is 'linear', expected a table or null"),
        ("mistral-7b", {"sliding_window": "4k"}, "sliding_window is '4k', expected a whole number"),
        ("gpt2", {"n_positions": 0}, "n_positions is 0, expected a whole number from 1"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    path = changed(tmp_path, name, change)
    with pytest.raises(UsageError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"model file {path}: {message}")
    assert "\n" not in str(caught.value)
