"""Every family of config.json: fields of released models, against the built-in models or published parameters."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import KernelcastError
from kernelcast.runtime.request.models import find_model, load_model
from kernelcast.runtime.request.models.families import families
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.parameters import active_parameters, total_parameters
from tests.runtime.request.models.released import BUILT_IN, GLOBAL, LOCAL, PUBLISHED, Values, sizes


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
    assert found.all_notes == (f"{said}; it is predicted unless sequence_length is given",)
    with pytest.raises(UsageError) as caught:
        found.require_length()
    assert str(caught.value) == f"{said}, expected sequence_length (--sequence-length) of training"
    given = find_model(path, sequence_length=4096)
    assert given.require_length().model.sequence_length == 4096
    assert given.all_notes == ()


def test_other_parts_are_said(tmp_path: Path) -> None:
    path = written(tmp_path, BUILT_IN["llama-4-scout"])
    assert find_model(path).notes == (
        f"model file {path}: the vision encoder of llama4 is ignored, only the text model is predicted",
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
        ("glm-4.5", {"partial_rotary_factor": 0}, "partial_rotary_factor is 0, expected a number above 0"),
        ("opt-66b", {"do_layer_norm_before": False}, "do_layer_norm_before is false, expected true"),
        ("mixtral-8x22b", {"num_local_experts": None}, "field num_local_experts is missing, expected a whole"),
        ("mixtral-8x22b", {"num_experts_per_tok": 9}, "experts_per_token is 9, expected from 1 to experts (8)"),
        ("nemotron-3-nano", {"moe_latent_size": -1}, "moe_latent_size is -1, expected a whole number from 0"),
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


def test_a_part_of_a_head_is_rotated_one_entry_at_least(tmp_path: Path) -> None:
    for part, rotated in ((1, 0), (0.5, 64), (0.007, 1), (0.016, 2)):
        path = written(tmp_path, BUILT_IN["glm-4.5"] | {"partial_rotary_factor": part})
        assert load_model(path).rotary_size == rotated


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
