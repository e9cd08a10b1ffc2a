"""FLOPs of the model and utilisation: by hand, and the laws that hold for every layout."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, load_model
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.estimate.utilisation import model_flops
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.runtime.step.parameters import active_parameters

Make = Callable[..., Path]
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 64,
    "sequence_length": 32,
    "attention_heads": 4,
    "layers": 4,
    "vocabulary_size": 1000,
}
LAYOUT: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 2, "micro_batches": 4}
H100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3", memory_gib=79)
OLDER_H100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3", power_limit_w=500)
A100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
V100 = ComputeFingerprint(kind="cuda", device_name="Tesla V100-SXM2-16GB")
UNKNOWN = ComputeFingerprint(kind="cuda", device_name="Example GPU")


def predict(bundle: Path, model: dict[str, Any] | None = None, **layout: Any) -> Estimate:
    return Estimator.load(bundle).predict(
        model=ModelConfig(**TINY | (model or {})),
        parallelism=Parallelism(**LAYOUT | layout),
        cluster=Cluster(gpus_per_node=8),
        interval=False,
    )


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_by_hand(make_bundle: Make, attention: str) -> None:
    found = predict(make_bundle(compute=[H100], dtype="bfloat16"), {"attention": attention})
    tokens, d, length = 2 * 4 * 32, 64, 32
    vocabulary = found.padded_vocabulary_size
    # Two products of d columns with all keys; the causal half in flash attention.
    scores = 4 * length * d / (2 if attention == "flash" else 1)
    expected = 3 * tokens * (4 * (2 * 12 * d * d + scores) + 2 * d * vocabulary)
    assert found.model_flops == pytest.approx(expected)
    assert found.flops_per_s_per_device == pytest.approx(expected / found.step_time_s)
    assert found.mfu == pytest.approx(expected / found.step_time_s / 989.4e12)
    values = found.to_dict()
    assert values["model_flops"] == found.model_flops
    assert values["tflops_per_device"] == pytest.approx(found.flops_per_s_per_device / 1e12)
    assert (values["mfu"], values["hfu"]) == (found.mfu, found.hfu)
    assert values["peak"] == {
        "device": "NVIDIA H100 SXM5 80 GB",
        "dtype": "bfloat16",
        "flops_per_s": 989.4e12,
        "source": device("h100-sxm").source,
    }


MIXTURE: dict[str, Any] = {
    "experts": 8, "experts_per_token": 2, "expert_size": 96, "shared_expert_size": 32, "dense_layers": 1,
    "activation": "swiglu", "norm": "rms_norm",
}  # fmt: skip


def test_experts_by_hand(make_bundle: Make) -> None:
    found = predict(make_bundle(compute=[H100], dtype="bfloat16"), MIXTURE)
    tokens, d, length, mlp = 2 * 4 * 32, 64, 32, 4 * 64
    attention = 2 * 4 * d * d + 4 * length * d / 2
    of_experts = 2 * 8 * d + 2 * 3 * d * (2 * 96 + 32)
    expected = 4 * attention + 1 * 2 * 3 * d * mlp + 3 * of_experts + 2 * d * found.padded_vocabulary_size
    assert found.model_flops == pytest.approx(3 * tokens * expected)


@pytest.mark.parametrize(
    "layout", [{"dp": 4, "ep": 4}, {"dp": 2, "cp": 2, "ep": 2}, {"tp": 2, "expert_tp": 2}]
)
@pytest.mark.parametrize(
    "load", [{"expert_imbalance": 1.5}, {"expert_capacity": 1.5, "expert_padding": True}]
)
def test_a_full_device_adds_time_but_no_work(
    make_bundle: Make, layout: dict[str, Any], load: dict[str, Any]
) -> None:
    """The model's FLOPs depend on its tokens alone, wherever its experts are and however uneven their load."""
    bundle = make_bundle(compute=[H100], dtype="bfloat16")
    layout = layout | {"sequence_parallel": "tp" in layout}
    even = predict(bundle, MIXTURE, **layout)
    uneven = predict(bundle, MIXTURE, **layout, **load)
    alone = predict(bundle, MIXTURE)
    assert uneven.model_flops == even.model_flops
    assert uneven.hfu == pytest.approx(even.hfu * even.step_time_s / uneven.step_time_s)
    assert even.model_flops == pytest.approx(alone.model_flops * layout.get("dp", 1))


