"""Attention with another kernel than the measured one: times, intervals, sentences, refusals."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import (
    Cluster,
    DataError,
    Estimate,
    Estimator,
    ModelConfig,
    Parallelism,
    UsageError,
    read_bundle,
)
from kernelcast.runtime.answers.asking import KERNEL, answerable_kernels, kernel_change, measured_kernel
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.runtime.hardware.attention_kernels import time_ratio
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import sustained_flops_per_s
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.stack import Stack, find_stack

F, B = Direction.FORWARD, Direction.BACKWARD
MODEL = ModelConfig(
    name="small", hidden_size=1024, sequence_length=4096, attention_heads=8, layers=4, vocabulary_size=50_000
)
ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=2)
NODE = Cluster(gpus_per_node=8)


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


def predicted(estimator: Estimator, kernel: Any, model: ModelConfig = MODEL, **layout: Any) -> Estimate:
    parallelism = replace(ONE, attention_kernel=kernel, **layout)
    return estimator.predict(model=model, parallelism=parallelism, cluster=NODE)


def ratios(before: Estimate, after: Estimate) -> dict[tuple[str, str], float]:
    return {
        (operator, str(direction)): after.answers[one][0] / time_us
        for one, (time_us, _, _) in before.answers.items()
        if time_us
        for operator, direction in [one[0]]
    }


def test_fused_attention_alone_takes_the_published_ratio(h100: Estimator) -> None:
    before, after = predicted(h100, "as-measured"), predicted(h100, "flash-2")
    found = ratios(before, after)
    for direction in (F, B):
        published = time_ratio("Hopper", direction, 128, 4096, of="flash-2", over="flash-3")
        assert published is not None
        assert found.pop(("flash_attention", str(direction))) == pytest.approx(published.factor)
    assert set(found.values()) == {1.0}
    assert after.step_time_s > before.step_time_s


def test_an_interval_is_wider_by_the_spread_of_the_published_ratios(h100: Estimator) -> None:
    def widths(estimate: Estimate) -> tuple[float, float]:
        [(time_us, low_us, high_us)] = [
            answer for one, answer in estimate.answers.items() if one[0] == ("flash_attention", F)
        ]
        return math.log(time_us / low_us), math.log(high_us / time_us)

    published = time_ratio("Hopper", F, 128, 4096, of="flash-2", over="flash-3")
    assert published is not None
    before, after = widths(predicted(h100, "as-measured")), widths(predicted(h100, "flash-2"))
    assert after == pytest.approx([width + published.log_half_width for width in before])


def test_the_answer_says_it_where_another_kernel_was_asked_and_only_there(h100: Estimator) -> None:
    usual, same, other = (predicted(h100, name) for name in ("as-measured", "flash-3", "cudnn"))
    assert same.step_time_s == usual.step_time_s
    assert same.interval_s == usual.interval_s
    for one in (usual, same):
        assert not [warning for warning in one.warnings if warning.kind == KERNEL]
    said = [warning for warning in other.warnings if warning.kind == KERNEL]
    assert [tuple(one.values[name] for name in ("direction", "measured", "asked")) for one in said] == [
        (F, "flash-3", "cudnn"), (B, "flash-3", "cudnn"),
    ]  # fmt: skip
    assert str(said[0]) == (
        "flash_attention (forward): measured with flash-3; cudnn takes 1.12 times as long, as published "
        "(FlashAttention-3, arXiv 2407.08608, forward, heads of 128, causal)"
    )
    assert said[0].to_dict()["kind"] == "attention_kernel"
    long = predicted(h100, "cudnn", replace(MODEL, sequence_length=65_536))
    assert any("cudnn by 1.14 × flash-3 (" in doubt.summary for doubt in long.doubts)


def test_windows_that_full_attention_answers_take_the_ratio_too(h100: Estimator) -> None:
    model = replace(MODEL, sliding_window=1024)
    before, after = (predicted(h100, name, model) for name in ("as-measured", "flash-2"))
    # A query sees 928 keys in the mean, as in causal sequences of 1,792 tokens: the nearest published length is 2,048.
    forward = time_ratio("Hopper", F, 128, 2048, of="flash-2", over="flash-3")
    assert forward is not None
    assert ratios(before, after)["attention_block", "forward"] == pytest.approx(forward.factor)


def test_a_final_kernel_is_no_faster_than_it_was_published_to_be(h100: Estimator) -> None:
    long = predicted(h100, "flash-2", replace(MODEL, sequence_length=65_536))
    causal = 2.0 * 65_536**2 * 8 * 128
    times_us = {
        one[0][1]: answer[0] for one, answer in long.answers.items() if one[0][0] == "flash_attention"
    }
    # 335 TFLOP/s forward and 322 backward, at 16,384 tokens.
    assert times_us[F] == pytest.approx(causal / 335e6)
    assert times_us[B] == pytest.approx(2.5 * causal / 322e6)
    assert time_ratio("Hopper", F, 128, 9000, of="flash-2", over="flash-3") == time_ratio(
        "Hopper", F, 128, 8192, of="flash-2", over="flash-3"
    )


def test_no_answer_is_faster_than_the_device_in_a_step(h100: Estimator) -> None:
    # As if flash-2 had taken the times of flash-3: flash-3 would then be faster than what the device holds under load.
    bundle = h100.bundle
    entries = {
        key: replace(entry, kernel="flash-2") if key[0] == "flash_attention" else entry
        for key, entry in bundle.entries.items()
    }
    manifest = replace(bundle.manifest, regressors=tuple(entries.values()))
    estimate = predicted(
        Estimator(replace(bundle, manifest=manifest, entries=entries)),
        "flash-3",
        replace(MODEL, sequence_length=16384),
    )
    [time_us] = [answer[0] for one, answer in estimate.answers.items() if one[0] == ("flash_attention", F)]
    held = sustained_flops_per_s(device("h100-sxm"), "bfloat16")
    assert held is not None
    assert time_us == pytest.approx(2 * 16384**2 * 8 * 128 / held * 1e6)


def test_a_search_answers_as_predictions_do(h100: Estimator) -> None:
    space = Space(
        model=MODEL, gpus=(2,), global_batch=4, gpus_per_node=8, zero=(1,), recompute=("none",),
        common={"attention_kernel": "flash-2", "layer_split": "even"},
    )  # fmt: skip
    found = search(h100, Question(space=space, prune=False))
    assert found.top
    for one in found.top:
        assert one.parallelism.attention_kernel == "flash-2"
        usual = replace(one.parallelism, attention_kernel="as-measured")
        assert (
            one.estimate.step_time_s > h100.predict(model=MODEL, parallelism=usual, cluster=NODE).step_time_s
        )
    with pytest.raises(
        DataError, match=r"^attention_kernel is 'flash-1', expected as-measured, flash-2, flash-3 or"
    ):
        search(h100, Question(space=replace(space, common={"attention_kernel": "flash-1"})))


@pytest.mark.parametrize(
    ("hardware", "kernel", "expected", "problem"),
    [
        ("a100-sxm", "flash-3", "as-measured, flash-1, flash-1-triton or flash-2",
         "flash-3 does not run on Ampere (NVIDIA A100 SXM4 80 GB)"),
        ("a100-sxm", "cudnn", "as-measured, flash-1, flash-1-triton or flash-2",
         "no ratio to the measured flash-2 is published for Ampere (forward)"),
        ("a100-pcie", "flash-2", "as-measured", "which kernel attention (forward) was measured with is not stated"),
        ("b200-sxm", "cudnn", "as-measured", "which kernel attention (forward) was measured with is not stated"),
        ("mi300x", "flash-2", "as-measured", "no ratio to the measured flash-3 is published for CDNA 3 (forward)"),
        ("v100-pcie-32gb", "flash-2", "as-measured", "flash-2 does not run on Volta (NVIDIA V100 PCIe 32 GB)"),
    ],
)  # fmt: skip
def test_refused_with_what_there_is(hardware: str, kernel: str, expected: str, problem: str) -> None:
    with pytest.raises(DataError) as error:
        kernel_change(kernel, hardware_bundle(hardware))
    assert str(error.value) == f"attention_kernel is '{kernel}', expected {expected}: {problem}"


def test_devices_of_an_architecture_take_its_ratios() -> None:
    assert answerable_kernels(hardware_bundle("gh200")) == ("flash-2", "flash-3", "cudnn")
    assert answerable_kernels(hardware_bundle("h200-sxm")) == ("flash-2", "flash-3", "cudnn")
    assert answerable_kernels(hardware_bundle("a100-sxm-40gb")) == ("flash-1", "flash-1-triton", "flash-2")
    assert answerable_kernels(hardware_bundle("gb200")) == ()


def test_a_cpu_and_unfused_attention_have_none(make_bundle: Callable[..., Path], h100: Estimator) -> None:
    with pytest.raises(
        DataError, match=r"^attention_kernel is 'flash-2', expected as-measured: the bundle was not"
    ):
        predicted(Estimator.load(make_bundle()), "flash-2")
    unfused = replace(MODEL, attention="unfused")
    with pytest.raises(
        UsageError, match=r"^attention_kernel is 'flash-2', expected as-measured with attention 'unfused'"
    ):
        predicted(h100, "flash-2", unfused)


def test_a_stack_that_holds_a_kernel_of_its_own_is_not_multiplied_again(h100: Estimator) -> None:
    fitted = find_stack("fsdp-composer")
    assert fitted.kernel == "flash-1-triton"
    with pytest.raises(
        DataError,
        match=r"^attention_kernel is 'flash-2', expected as-measured: the factor of attention of stack "
        r"fsdp-composer was fitted to steps with flash-1-triton; leave out the stack, or the kernel$",
    ):
        predicted(h100.with_stack(fitted), "flash-2")
    usual = predicted(h100, "flash-2")
    for stack in (
        Stack(name="ours", software="some", source="a test"),
        replace(fitted, attention=1.0, log_covariance=((0.0,) * 3,) * 3, fixed=("attention",)),
        replace(fitted, options={"attention_kernel": "flash-2"}),
    ):
        found = predicted(h100.with_stack(stack), "flash-2")
        factor = ratios(usual, found)["flash_attention", "forward"]
        assert factor == pytest.approx(stack.attention)


def own(make_bundle: Callable[..., Path], **software: Any) -> Bundle:
    """A bundle measured on an A100."""
    bundle = read_bundle(make_bundle())
    a100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB", memory_gib=80)
    manifest = replace(bundle.manifest, compute=(a100,), software=(SoftwareFingerprint(**software),))
    return replace(bundle, manifest=manifest)


@pytest.mark.parametrize(
    ("software", "kernel"),
    [
        ({"torch": "2.9.0+cu128", "cuda": "12.8", "environment": ("flash-attn=2.8.3",)}, "flash-2"),
        ({"torch": "2.0.1", "cuda": "11.8", "environment": ("A=b", "flash-attn=1.0.9")}, "flash-1"),
        ({"torch": "2.9.0+cu128", "cuda": "12.8"}, "flash-2"),
        ({"torch": "2.10.0", "cuda": "12.8"}, "flash-2"),
        ({"torch": "2.1.2", "cuda": "12.1"}, ""),
        ({"torch": "2.9.0"}, ""),
        ({"torch": ""}, ""),
    ],
)
def test_the_software_of_a_bundle_says_its_kernel(
    make_bundle: Callable[..., Path], software: dict[str, Any], kernel: str
) -> None:
    bundle = own(make_bundle, **software)
    entry = bundle.entries["flash_attention", F]
    assert measured_kernel(entry, bundle.manifest) == kernel
    assert ("flash-1-triton" in answerable_kernels(bundle)) == (kernel == "flash-2")
    assert measured_kernel(replace(entry, kernel="cudnn"), bundle.manifest) == "cudnn"
    # Of two software stacks that differ in it nothing is known.
    other = SoftwareFingerprint(torch="2.0.1", environment=("flash-attn=3.0",))
    mixed = replace(bundle.manifest, software=(*bundle.manifest.software, other))
    assert measured_kernel(entry, mixed) == ""


def test_a_kernel_stays_with_operators_that_are_written(tmp_path: Path) -> None:
    bundle = hardware_bundle("h100-sxm")
    path = tmp_path / "h100.kcast"
    write_bundle(path, bundle.manifest, bundle.files)
    found = read_bundle(path).entries
    assert found["flash_attention", F].kernel == "flash-3"
    assert found["gemm", F].kernel is None
    values = found["flash_attention", F].to_dict()
    assert RegressorEntry.from_dict(values).kernel == "flash-3"
    assert "kernel" not in found["gemm", F].to_dict()
