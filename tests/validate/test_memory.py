"""Predicted memory against memory that others measured; the test skips where their data are absent."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernelcast.cli.tables import signed_percent
from kernelcast.docs import generate_memory_validation
from kernelcast.runtime import Parallelism, load_model
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.defaults import RESERVED_BYTES
from kernelcast.runtime.estimate.device_memory import MemorySpread
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.shipped import MEMORY_ERRORS
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.runtime.views.formatting import percent
from kernelcast.validate.memory import (
    ComparedCase,
    MemoryValidation,
    covered,
    spreads,
    spreads_toml,
    validate_memory,
)
from kernelcast.validate.memory_cases import GOLDEN, TITAN, AskedCase
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
measured = pytest.mark.skipif(not (DATA / "memory").is_dir(), reason=f"{DATA} has no measured memory")


@cache
def found() -> MemoryValidation:
    return validate_memory(DATA)


@measured
@pytest.mark.parametrize(
    ("source", "kind", "median", "tenth_largest"),
    [
        (GOLDEN, "dense", 0.04, 0.12),
        (GOLDEN, "experts", 0.04, 0.12),
        ("MLPerf llama2_70b_lora", "LoRA", 0.06, 0.06),
        ("MLPerf llama31_405b", "dense", 0.06, 0.06),
        ("SimuMax", "dense", 0.002, 0.002),
        ("SimuMax", "experts", 0.01, 0.01),
    ],
)
def test_errors_stay_small(source: str, kind: str, median: float, tenth_largest: float) -> None:
    [group] = [
        one for one in found().groups if (one.source, one.kind, one.number_format) == (source, kind, "all")
    ]
    assert group.median_abs_error <= median
    assert group.tenth_largest <= tenth_largest


@measured
def test_each_of_torchtitans_steps_is_close() -> None:
    cases = [one for one in found().measured if one.case.source == TITAN]
    assert len(cases) == 14
    for one in cases:
        assert abs(one.error or 0) <= 0.06, one.case.name


@measured
def test_what_ran_is_said_to_fit() -> None:
    for source, fit, ran in found().fitting:
        assert fit >= 0.96 * ran, source


@measured
def test_intervals_of_other_models_hold_nine_of_ten_cases() -> None:
    inside, cases = map(sum, zip(*covered(found()).values(), strict=True))
    assert 0.85 <= inside / cases <= 0.95
    for kind, one in spreads(found()).items():
        assert (one.high - one.low) / 2 <= 0.08, kind


@measured
def test_every_case_is_asked_or_counted() -> None:
    golden = [one for one in found().cases if one.case.source == GOLDEN]
    left_out = sum(count for why, count in found().left_out.items() if why.startswith(GOLDEN))
    assert len(golden) + left_out == 206
    assert found().unread["--log-params-norm"] > 150


@measured
def test_the_command_prints_what_was_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "errors.toml"
    assert ended("validate", "memory", str(DATA), "--each", "--output", str(written)) == 0
    assert written.read_text() == spreads_toml(found())
    lines = capsys.readouterr().out.splitlines()
    texts = [" ".join(line.split()) for line in lines]
    for group in found().groups:
        row = [
            group.kind,
            group.number_format,
            str(group.cases),
            *(percent(one) for one in (group.median_abs_error, group.mean_abs_error, group.tenth_largest)),
            signed_percent(group.mean_error),
        ]
        assert " ".join((group.source, *row)) in texts
    for source, *counts in (*found().fitting, *((name, *two) for name, two in covered(found()).items())):
        assert " ".join((source, *map(str, counts))) in texts
    largest = max(found().measured, key=lambda one: abs(one.error or 0))
    first = next(line for line in lines if largest.case.name in line)
    assert first.endswith(signed_percent(largest.error))
    assert all(f"not predicted: {count} × {why}" in lines for why, count in found().left_out.items())


@measured
def test_the_page_and_the_table_are_current() -> None:
    assert generate_memory_validation.page(found()) == generate_memory_validation.PAGE.read_text()
    assert spreads_toml(found()) == MEMORY_ERRORS.read_text(), "make validate-memory"


def test_a_step_fits_to_the_byte() -> None:
    case = AskedCase(
        source="s", name="n", device="h100-sxm", model=load_model("llama-3.1-8b").with_sequence_length(1024),
        parallelism=Parallelism(tp=2, pp=2, dp=2, micro_batch=1, micro_batches=2), dtype="bfloat16", measured_bytes=1e9,
    )  # fmt: skip
    first, last = stage_memory(case.model, case.parallelism, dtype=case.dtype, architecture=case.architecture)
    buffers = sum(communicator_bytes(Layouts.of(case.parallelism)).values())
    free = int(np.sum((case.device_bytes or 0) - RESERVED_BYTES - buffers))
    assert buffers > 1
    for spare, fits in ((0, True), (1, True), (-1, False)):
        full = replace(last, weights_bytes=last.weights_bytes + free - last.total_bytes - spare)
        found = ComparedCase(case=case, stages=(first, full))
        assert (found.fits, found.predicted_bytes) == (fits, free - spare)
        assert found.error == pytest.approx((free - spare) / 1e9 - 1)
        for stage, own in (("first", first), ("last", full)):
            assert replace(found, case=replace(case, logged_stage=stage)).logged == own
    assert replace(found, case=replace(case, device="abacus")).fits is None


def test_the_ends_of_an_interval_are_inside() -> None:
    cases = []
    for name in ("llama-3.1-8b", "llama-2-7b"):
        case = AskedCase(
            source="s", name=name, device="h100-sxm", model=load_model(name).with_sequence_length(1024),
            parallelism=Parallelism(tp=2, pp=1, dp=2, micro_batch=1, micro_batches=2), dtype="bfloat16",
            measured_bytes=30e9,
        )  # fmt: skip
        stages = stage_memory(case.model, case.parallelism, dtype=case.dtype, architecture=case.architecture)
        cases.append(ComparedCase(case=case, stages=stages))
    first, other = cases
    larger = replace(other, case=replace(other.case, measured_bytes=40e9))
    alone = MemoryValidation(cases=(other, larger), left_out={}, unread={})
    ends = [round(math.log(size / other.predicted_bytes), 4) for size in (30e9, 40e9)]
    low, high = MemorySpread(low=ends[0], middle=0.0, high=ends[1]).interval_bytes(first.predicted_bytes)
    for measured_bytes, is_inside in ((low - 1, 0), (low, 1), (high, 1), (high + 1, 0)):
        at_end = replace(first, case=replace(first.case, measured_bytes=measured_bytes))
        at_end = replace(at_end, case=replace(at_end.case, source="of the first"))
        found = covered(replace(alone, cases=(at_end, other, larger)))
        assert (found["of the first"], found["s"][1]) == ((is_inside, 1), 2)


def test_a_folder_without_measurements(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"megatron-lm-golden.csv: cannot be read, expected measured memory"):
        validate_memory(tmp_path)