@pytest.mark.parametrize(
    ("devices", "dtype", "peak"),
    [
        ([H100], "float32", 66.9e12),
        ([H100, OLDER_H100], "bfloat16", 989.4e12),
        ([H100, A100], "bfloat16", None),
        ([H100, UNKNOWN], "bfloat16", None),
        ([V100], "bfloat16", None),
        ([V100], "float16", 125e12),
        ([], "float32", None),
    ],
)
def test_the_peak_is_that_of_the_measured_device(
    make_bundle: Make, devices: Sequence[ComputeFingerprint], dtype: str, peak: float | None
) -> None:
    found = predict(make_bundle(compute=devices, dtype=dtype))
    assert (found.peak and found.peak.flops_per_s) == (peak and pytest.approx(peak))
    if peak is None:
        assert (found.mfu, found.hfu) == (None, None)
        assert found.to_dict()["peak"] is None


def test_the_peak_of_a_cpu_is_measured(make_bundle: Make, tmp_path: Path) -> None:
    cpu = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=4, threads=2)
    read = read_bundle(make_bundle(compute=[cpu]))
    assert predict(read.path).peak is None
    peak = Peak(device=cpu.description, dtype="float32", flops_per_s=1e12, source="measured")
    write_bundle(tmp_path / "cpu.kcast", replace(read.manifest, peaks=(peak,)), read.files)
    found = predict(tmp_path / "cpu.kcast")
    assert found.peak == peak
    assert found.mfu == pytest.approx(found.flops_per_s_per_device / 1e12)
    # A rate in another element type is not used.
    other = replace(peak, dtype="bfloat16")
    write_bundle(tmp_path / "other.kcast", replace(read.manifest, peaks=(other,)), read.files)
    assert predict(tmp_path / "other.kcast").peak is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "device",
            "Another CPU",
            "peaks[0].device is 'Another CPU', expected a device that compute describes",
        ),
        ("flops_per_s", -1.0, "flops_per_s is -1.0, expected a number above 0"),
    ],
)
def test_peaks_that_are_none_are_refused(make_bundle: Make, field: str, value: object, message: str) -> None:
    cpu = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=4, threads=2)
    read = read_bundle(make_bundle(compute=[cpu]))
    peak = Peak(device=cpu.description, dtype="float32", flops_per_s=1e12, source="measured")
    with pytest.raises(DataError) as caught:
        replace(read.manifest, peaks=(replace(peak, **{field: value}),))
    assert str(caught.value) == message


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_is_computed_again_counts_as_the_hardwares_only(make_bundle: Make, recompute: str) -> None:
    bundle = make_bundle(compute=[H100], dtype="bfloat16")
    found = predict(bundle, {"attention": "unfused"}, recompute=recompute)
    assert found.model_flops == predict(bundle, {"attention": "unfused"}).model_flops
    assert found.mfu is not None
    assert found.hfu is not None
    if recompute == "none":
        assert found.hfu == pytest.approx(found.mfu)
    else:
        assert found.hfu > found.mfu


LAYOUTS = st.fixed_dictionaries(
    {
        "pp": st.sampled_from([1, 2, 4]),
        "tp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2]),
        "micro_batch": st.integers(1, 3),
        "micro_batches": st.integers(1, 4),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero": st.integers(0, 3),
    }
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=LAYOUTS, attention=st.sampled_from(["flash", "unfused"]), factor=st.floats(1.5, 20))
def test_laws(make_bundle: Make, layout: dict[str, Any], attention: str, factor: float) -> None:
    model = {"attention": attention}
    times = {"gemm": 10.0, "adam": 100.0}
    found = predict(make_bundle(times, compute=[H100], dtype="bfloat16"), model, **layout)
    assert found.mfu is not None
    assert found.hfu is not None
    assert 0 < found.mfu <= found.hfu * (1 + 1e-9)
    # The whole job computes the model once per sample, however it is cut; only padding depends on tp.
    one = predict(
        make_bundle(times), model | {"vocabulary_size": found.padded_vocabulary_size}, micro_batch=1
    )
    samples = found.parallelism.samples_per_update / one.parallelism.samples_per_update
    assert found.padded_vocabulary_size == one.padded_vocabulary_size
    assert found.model_flops == pytest.approx(samples * one.model_flops)
    # A step that takes longer uses its devices less, in proportion.
    slow = predict(
        make_bundle(times | {("gemm", Direction.FORWARD): 10 * factor}, compute=[H100], dtype="bfloat16"),
        model,
        **layout,
    )
    assert slow.mfu is not None
    assert slow.step_time_s > found.step_time_s
    assert slow.mfu * slow.step_time_s == pytest.approx(found.mfu * found.step_time_s)


