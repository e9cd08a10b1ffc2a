"""`collect compute` as a function: a tiny plan into a database, again, and when things go wrong."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelcast.collector.benches import BENCHES, Bench, Builder, Place, Point
from kernelcast.collector.compute import Collected, collect_compute, is_known, measured_points
from kernelcast.collector.measuring import measurer as module
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.measurer import memory_of_each_bytes, point_bytes
from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime import UsageError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample, Status


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "bench.db", create=True) as opened:
        yield opened


@pytest.fixture
def gelu(quick: Effort) -> Settings:
    return Settings(device="cpu", effort=quick, operators=("gelu",))


def samples(database: Database) -> list[Sample]:
    return list(database.samples_in_full())


def one_shape(plan: Plan) -> Plan:
    return replace(plan, shapes_per_operator=1)


@pytest.mark.parametrize(("element_bytes", "of_each"), [(2, 24), (4, 16), (8, 32)])
def test_memory_of_an_update_and_of_a_function(element_bytes: int, of_each: int) -> None:
    """Adam holds weight, gradient and two moments, in 16 bit float32 copies too; GELU reads and writes five times."""
    assert point_bytes(Point(operator="adam", role="", vector=(1000, 1)), element_bytes) == 1000 * of_each
    assert (
        point_bytes(Point(operator="gelu", role="", vector=(1, 10, 20)), element_bytes)
        == 5 * 200 * element_bytes
    )


def test_every_operator_and_direction_is_stored(database: Database, plan: Plan, quick: Effort) -> None:
    seen: list[tuple[int, int, str]] = []
    settings = Settings(effort=quick, device="cpu")
    done = collect_compute(database, one_shape(plan), settings, on_progress=lambda *now: seen.append(now))
    points = compute_points(one_shape(plan))
    assert done == Collected(measured=len(points) - 1, unsupported=1)
    assert seen == [(index, len(points), point.operator) for index, point in enumerate(points, start=1)]
    stored = samples(database)
    assert Counter((s.operator, s.role, s.vector, s.direction) for s in stored) == Counter(
        (point.operator, point.role, point.vector, direction)
        for point in points
        for direction in point.law.directions
    )
    (run,) = database.run_list()
    for sample in stored:
        assert sample.dtype == "float32"
        assert sample.run_id == run.id
        assert sample.measured_at is not None
    assert (run.command, run.plan, run.fabric_id) == ("collect compute", "tiny", None)
    assert dict(run.conditions) == {"processes_per_node": 1}

    missing = [s for s in stored if s.status is Status.UNSUPPORTED]
    assert {s.operator for s in missing} == {"fused_causal_softmax"}
    assert len(missing) == 2
    for sample in missing:
        assert sample.reason == "no fused scale-mask-softmax kernel on device type 'cpu'"
        assert sample.time_us is None
        assert not sample.repetitions


def test_statistics_follow_from_the_stored_repetitions(database: Database, plan: Plan) -> None:
    effort = Effort(warm_up_iterations=1, most_blocks=2, most_in_block=10, stable_within=-1.0)
    collect_compute(
        database, one_shape(plan), Settings(operators=("gelu", "adam"), effort=effort, device="cpu")
    )
    stored = samples(database)
    assert len(stored) == 2 + 3
    for sample in stored:
        times = [repetition.time_us for repetition in sample.repetitions]
        assert len(times) == sample.repetition_count == 20
        assert all(repetition.kernels for repetition in sample.repetitions)
        # Mean of the middle five of the first ten, and the 10th percentile of all, written out again.
        assert sample.time_us == pytest.approx(sum(sorted(times[:10])[2:7]) / 5, abs=0.001)
        low, high = sorted(times)[1:3]
        assert sample.quiet_us == pytest.approx(low + 0.9 * (high - low), abs=0.001)
        assert sample.reference_us is not None
        assert sample.reference_us > 0


def test_what_is_there_is_not_measured_again(database: Database, plan: Plan, gelu: Settings) -> None:
    chosen = replace(gelu, operators=("gelu", "rope", "fused_causal_softmax"))
    first = collect_compute(database, plan, gelu)
    assert first == Collected(measured=2)
    # Another choice of operators, and then the same again.
    more = collect_compute(database, plan, chosen)
    assert more == Collected(measured=2, unsupported=2, already_there=2)
    before = [sample.id for sample in samples(database)]
    seen: list[tuple[int, int, str]] = []
    again = collect_compute(database, plan, chosen, on_progress=lambda *now: seen.append(now))
    assert again == Collected(already_there=6)
    assert seen == []
    assert [sample.id for sample in samples(database)] == before
    assert len(database.run_list()) == 2  # a run that measured nothing is none


@pytest.mark.slow
def test_a_linear_with_one_of_its_directions_is_measured_again(
    database: Database, plan: Plan, quick: Effort
) -> None:
    (point, *_) = compute_points(one_shape(plan), ("gemm",))
    collect_compute(database, one_shape(plan), Settings(operators=("gemm",), effort=quick, device="cpu"))
    known = measured_points(database, database.run_list()[0])
    assert is_known(point.law, "float32", point.vector, known)
    for direction in point.law.directions:
        fewer = known - {("gemm", direction, "float32", point.vector)}
        assert not is_known(point.law, "float32", point.vector, fewer)
    # A sum of both gradients, as others have it, stands for neither.
    total = {
        ("gemm", direction, "float32", point.vector) for direction in (Direction.FORWARD, Direction.BACKWARD)
    }
    assert not is_known(point.law, "float32", point.vector, total)


def test_again_adds(database: Database, plan: Plan, gelu: Settings) -> None:
    for again in ("no", "all"):
        done = collect_compute(database, one_shape(plan), replace(gelu, again=again))
        assert done == Collected(measured=1)
    assert Counter(s.direction for s in samples(database)) == {Direction.FORWARD: 2, Direction.BACKWARD: 2}
    assert len(database.run_list()) == 2


@pytest.mark.parametrize(
    "change", [{"threads": 2}, pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_other_conditions_are_measured_on_their_own(
    database: Database, plan: Plan, gelu: Settings, change: dict[str, Any]
) -> None:
    for settings in (gelu, replace(gelu, **change)):
        assert collect_compute(database, one_shape(plan), settings).measured == 1
    assert len(samples(database)) == 4
    threads = {row.fingerprint.threads for row in database.hardware_list()}
    assert threads == ({1, 2} if "threads" in change else {1})


@pytest.mark.slow
def test_each_load_is_measured_on_its_own(database: Database, plan: Plan, gelu: Settings) -> None:
    measured, there = Collected(measured=1), Collected(already_there=1)
    sustained = replace(gelu, load=Load.SUSTAINED)
    for settings, expected in ((gelu, measured), (sustained, measured), (sustained, there)):
        assert collect_compute(database, one_shape(plan), settings) == expected
    lasting = replace(one_shape(plan), load=Load.SUSTAINED)  # as a plan states it
    for settings in (gelu, replace(gelu, load=Load.BURST)):
        assert collect_compute(database, lasting, settings) == there
    assert Counter(sample.load for sample in samples(database)) == {Load.BURST: 2, Load.SUSTAINED: 2}


def raising(error: Exception) -> Builder:
    def build(point: Point, place: Place) -> Bench:
        raise error

    return build


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("no such kernel\nframe #0: c10::Error"), Status.FAILED, "RuntimeError: no such kernel"),
        (ValueError("odd"), Status.FAILED, "ValueError: odd"),
        (RuntimeError(), Status.FAILED, "RuntimeError:"),
        (MemoryError("x"), Status.FAILED, "out of memory: x"),
        (torch.OutOfMemoryError("tried 40 GiB"), Status.FAILED, "out of memory: tried 40 GiB"),
        (NotImplementedError("'gelu' not implemented for 'Half'"), Status.UNSUPPORTED, "'gelu' not impl"),
    ],
)
def test_an_operator_that_raises_is_a_row_and_the_run_goes_on(
    database: Database,
    plan: Plan,
    gelu: Settings,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: Status,
    reason: str,
) -> None:
    monkeypatch.setattr(module, "BENCHES", {**BENCHES, "gelu": raising(error)})
    settings = replace(gelu, operators=("gelu", "residual_add"))
    done = collect_compute(database, one_shape(plan), settings)
    failed = status is Status.FAILED
    assert (done.measured, done.failed, done.unsupported) == (1, int(failed), int(not failed))
    assert done.first_failure.startswith("gelu [" if failed else "")
    rows = [s for s in samples(database) if s.operator == "gelu"]
    assert {s.direction for s in rows} == {Direction.FORWARD, Direction.BACKWARD}
    for row in rows:
        assert row.status is status
        assert row.reason.startswith(reason)
        assert "frame" not in row.reason
    # What failed is tried again, what is unsupported is not.
    monkeypatch.setattr(module, "BENCHES", BENCHES)
    again = collect_compute(database, one_shape(plan), settings)
    assert again == Collected(measured=int(failed), already_there=2 - int(failed))


def test_real_memory_that_runs_out_is_a_row(
    database: Database, plan: Plan, gelu: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(point: Point, place: Place) -> Bench:
        return Bench(lambda: torch.empty(2**50), [])

    monkeypatch.setattr(module, "BENCHES", {**BENCHES, "gelu": build})
    done = collect_compute(database, one_shape(plan), gelu)
    assert done.failed == 1
    assert "out of memory: " in done.first_failure
    assert "\n" not in done.first_failure


@pytest.mark.slow
def test_what_exceeds_the_memory_is_a_row_and_never_built(
    database: Database, plan: Plan, quick: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = compute_points(plan, ("gemm",))
    needed = sorted(point_bytes(point, 4) for point in points)
    assert needed[0] < needed[-1]
    monkeypatch.setattr(
        "kernelcast.collector.measuring.measurer.device_memory_bytes", lambda device: needed[-1] - 1
    )
    built: list[Point] = []

    def build(point: Point, place: Place) -> Bench:
        built.append(point)
        return BENCHES["gemm"](point, place)

    monkeypatch.setattr(module, "BENCHES", {**BENCHES, "gemm": build})
    done = collect_compute(database, plan, Settings(operators=("gemm",), effort=quick, device="cpu"))
    kept = [point for point in points if point_bytes(point, 4) < needed[-1]]
    assert (done.measured, done.failed) == (len(kept), len(points) - len(kept))
    assert {point.vector for point in built} == {point.vector for point in kept}
    assert (
        "out of memory: its tensors need up to 0.0 GiB, each process has 0.0 GiB here" in done.first_failure
    )


def test_processes_of_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.collector.measuring.measurer.device_memory_bytes", lambda device: 100)
    assert memory_of_each_bytes(torch.device("cpu"), 4) == 25
    assert memory_of_each_bytes(torch.device("cuda"), 4) == 100


def test_an_interrupt_keeps_what_was_measured(database: Database, plan: Plan, quick: Effort) -> None:
    def stop(done: int, total: int, operator: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_compute(database, plan, Settings(effort=quick, device="cpu"), on_progress=stop)
    assert len({(s.operator, s.vector) for s in samples(database)}) == 3


def test_wrong_use(database: Database, plan: Plan) -> None:
    with pytest.raises(
        UsageError, match="dtype 'int8' is unknown; expected one of float32, bfloat16, float16"
    ):
        collect_compute(database, plan, Settings(dtype="int8"))
    with pytest.raises(UsageError, match="device 'npu' is unknown"):
        collect_compute(database, plan, Settings(device="npu"))
    with pytest.raises(UsageError, match="operator 'conv' is unknown; known are emb"):
        collect_compute(database, plan, Settings(operators=("conv",)))
    assert database.run_list() == []


def test_the_site_is_kept(database: Database, plan: Plan, gelu: Settings) -> None:
    collect_compute(database, one_shape(plan), replace(gelu, site="Example site"))
    assert [run.site for run in database.run_list()] == ["Example site"]


def test_a_plan_for_another_kind_of_device_is_refused(database: Database, plan: Plan, gelu: Settings) -> None:
    with pytest.raises(UsageError) as caught:
        collect_compute(database, replace(one_shape(plan), device="cuda"), gelu)
    assert str(caught.value) == (
        "plan tiny is for a cuda (hidden sizes up to 64), found cpu; expected a plan for your models: "
        "kernelcast collect plan --for MODEL -o FILE"
    )
    assert not samples(database)
