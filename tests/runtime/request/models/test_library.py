"""Built-in models and model files by name or path: what is loaded, and one line for what cannot be."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, UsageError
from kernelcast.runtime.errors import KernelcastError
from kernelcast.runtime.request.fields import MODEL
from kernelcast.runtime.request.models import built_in_name, built_in_names, load_model
from kernelcast.runtime.shipped import MODELS
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.layers.attention_core import visible_keys
from kernelcast.runtime.step.parameters import active_parameters, total_parameters
from kernelcast.runtime.step.sizes import Sizes

CONFIGS = Path(__file__).parent / "configs"

# Published parameters: of the papers where they print enough digits, else of the released checkpoints' tensors.
PUBLISHED = {
    "gpt-20b": 20_554_567_680,  # GPT-NeoX-20B's model card; its vocabulary is padded to 50,432
    "llama-13b": 13_015_864_320,  # LLaMA-13B; arXiv 2302.13971, Table 2 prints 13.0B
    "llama-2-7b": 6_738_415_616,  # arXiv 2307.09288 prints 7B
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,  # arXiv 2407.21783 prints 8B
    "llama-3-70b": 70_553_706_496,
    "gpt3-175b": 175_000_000_000,  # arXiv 2005.14165, Table 2.1 prints 175.0B
    "mistral-7b": 7_241_732_096,  # arXiv 2310.06825 prints 7B
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    # With their vision encoder, whose published sizes make 0.87 billion; model cards print 109B and 400B.
    "llama-4-scout": 108_641_793_536 - 870_000_000,
    "llama-4-maverick": 401_583_781_376 - 870_000_000,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 141_000_000_000,  # Mistral's announcement
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "nemotron-3-nano": 31_577_940_288,
    "nemotron-3-super": 120_600_000_000,  # model cards print 120B and 550B
    "nemotron-3-ultra": 550_000_000_000,
    "nemotron-h-8b": 8_100_000_000,
    "nemotron-h-47b": 46_800_000_000,
    "nemotron-h-56b": 56_300_000_000,
    "nemotron-nano-9b-v2": 8_890_000_000,
    "nemotron-nano-12b-v2": 12_310_000_000,
    "qwen3-next-80b-a3b": 80_000_000_000,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 302_000_000 + 698_000_000,  # arXiv 2503.19786, Table 1, without the vision encoder
    "gemma-3-4b": 675_000_000 + 3_209_000_000,
    "gemma-3-12b": 1_012_000_000 + 10_759_000_000,
    "gemma-3-27b": 1_416_000_000 + 25_600_000_000,
    "deepseek-v2": 236_000_000_000,  # arXiv 2405.04434, abstract
    "deepseek-v2-lite": 15_700_000_000,  # its appendix B
    "deepseek-v3": 671_000_000_000,  # arXiv 2412.19437, abstract
    "kimi-k2": 1_026_408_232_448,  # arXiv 2507.20534 prints 1.04T, 1.3 % more than the checkpoint's tensors
    "gpt-oss-20b": 20_910_000_000,  # arXiv 2508.10925, Table 1
    "gpt-oss-120b": 116_830_000_000,
    "glm-4.5": 355_000_000_000,  # arXiv 2508.06471, Table 1
    "glm-4.5-air": 106_000_000_000,
    "phi-4": 14_659_507_200,
    "olmo-2-7b": 7_300_000_000,  # arXiv 2501.00656 prints 7B, 13B and 32B
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "olmoe-1b-7b": 6_900_000_000,  # arXiv 2409.02060, Table 1
    "granite-3-2b": 2_533_531_648,  # model cards print 2.5B and 8.1B
    "granite-3-8b": 8_170_848_256,
    "smollm3-3b": 3_075_098_624,
    "falcon-7b": 6_921_720_704,
    "falcon-180b": 179_522_565_120,
    "mpt-7b": 6_649_286_656,
    "mpt-30b": 29_957_000_000,  # model card: 29.95B
    "starcoder2-15b": 15_957_889_024,
    "gpt-neox-20b": 20_554_567_680,
    "opt-66b": 66_000_000_000,  # arXiv 2205.01068, Table 1
}
# Of a token, as the same sources print them.
ACTIVE = {
    "mixtral-8x7b": 12.9e9,
    "mixtral-8x22b": 39e9,
    "qwen3-30b-a3b": 3.3e9,
    "nemotron-3-nano": 3.6e9,
    "nemotron-3-super": 12.7e9,
    "nemotron-3-ultra": 55e9,
    "qwen3-235b-a22b": 22e9,
    "deepseek-v2": 21e9,
    "deepseek-v3": 37e9,
    "kimi-k2": 32.6e9,
    "llama-4-scout": 17e9,
    "llama-4-maverick": 17e9,
    "olmoe-1b-7b": 1.3e9,
    # The card leaves out the embedding, 201,088 · 2,880.
    "gpt-oss-20b": 3.61e9 + 579_133_440,
    "gpt-oss-120b": 5.13e9 + 579_133_440,
}


def test_every_built_in_model_is_a_file_and_the_other_way_round() -> None:
    names = built_in_names()
    assert {path.stem for path in MODELS.glob("*.toml")} == set(names)
    assert all(load_model(name).name == name for name in names)
    assert set(PUBLISHED) | {"llemma-7b"} == set(names)
    # In order, and numbers by their value.
    sizes = [name for name in names if name.startswith("qwen2.5")]
    assert sizes == [f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick"),
        ("LLAMA-2-7B", "llama-2-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("allenai/OLMo-2-1124-13B", "olmo-2-13b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("llama_3.1_8b", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("llama-3.1-9b", None),
        ("mpt-7b-2048", None),
        ("a/b/llama-3.1-8b", None),
        ("llama-3.1-8b.toml", None),
        (7, None),
    ],
)
def test_published_names(asked: object, name: str | None) -> None:
    assert built_in_name(asked) == name
    if name is not None:
        assert load_model(str(asked)).name == name


def test_a_folder_of_a_published_name_goes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((CONFIGS / "gpt2.json").read_text())
    monkeypatch.chdir(tmp_path)
    assert load_model("meta-llama/Llama-3.1-8B").hidden_size == 768
    monkeypatch.chdir(folder)
    assert load_model("meta-llama/Llama-3.1-8B").hidden_size == 4096


@pytest.mark.parametrize("name", ACTIVE)
def test_parameters_of_a_token_are_the_published_ones(name: str) -> None:
    assert active_parameters(load_model(name)) == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_parameters_are_the_published_ones(name: str) -> None:
    assert total_parameters(load_model(name)) == pytest.approx(PUBLISHED[name], rel=0.01)


def test_llemma_7b_is_the_papers_not_the_released_one() -> None:
    # The released one is Code Llama 7B's 6,738,546,688: SwiGLU and 32,016 tokens. With a GeLU MLP (8d² in place of
    # 8.0625d²) and 50,257 tokens it has 2(50,257 − 32,016)d more, and 5d of MLP biases, less 0.0625d² per layer.
    parameters = total_parameters(load_model("llemma-7b"))
    d, layers = 4096, 32
    mlp = 8 * d * d + 5 * d - 3 * 11008 * d
    assert parameters == 6_738_546_688 + 2 * (50_257 - 32_016) * d + layers * mlp


def test_the_methods_models_are_those_of_its_table() -> None:
    sizes = {
        name: (
            m.hidden_size,
            m.sequence_length,
            m.attention_heads,
            m.layers,
            m.forward_syncs,
            m.backward_syncs,
        )
        for name in ("gpt-20b", "llama-13b", "llemma-7b")
        for m in [load_model(name)]
    }
    assert sizes == {
        "gpt-20b": (6144, 2048, 64, 44, 1, 2),
        "llama-13b": (5120, 2048, 40, 40, 2, 2),
        "llemma-7b": (4096, 4096, 32, 32, 2, 2),
    }
    assert all(load_model(name).activation == "gelu" for name in sizes)
    assert all(load_model(name).vocabulary_size == 50257 for name in sizes)
    kinds = [(load_model(name).norm, load_model(name).attention) for name in sizes]
    assert kinds == [
        ("layer_norm", "fused_softmax"),
        ("rms_norm", "fused_softmax"),
        ("rms_norm", "flash"),
    ]


def test_another_sequence_length() -> None:
    assert load_model("llama-2-7b", sequence_length=1024) == replace(
        load_model("llama-2-7b"), sequence_length=1024
    )
    with pytest.raises(UsageError, match=r"^sequence_length is 0, expected a whole number from 1 to "):
        load_model("llama-2-7b", sequence_length=0)
    with pytest.raises(UsageError, match=r"expected at most learned_positions \(2048\): it has no more"):
        load_model("gpt3-175b", sequence_length=4096)
    assert load_model("mistral-7b", sequence_length=32768).sliding_window == 4096


@pytest.mark.parametrize("name", ["", "config", "tpu\n", "x" * 5000, "a\0b"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(name)
    message = str(caught.value)
    known = ", ".join(built_in_names())
    assert message.endswith(f" is unknown, known are {known}; the path of a .toml or .json file works too")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-3.1-9b", "llama-3.1-8b"),
        ("Qwen/Qwen3-33B", "qwen3-32b"),
        ("gpt-oss", "gpt-oss-20b"),
        ("lama-3-8b", "llama-3-8b"),
        ("deepseek-v4", "deepseek-v"),
    ],
)
def test_unknown_names_have_nearest_ones(name: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(name)
    assert re.match(f"model '{name}' is unknown, nearest (is|are) {near}", str(caught.value))
    assert len(str(caught.value)) < 240


def test_our_own_files(tmp_path: Path) -> None:
    model = load_model("mistral-7b")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({f.name: getattr(model, f.name) for f in fields(model)}))
    assert load_model(path) == load_model(str(path)) == model
    lines = ["[model]", "hidden_size = 64", "sequence_length = 8", "attention_heads = 4", "layers = 2"]
    (tmp_path / "small.toml").write_text("\n".join([*lines, "vocabulary_size = 9", 'biases = "none"']))
    assert load_model(tmp_path / "small.toml") == ModelConfig(
        name="small",
        hidden_size=64,
        sequence_length=8,
        attention_heads=4,
        layers=2,
        vocabulary_size=9,
        biases="none",
    )


def test_a_folder_is_its_config(tmp_path: Path) -> None:
    (tmp_path / "Some-Model").mkdir()
    text = (CONFIGS / "mistral-7b.json").read_text()
    (tmp_path / "Some-Model" / "config.json").write_text(text)
    assert load_model(tmp_path / "Some-Model") == load_model(tmp_path / "Some-Model" / "config.json")
    assert load_model(tmp_path / "Some-Model").name == "Some-Model"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"hidden_size": NaN}', "field sequence_length is missing"),
        ("a.json", b"\x00\xff\xfe", "not valid JSON ("),
        ("a.toml", b"\x00\xff\xfe", "not TOML ("),
        ("a.json", b"", "not valid JSON ("),
        ("a.json", b'"text"', "holds a str, expected an object of fields"),
        ("a.json", b"null", "holds a NoneType, expected an object of fields"),
        ("a.json", b'{"a\\nb": 1}', r"field 'a\nb' is unknown, known are name, "),
        ("a.json", b'{"model": {"model": 1}}', "field 'model' is unknown, known are name, "),
        ("a.json", b'{"num_experts": 8}', "field 'num_experts' is unknown, known are name, "),
        ("a.json", b'{"model_type": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON ("),
        ("a.json", b"[" * 100_000, "not valid JSON ("),
        ("a.json", b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON ("),
        ("a.toml", b"hidden_size = 0x" + b"f" * 5000, "field sequence_length is missing"),
        ("a.yaml", b"model_type: llama", "suffix is '.yaml', expected .toml or .json"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(KernelcastError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"model file {path}: {message}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 100 + sum(len(field) + 2 for field in MODEL)


def test_numbers_that_python_does_not_print(tmp_path: Path) -> None:
    sizes = "sequence_length = 8\nattention_heads = 4\nlayers = 2\nvocabulary_size = 9\nhidden_size = 0x"
    path = tmp_path / "huge.toml"
    path.write_text(sizes + "f" * 5000)
    with pytest.raises(UsageError, match="hidden_size is a number too long to show, expected a whole number"):
        load_model(path)


def test_missing_files_and_odd_paths(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "no such file"),
        (tmp_path / "a\0b.json", "cannot be read (embedded null byte)"),
        (tmp_path / ("x" * 300 + ".json"), "cannot be read (File name too long)"),
    ):
        with pytest.raises(KernelcastError) as caught:
            load_model(path)
        assert str(caught.value).endswith(message)
    with pytest.raises(KernelcastError, match=r"^model file '.*a\\nb\.json': no such file$"):
        load_model(tmp_path / "a\nb.json")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
_FIELDS = sorted(f.name for f in fields(ModelConfig))
_HUGGING = sorted({name for path in CONFIGS.glob("*.json") for name in json.loads(path.read_text())})


@settings(deadline=None)
@given(
    base=st.sampled_from([None, *sorted(CONFIGS.glob("*.json"))]),
    change=st.dictionaries(st.sampled_from(_FIELDS + _HUGGING) | st.text(max_size=4), _VALUES, max_size=4),
    dropped=st.sets(st.sampled_from(_HUGGING), max_size=2),
)
def test_any_file_is_a_model_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, base: Path | None, change: dict[str, Any], dropped: set[str]
) -> None:
    values = {} if base is None else json.loads(base.read_text())
    values = {name: value for name, value in (values | change).items() if name not in dropped}
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(values))
    refusal, parameters = _loaded(path)
    assert refusal or parameters > 0
    if refusal:
        assert refusal.startswith(f"model file {path}: ")
        assert refusal.isprintable()
        assert len(refusal) < 800


def _loaded(path: Path) -> tuple[str, int]:
    """The refusal, or the parameters."""
    try:
        return "", total_parameters(load_model(path))
    except KernelcastError as error:
        return str(error), 0


def test_the_documentation_has_every_name_and_field() -> None:
    page = Path(__file__).parents[4].joinpath("docs", "models.md").read_text()
    for name in (*built_in_names(), *(f.name for f in fields(ModelConfig))):
        assert f"`{name}`" in page, name


def test_chunks_of_attention() -> None:
    scout = load_model("llama-4-scout", sequence_length=20_000)
    local, other = (Sizes.alone(scout).of_kind(kind) for kind in kinds_of(scout).distinct)
    assert (local.kind.window, other.kind.window) == (8192, 0)
    # Chunks of 8,192, 8,192 and 3,616 tokens.
    seen = (2 * 8192 * 8193 + 3616 * 3617) / 2
    assert visible_keys(local) == pytest.approx(seen / 20_000)
    assert visible_keys(other) == pytest.approx(20_001 / 2)
