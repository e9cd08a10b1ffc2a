"""Records: canonical values, and ids that mean the same everywhere."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Kernel, MeasuredStep, Prediction, Repetition, Run, Sample, Source, Status
from kernelcast.store.steps import FailureLog, StepTimes

SampleMaker = Callable[..., Sample]

ONE_SAMPLE = """
from kernelcast.store import Kernel, Repetition, Sample
sample = Sample.from_repetitions(
    run_id="0" * 32, operator="gelu", direction="forward", dtype="bfloat16", vector=(2, 1024, 4096),
    repetitions=[
        Repetition(index=i, time_us=7 + i / 3, start_us=i,
                   kernels=(Kernel(name="µ", start_us=0, duration_us=1),))
        for i in range(10)
    ],
)
"""
ID_OF_ONE_SAMPLE = "7b98172510013434270932cd21643f26"


def test_the_id_of_a_sample_never_changes() -> None:
    # Databases in the world hold this id: a change of it needs a migration, not a new expectation.
    scope: dict[str, Sample] = {}
    exec(ONE_SAMPLE, scope)
    assert scope["sample"].id == ID_OF_ONE_SAMPLE


@pytest.mark.parametrize("seed", ["1", "2"])
def test_ids_are_the_same_in_every_process(seed: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", ONE_SAMPLE + "print(sample.id)"],
        env={"PYTHONHASHSEED": seed, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == ID_OF_ONE_SAMPLE


def test_statistics_and_costs_follow_from_the_repetitions() -> None:
    scope: dict[str, Sample] = {}
    exec(ONE_SAMPLE, scope)
    sample = scope["sample"]
    assert sample.time_us == round(7 + 4 / 3, 3)
    assert sample.quiet_us == 7.3
    assert sample.repetition_count == 10
    assert sample.flops == 8 * 2 * 1024 * 4096
    assert sample.moved_bytes == 2 * 2 * 2 * 1024 * 4096
    assert sample.statistic == "middle five of ten"


def test_every_part_of_a_sample_is_part_of_its_id(make_sample: SampleMaker) -> None:
    sample: Sample = make_sample()
    first, *others = sample.repetitions
    slower_kernel = first.kernels[0]._replace(duration_us=99.0)
    changed = [
        replace(sample, vector=(65, 512, 1536)),
        replace(sample, dtype="bfloat16"),
        replace(sample, variant="in-place"),
        replace(sample, direction=Direction.BACKWARD),
        replace(sample, run_id="f" * 32),
        replace(sample, time_us=11.0),
        replace(sample, reference_us=None),
        replace(sample, measured_at="2026-01-31T08:16:01Z"),
        replace(sample, flags=(("unstable", ""),)),
        replace(sample, flags=(("unstable", "spread 31 %"),)),
        replace(sample, repetitions=(replace(first, time_us=9.0), *others)),
        replace(sample, repetitions=(replace(first, kernels=first.kernels[:1]), *others)),
        replace(sample, repetitions=(replace(first, kernels=(slower_kernel, *first.kernels[1:])), *others)),
    ]
    assert len({sample.id, *(other.id for other in changed)}) == len(changed) + 1


def test_the_order_of_flags_means_nothing_and_each_has_a_name_of_its_own(make_sample: SampleMaker) -> None:
    sample, flags = make_sample(), (("throttled", "1410 of 1980 MHz"), ("unstable", "spread 31 %"))
    one, other = (
        replace(sample, flags=flags),
        replace(sample, flags=(flags[1], ("throttled", "1410 of\n1980 MHz"))),
    )
    assert (one.id, one.flags) == (other.id, other.flags)
    assert replace(sample, flags=()).id == sample.id
    for wrong in ((("", "x"),), (("unstable", "x"), ("unstable", "y"))):
        with pytest.raises(UsageError, match="expected names, each once"):
            replace(sample, flags=wrong)


def test_less_than_a_nanosecond_and_the_order_of_kernels_mean_nothing() -> None:
    early = Kernel(name="a", start_us=0.0, duration_us=1.23449)
    late = Kernel(name="b", start_us=2.0, duration_us=1.0)
    one = Repetition(index=0, time_us=3.0, kernels=(early, late))
    other = Repetition(index=0, time_us=3.0000001, kernels=(late, early._replace(duration_us=1.2342)))
    assert one == other
    assert one.kernels[0].duration_us == 1.234
    before = Kernel(name="a", start_us=-0.0, duration_us=0.0)
    assert str(Repetition(index=0, time_us=3.0, kernels=(before,)).kernels[0].start_us) == "0.0"


def test_moments_are_stored_as_utc(run: Run) -> None:
    assert replace(run, started_at="2026-01-31T09:15:00+01:00") == run
    with pytest.raises(UsageError, match="without an offset"):
        replace(run, started_at="2026-01-31T09:15:00")
    with pytest.raises(UsageError, match="ISO-8601"):
        replace(run, started_at="yesterday")


def test_free_text_of_a_run_is_no_part_of_its_id(run: Run) -> None:
    assert replace(run, site="", note="").id == run.id
    assert replace(run, conditions={"processes_per_node": 2}).id != run.id
    assert replace(run, source=Source(kind="import", name="table.csv", file_digest="ab")).id != run.id


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vector": (1, 2)}, "2 entries, expected [m, k, n]"),
        ({"vector": (1, 2, 2.5)}, "whole numbers"),
        ({"vector": (1, 2, -3)}, "whole numbers"),
        ({"direction": "sideways"}, "sideways"),
        ({"direction": Direction.ONCE}, "expected one of forward, input_gradient"),
        ({"dtype": "fp16"}, "expected one of float64"),
        ({"operator": "warp_drive"}, "operator 'warp_drive' is unknown"),
        ({"repetitions": []}, "at least one duration"),
        ({"repetitions": [Repetition(index=0, time_us=0.0)]}, "expected more than 0"),
        ({"repetitions": [Repetition(index=0, time_us=1.0)] * 2}, "same index"),
        ({"measured_at": "noon"}, "ISO-8601"),
    ],
)
def test_nonsense_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "run_id": "0" * 32,
        "operator": "gemm",
        "direction": Direction.FORWARD,
        "dtype": "float32",
        "vector": (1, 2, 3),
        "repetitions": [Repetition(index=0, time_us=1.0)],
    }
    with pytest.raises(UsageError) as caught:
        Sample.from_repetitions(**(good | fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_infinite_times_are_refused() -> None:
    with pytest.raises(UsageError, match="finite"):
        Repetition(index=0, time_us=float("inf"))


def test_a_sample_without_time_needs_a_reason() -> None:
    known: dict[str, Any] = {
        "run_id": "0" * 32,
        "operator": "gelu",
        "direction": Direction.FORWARD,
        "dtype": "float32",
    }
    sample = Sample.without_time(
        **known,
        vector=(1, 2, 3),
        status="unsupported",
        reason="no such\n  kernel",
    )
    assert sample.status is Status.UNSUPPORTED
    assert sample.reason == "no such kernel"
    assert sample.time_us is None
    for status, reason in (("ok", "why not"), ("failed", "")):
        with pytest.raises(UsageError):
            Sample.without_time(**known, vector=(1, 2, 3), status=status, reason=reason)
    for vector in ((), (1, 2, -3), (1, 2, 3.5), (1, 2, -0.5)):
        with pytest.raises(UsageError, match="expected whole numbers from 0"):
            Sample.without_time(**known, vector=vector, status="unsupported", reason="none")


def test_an_import_may_know_a_time_without_its_repetitions() -> None:
    sample = Sample(
        run_id="0" * 32,
        operator="all_reduce",
        direction=Direction.ONCE,
        dtype="float16",
        vector=(1024, 2, 4),
        time_us=33.5,
        statistic="mean",
        repetition_count=20,
    )
    assert sample.quiet_us is None
    assert sample.repetition_count == 20


def test_a_step_knows_its_minimum_tenth_percentile_and_median(step: MeasuredStep) -> None:
    assert (step.min_s, step.p10_s, step.median_s) == (0.6, 0.615, 0.675)
    with pytest.raises(UsageError, match="pp 0"):
        replace(step, pp=0)
    with pytest.raises(UsageError, match="reason"):
        replace(step, status=Status.FAILED)


def test_records_that_json_cannot_hold_are_refused(step: MeasuredStep) -> None:
    with pytest.raises(UsageError, match="JSON"):
        replace(step, model={"size": {1, 2}})
    with pytest.raises(UsageError, match="finite"):
        Prediction(
            step_id=step.id,
            bundle_digest="b",
            timeline="closed form",
            statistic="time_us",
            predicted_s=float("nan"),
        )


def test_unknown_kinds_of_source_are_refused() -> None:
    with pytest.raises(UsageError, match="expected collector, import or trace"):
        Source(kind="hearsay", name="x")


@pytest.mark.parametrize(
    "changed",
    [
        {"failures": 2}, {"node_days": -1.0}, {"failed_s": (-1.0,)}, {"ended_s": (-1.0,)}, {"ended_s": (1e308,)},
        {"gpus_per_node": 0}, {"gpus_per_node": 10**30},
    ],
)  # fmt: skip
def test_a_log_of_failures_is_possible(changed: dict[str, Any]) -> None:
    sound = FailureLog(
        kind="csv",
        gpus_per_node=1,
        node_days=0.0,
        failures=1,
        failed_s=(0.0,),
        ended_s=(1e17,),
        file_digest="0",
    )
    with pytest.raises(
        UsageError, match=r"^failure log: expected as many failed_s as failures, times from 0 to 1e\+17"
    ):
        replace(sound, **changed)


@pytest.mark.parametrize(
    "changed",
    [{"times_s": ()}, {"times_s": (1.0, 0.0)}, {"times_s": (1e308,)}, {"gpus": 0}, {"gpus": 10**30}],
)
def test_times_of_steps_are_possible(changed: dict[str, Any]) -> None:
    sound = StepTimes(gpus=1, times_s=(1e-9, 1e17), file_digest="0")
    with pytest.raises(UsageError, match=r"^step times: expected times above 0"):
        replace(sound, **changed)
