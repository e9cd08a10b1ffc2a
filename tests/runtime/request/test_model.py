"""Model files: what is read, what is filled in, and one line for everything that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError, ModelConfig, UsageError

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "sequence_length": 32,
    "attention_heads": 4,
    "layers": 2,
    "vocabulary_size": 100,
}


def written(folder: Path, values: object, name: str = "small.json") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_defaults(tmp_path: Path) -> None:
    model = ModelConfig.from_file(written(tmp_path, SIZES))
    assert model == ModelConfig(name="small", **SIZES)
    assert (model.kv_heads, model.mlp_size, model.head_size) == (4, 256, 16)
    assert (model.norm, model.activation, model.attention) == ("layer_norm", "gelu", "flash")
    assert (model.rotary, model.parallel_residual) == (True, False)
    assert (model.forward_syncs, model.backward_syncs) == (2, 2)


def test_a_parallel_residual_has_one_forward_all_reduce(tmp_path: Path) -> None:
    model = ModelConfig.from_file(written(tmp_path, SIZES | {"parallel_residual": True}))
    assert (model.forward_syncs, model.backward_syncs) == (1, 2)


def test_toml_with_a_model_table_beside_others(tmp_path: Path) -> None:
    lines = [f"{name} = {value}" for name, value in SIZES.items()]
    text = "\n".join(["[model]", 'name = "x"', 'norm = "rms_norm"', *lines, "[training]", "steps = 3"])
    model = ModelConfig.from_file(written(tmp_path, text, "run.toml"))
    assert model == ModelConfig(name="x", norm="rms_norm", **SIZES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 1}, "field 'hidden' is unknown, known are name, hidden_size, "),
        ({"hidden_size": 0}, "hidden_size is 0, expected a whole number from 1 to 2147483647"),
        ({"hidden_size": -64}, "hidden_size is -64, expected a whole number"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0, expected a whole number"),
        ({"hidden_size": True}, "hidden_size is true, expected a whole number"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected a whole number"),
        ({"hidden_size": 10**400}, "hidden_size is 1000"),
        ({"hidden_size": None}, "hidden_size is null"),
        ({"kv_heads": None}, "kv_heads is null; leave it out"),
        ({"kv_heads": 0}, "kv_heads is 0, expected a whole number"),
        ({"layers": 0}, "layers is 0, expected a whole number from 1 to 10000"),
        ({"layers": 10**9}, "layers is 1000000000, expected a whole number from 1 to 10000"),
        ({"vocabulary_size": False}, "vocabulary_size is false, expected a whole number"),
        ({"attention_heads": 5}, "hidden_size is 64, expected a multiple of attention_heads (5)"),
        ({"kv_heads": 3}, "attention_heads is 4, expected a multiple of kv_heads (3)"),
        ({"norm": "batch"}, "norm is 'batch', expected layer_norm or rms_norm"),
        ({"norm": ["layer_norm"]}, "norm is ['layer_norm'], expected layer_norm or rms_norm"),
        ({"activation": 1}, "activation is 1, expected gelu, swiglu, geglu or squared_relu"),
        ({"attention": ""}, "attention is '', expected flash, fused_softmax or unfused"),
        ({"rotary": 1}, "rotary is 1, expected true or false"),
        ({"tied_embeddings": 0}, "tied_embeddings is 0, expected true or false"),
        ({"biases": "some"}, "biases is 'some', expected all, attention, qkv, mlp or none"),
        ({"biases": True}, "biases is true, expected all, attention, qkv, mlp or none"),
        ({"head_size": 0}, "head_size is 0, expected a whole number"),
        ({"head_size": "a"}, "head_size is 'a', expected a whole number"),
        ({"learned_positions": -1}, "learned_positions is -1, expected a whole number from 0 to"),
        ({"learned_positions": 31}, "sequence_length is 32, expected at most learned_positions (31): it has"),
        ({"query_rank": 8}, "query_rank is 8, expected 0 where kv_rank is 0"),
        ({"experts_per_token": 2}, "experts_per_token is 2, expected 0 where experts is 0"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token is 3, expected from 1 to experts (2)"),
        (
            {"num_local_experts": 8},
            "field 'num_local_experts' is unknown",
        ),
        ({"window_chunks": True}, "window_chunks is true, expected false where sliding_window is 0"),
        ({"parallel_residual": "no"}, "parallel_residual is 'no', expected true or false"),
        ({"forward_syncs": -1}, "forward_syncs is -1, expected a whole number from 0 to 100"),
        ({"name": ""}, "name is '', expected a text on one line"),
        ({"name": "a\nb"}, "name is 'a\\nb', expected a text on one line"),
        ({"name": 3}, "name is 3, expected a text on one line"),
        ({"model": 3}, "attention_heads stands outside [model], expected inside it"),
    ],
)
def test_wrong_fields(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, SIZES | change)
    with pytest.raises(UsageError) as caught:
        ModelConfig.from_file(path)
    assert str(caught.value).startswith(f"model file {path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", list(SIZES))
def test_missing_fields(tmp_path: Path, missing: str) -> None:
    path = written(tmp_path, {name: value for name, value in SIZES.items() if name != missing})
    with pytest.raises(UsageError) as caught:
        ModelConfig.from_file(path)
    assert str(caught.value).startswith(
        f"model file {path}: field {missing} is missing, needed are hidden_size"
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "hidden_size = ", "not TOML ("),
        ("a.json", '{"hidden_size": 64,}', "not valid JSON ("),
        ("a.json", "[1]", "holds a list, expected an object of fields"),
        ("a.json", "[" * 100_000, "not valid JSON ("),
        ("a.toml", "x" * 2_000_000, "larger than 1048576 bytes"),
    ],
)
def test_files_that_are_not_model_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(DataError) as caught:
        ModelConfig.from_file(path)
    assert str(caught.value).startswith(f"model file {path}: {message}")
    assert "\n" not in str(caught.value)


def test_missing_file_folder_and_suffix(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml: no such file$"):
        ModelConfig.from_file(tmp_path / "none.toml")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DataError, match=r"folder\.json: cannot be read \("):
        ModelConfig.from_file(tmp_path / "folder.json")
    with pytest.raises(UsageError, match=r"suffix is '\.yaml', expected \.toml or \.json$"):
        ModelConfig.from_file(tmp_path / "a.yaml")
    path = written(tmp_path, {"model": [1]})
    with pytest.raises(UsageError, match=r"model is \[1\], expected a table of fields$"):
        ModelConfig.from_file(path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(DataError, match=r"not TOML"):
        ModelConfig.from_file(tmp_path / "latin.toml")


def test_biases_follow_norm_and_activation() -> None:
    found = {
        (norm, activation): ModelConfig(name="x", norm=norm, activation=activation, **SIZES).biases
        for norm in ("layer_norm", "rms_norm")
        for activation in ("gelu", "swiglu")
    }
    assert found == {
        ("layer_norm", "gelu"): "all",
        ("layer_norm", "swiglu"): "attention",
        ("rms_norm", "gelu"): "mlp",
        ("rms_norm", "swiglu"): "none",
    }


def test_heads_of_their_own_size_need_not_divide_the_hidden_size() -> None:
    model = ModelConfig(name="x", **SIZES | {"attention_heads": 5, "kv_heads": 1}, head_size=24)
    assert (model.head_size, model.hidden_size) == (24, 64)


def test_another_sequence_length_within_positions() -> None:
    model = ModelConfig(name="x", learned_positions=40, **SIZES)
    assert model.with_sequence_length(36) == ModelConfig(
        name="x", learned_positions=40, **SIZES | {"sequence_length": 36}
    )
    with pytest.raises(UsageError, match=r"sequence_length is 41, expected at most learned_positions \(40\)"):
        model.with_sequence_length(41)
    with pytest.raises(UsageError, match=r"sequence_length is 1\.5, expected a whole number"):
        model.with_sequence_length(1.5)  # type: ignore[arg-type]
