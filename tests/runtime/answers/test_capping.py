"""Answers are not faster than the hardware can be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.answers.bundle_times import BundleTimes
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.hardware.limits import sustained
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
GEMM = ("gemm", Direction.FORWARD)
REDUCE = ("all_reduce", Direction.ONCE)
A100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB", memory_gib=80)
UNKNOWN = ComputeFingerprint(kind="cuda", device_name="NVIDIA Z9", memory_gib=80)


def answered(path: Path, key: tuple[str, Direction], vector: tuple[int, ...]) -> tuple[float, float, float]:
    found = BundleTimes(Predictor(read_bundle(path))).ask([(key, vector, "")])
    return found.answers[key, vector, ""]


def test_a_product_takes_as_long_as_the_device_needs(make_bundle: Make) -> None:
    path = make_bundle({"gemm": 7.0}, compute=(A100,), dtype="float16", name="a100.kcast")
    # 2 · 8192³ FLOPs at what an A100 holds of its 312 TFLOP/s.
    least_us = 3524.1 / sustained()["a100-sxm"].share
    assert answered(path, GEMM, (8192, 8192, 8192))[:2] == pytest.approx((least_us, least_us), rel=1e-4)
    assert answered(path, GEMM, (8, 8, 8))[0] == pytest.approx(7.0)


def test_what_was_measured_under_sustained_load_is_held_to_the_peak_alone(
    make_bundle: Make, tmp_path: Path
) -> None:
    bundle = read_bundle(make_bundle({"gemm": 7.0}, compute=(A100,), dtype="float16", name="a100.kcast"))
    entries = tuple(replace(entry, load=Load.SUSTAINED) for entry in bundle.manifest.regressors)
    write_bundle(tmp_path / "own.kcast", replace(bundle.manifest, regressors=entries), bundle.files)
    assert answered(tmp_path / "own.kcast", GEMM, (8192, 8192, 8192))[0] == pytest.approx(3524.1, rel=1e-4)


def test_in_float32_nothing_but_the_peak_is_known(make_bundle: Make) -> None:
    path = make_bundle({"gemm": 7.0}, compute=(A100,), dtype="float32", name="a100.kcast")
    # Frameworks may compute them in TF32, 156 TFLOP/s.
    assert answered(path, GEMM, (8192, 8192, 8192))[0] == pytest.approx(7048.2, rel=1e-4)


def test_of_an_unknown_device_nothing_is_known(make_bundle: Make) -> None:
    path = make_bundle({"gemm": 7.0}, compute=(UNKNOWN,), dtype="float16", name="z9.kcast")
    assert answered(path, GEMM, (8192, 8192, 8192))[0] == pytest.approx(7.0)


def test_products_in_8_bit_take_as_long_as_the_device_needs_for_those(make_bundle: Make) -> None:
    h100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3", memory_gib=80)
    path = make_bundle({"gemm_float8_block": 7.0}, compute=(h100,), dtype="bfloat16", name="h100.kcast")
    # 2 · 8192³ FLOPs at what an H100 holds of its 1,978.9 TFLOP/s in 8 bit.
    least_us = 555.62 / sustained()["h100-sxm-float8"].share
    key = ("gemm_float8_block", Direction.FORWARD)
    assert answered(path, key, (8192, 8192, 8192))[0] == pytest.approx(least_us, rel=1e-4)