def test_linears_in_8_bit_are_held_to_both_peaks(make_bundle: Make) -> None:
    path = make_bundle(compute=[H100], dtype="bfloat16")
    usual, cast = (predict(path, fp8_recipe=recipe) for recipe in ("none", "blockwise"))
    assert cast.model_flops == usual.model_flops
    # Of a layer's forward pass 24 d² FLOPs per token are its linears', 2 l d its attention's; the logits' are 2 d v.
    linears, others = 4 * 24 * 64 * 64, 4 * 2 * 32 * 64 + 2 * 64 * usual.padded_vocabulary_size
    share = linears / (linears + others)
    assert cast.peak is not None
    assert cast.peak.flops_per_s == pytest.approx(1 / (share / 1978.9e12 + (1 - share) / 989.4e12))
    assert cast.peak.dtype == f"{share * 100:.0f} % of FLOPs in float8_e4m3fn, else bfloat16"
    assert cast.mfu == pytest.approx(cast.flops_per_s_per_device / cast.peak.flops_per_s)


def test_what_is_frozen_has_no_gradient_to_compute(make_bundle: Make) -> None:
    path = make_bundle(compute=[H100], dtype="bfloat16")
    usual, adapted = (predict(path, lora_rank=rank) for rank in (0, 1))
    tokens, d, length = 2 * 4 * 32, 64, 32
    # Linears and logits twice instead of three times; attention, whose backward pass has five products for two, and
    # three passes of adapters: rank · (inputs and outputs) of QKV, output, up and down.
    linears = 4 * 24 * d * d + 2 * d * usual.padded_vocabulary_size
    adapters = 4 * 2 * ((d + 3 * d) + (d + d) + (d + 4 * d) + (4 * d + d))
    attention = 4 * 2 * length * d
    assert adapted.model_flops == pytest.approx(tokens * (2 * linears + 3 * adapters + 3.5 * attention))


def test_without_products_in_8_bit_there_is_no_answer(make_bundle: Make) -> None:
    path = make_bundle(without=["gemm_float8_tensor"])
    with pytest.raises(
        DataError, match=r"gemm_float8_tensor .* with fp8_recipe tensorwise, but not with fp8_recipe none"
    ):
        predict(path, fp8_recipe="tensorwise")


@pytest.mark.parametrize(
    ("name", "published"),
    # 10⁹ FLOPs per token on 4,096 tokens, arXiv 2505.09343, Table 2, without DeepSeek-V3's further prediction. Its
    # figure for Qwen-72B is less than six FLOPs per parameter, and left out.
    [("deepseek-v2", 155), ("deepseek-v3", 250), ("llama-3.1-405b", 2448)],
)
def test_flops_per_token_are_the_published_ones(name: str, published: float) -> None:
    model = replace(load_model(name, sequence_length=4096), extra_predictions=0)
    assert flops_per_token(model) / 1e9 == pytest.approx(published, rel=0.015)


def test_flops_per_token_of_a_mixture_by_hand() -> None:
    mixtral = load_model("mixtral-8x7b", sequence_length=4096)
    # Six per parameter of a token but the embedding's, and half of 12 · layers · heads' width · tokens
    # (arXiv 2204.02311, appendix B).
    parameters = active_parameters(mixtral) - 32_000 * 4096
    assert flops_per_token(mixtral) == pytest.approx(6 * parameters + 6 * 32 * 4096 * 4096, rel=0.001)


def flops_per_token(model: ModelConfig) -> float:
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
    cluster = Cluster(gpus_per_node=8)
    parts = decompose(model=model, parallelism=layout, cluster=cluster, bucket_entries=10**9)
    return model_flops(parts) / model.sequence_length
