"""A step, its prediction and published steps like it: verdicts, figures, and what is kept."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, Parallelism, UsageError, load_model
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.dataclass import replace
from kernelcast.store import Database
from kernelcast.validate.compare.compared_step import (
    ComparedStep,
    _matched_products,
    _notes,
    _unlike,
    compare_log,
    compare_stated,
)
from kernelcast.validate.compare.published_steps import PublishedSteps, published_like
from kernelcast.validate.compare.rows import (
    Row,
    collective_rows,
    is_near_rows,
    operator_rows,
    part_rows,
    predicted_step,
    stage_of,
)
from kernelcast.validate.compare.storing import keep_in_database, keep_in_file
from kernelcast.validate.compare.traced_steps import TracedSteps, Work
from kernelcast.validate.runs import RunsFile

Ran = Callable[..., TracedSteps]
TOKENS = 2 * 2 * 32  # two devices with two samples each


def known(estimate: Estimate, share: float | None = 0.4) -> Estimate:
    """An estimate of two seconds, one to four, that reaches a share of the devices' peak."""
    found = replace(estimate, step_time_s=2.0, interval_s=(1.0, 4.0))
    if share is None:
        return found
    flops_per_s = found.flops_per_s_per_device / share
    return replace(found, peak=Peak(device="it", dtype="float32", flops_per_s=flops_per_s, source="a test"))


@pytest.mark.parametrize(
    ("measured_s", "verdict"),
    [(0.99, "fast"), (1.0, "as predicted"), (2.0, "as predicted"), (4.0, "as predicted"), (4.01, "slow")],
)
def test_the_interval_decides_the_verdict(estimate: Estimate, measured_s: float, verdict: str) -> None:
    found = compare_stated(known(estimate), step_s=measured_s)
    assert (found.verdict, found.difference) == (verdict, pytest.approx(measured_s / 2 - 1))
    assert found.tokens_per_s_per_gpu == pytest.approx(TOKENS / 2 / measured_s)
    assert found.slower_than is not None
    assert (found.slower_than < 0.05, found.slower_than > 0.95) == (verdict == "fast", verdict == "slow")
    bare = replace(found, estimate=replace(known(estimate), interval_s=None))
    assert bare.verdict == ("slow" if measured_s > 2 else "fast" if measured_s < 2 else "as predicted")
    assert bare.slower_than is None


def test_any_unit_states_the_same_step(estimate: Estimate) -> None:
    stated = known(estimate)
    same = [
        compare_stated(stated, step_s=3.0),
        compare_stated(stated, tokens_per_s_per_gpu=TOKENS / 2 / 3.0),
        compare_stated(stated, mfu=0.4 * 2 / 3),
    ]
    assert [one.measured_s for one in same] == pytest.approx([3.0] * 3)
    # 40 % in 2 s: less than 0.8 s is above the peak.
    assert compare_stated(stated, step_s=0.8).measured_s == 0.8
    with pytest.raises(UsageError, match=r"the step would take 790\.0 ms, 101% of the devices' peak"):
        compare_stated(stated, step_s=0.79)
    assert compare_stated(known(estimate, None), step_s=1e-9).measured_s == 1e-9
    with pytest.raises(UsageError, match="the device's peak is not known"):
        compare_stated(known(estimate, None), mfu=0.4)
    for step_s in (None, 0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="found no finite step time above 0"):
            compare_stated(stated, step_s=step_s)


def test_a_log_in_plain_values(estimate: Estimate, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("tps: 32\n" * 6)
    found = compare_log(log, known(estimate))
    assert found.steps_s == pytest.approx([TOKENS / 2 / 32] * 4)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["framework"] == "torchtitan"
    assert (document["run_id"], document["ranks"]) == (None, [])
    assert document["steps_s"] == list(found.steps_s)
    assert compare_stated(known(estimate), step_s=3).to_dict()["framework"] is None


def test_a_traced_step_in_plain_values_and_as_a_runs_file(
    ran: Ran, estimate: Estimate, tmp_path: Path
) -> None:
    def slower(work: Work) -> Work:
        return replace(work, time_s=1.5 * work.time_s) if work.step == "ProfilerStep#2" else work

    traced = ran(slower)
    predicted = predicted_step(estimate, traced.ranks)
    steps_s = tuple(traced.step_s(step) for step in traced.steps)
    # Of two steps after the first, the shorter one is typical.
    assert (traced.typical, len(steps_s)) == ("ProfilerStep#3", 3)
    assert steps_s[1] == pytest.approx(1.5 * steps_s[0])
    found = ComparedStep(
        estimate=estimate, steps_s=steps_s, measured_s=traced.step_s(traced.typical), traced=traced,
        parts=part_rows(traced, predicted), operators=operator_rows(traced, predicted, estimate),
    )  # fmt: skip
    document = found.to_dict()
    assert (document["run_id"], document["ranks"], document["framework"]) == ("run", [0, 1], None)
    assert [one["part"] for one in document["parts"]] == ["forward", "backward", "update", "communication"]
    [qkv] = [one for one in document["operators"] if (one["name"], one["pass"]) == ("gemm qkv", "forward")]
    assert qkv == {
        "operator": "gemm", "name": "gemm qkv", "pass": "forward", "vector": [64, 64, 192], "launches": 2.0, "calls": 2,
        "measured_s": pytest.approx(2e-5), "predicted_s": pytest.approx(2e-5), "ratio": pytest.approx(1),
        "low_s": pytest.approx(1e-5), "high_s": pytest.approx(4e-5), "excess_s": pytest.approx(0), "is_slow": False,
    }  # fmt: skip
    [update] = [one for one in document["operators"] if one["pass"] == "update"]
    assert (update["operator"], update["vector"]) == (None, [])
    [gathered] = replace(found, collectives=collective_rows(traced, predicted, estimate)).to_dict()[
        "collectives"
    ]
    size = sum(one.calls * one.message_bytes(4) for one in predicted.calls if one.pass_ == "once")
    assert (gathered["operator"], gathered["predicted_bytes"], gathered["measured_bytes"]) == (
        "all_reduce",
        size,
        size,
    )
    keep_in_file(found, tmp_path / "ours.toml", site="Here", source="a trace", device="h100-sxm")
    kept = RunsFile.read(tmp_path / "ours.toml")
    assert (kept.site, kept.hardware, kept.device, kept.fabric) == ("Here", "device", "h100-sxm", "")
    [run] = kept.runs
    assert replace(run.model, name=estimate.model.name) == estimate.model
    assert run.parallelism == estimate.parallelism
    assert (run.bucket_entries, run.cluster) == (estimate.bucket_entries, estimate.cluster)
    assert (run.measured_s, run.mean_s) == (min(steps_s), pytest.approx(sum(steps_s) / 3))


def test_a_built_in_model_is_kept_by_its_name(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    model = load_model("llemma-7b", sequence_length=64)
    layout = Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=2, layer_counts=(15, 17))
    estimate = Estimator.load(make_bundle()).predict(model=model, parallelism=layout)
    path = tmp_path / "ours.toml"
    keep_in_file(compare_stated(estimate, step_s=3.0), path, site="Here", source="stated")
    assert 'model = "llemma-7b"' in path.read_text()
    assert "[models" not in path.read_text()
    assert not {"sequence_parallel", "recompute", "schedule"} & set(
        re.findall(r"^\w+", path.read_text(), re.M)
    )
    kept = RunsFile.read(path)
    assert (kept.runs[0].model, kept.hardware) == (model, "not recorded")
    assert kept.runs[0].parallelism == layout
    changed = replace(estimate, model=replace(model, mlp_size=64))
    keep_in_file(compare_stated(changed, step_s=3.0), path, site="Here", source="stated")
    assert RunsFile.read(path).runs[0].model.mlp_size == 64


def test_traces_of_another_step_are_told(ran: Ran, estimate: Estimate) -> None:
    def unlike(traced: TracedSteps) -> list[str]:
        rows = operator_rows(traced, predicted_step(estimate, traced.ranks), estimate)
        return list(_unlike(traced, estimate, rows))

    assert unlike(ran()) == unlike(replace(ran(), world_size=None)) == []
    assert unlike(replace(ran(), world_size=4)) == ["found traces of 4 processes, the layout has 2"]
    forward = ran(lambda work: None if work.pass_ == "backward" else work)
    assert unlike(forward) == ["found no backward pass, as in inference"]
    assert unlike(ran(lambda work: None if work.pass_ in ("forward", "backward") else work)) == []
    collectives = ran(lambda work: work if work.class_ == "communication" else None)
    assert unlike(collectives) == ["found no kernel that computes"]

    def other(work: Work) -> Work:
        is_it = work.operator == "gemm" and work.pass_ == "backward"
        return replace(work, vector=tuple(7 * one for one in work.vector)) if is_it else work

    rows = operator_rows(ran(other), predicted_step(estimate, (0, 1)), estimate)
    assert _matched_products(rows) == pytest.approx(1 / 3)  # the backward pass takes twice as long
    assert unlike(ran(other)) == ["found 33% of the predicted matrix products, by their shapes"]

    def without_shapes(share: float) -> TracedSteps:
        """As a trace without shapes has it: the names of the host's operators tell what is of images."""
        traced = ran(lambda work: replace(work, vector=(), operator="") if work.operator == "gemm" else work)
        compute_s = sum(one.time_s for one in traced.work if one.class_ == "compute") / 6  # ranks × steps
        more = replace(
            traced.work[0],
            operator="",
            vector=(),
            class_="compute",
            time_s=share / (1 - share) * compute_s / 2,
        )
        added = [
            replace(more, rank=rank, step=step, host_operator=name)
            for rank in traced.ranks for step in traced.steps
            for name in ("aten::cudnn_convolution", "aten::cudnn_batch_norm_backward")
        ]  # fmt: skip
        return replace(traced, work=(*traced.work, *added))

    assert unlike(without_shapes(0.45)) == []
    traced = without_shapes(0.6)
    elsewhere = [one for one in traced.work if one.step != traced.typical or "conv" not in one.host_operator]
    assert unlike(replace(traced, work=tuple(elsewhere))) == []  # only the typical step counts
    assert unlike(without_shapes(0.6)) == [
        "found convolutions and batch norms in 60% of the compute, as in models of images"
    ]


def test_what_is_worth_knowing_is_noted(ran: Ran, estimate: Estimate) -> None:
    def notes(traced: TracedSteps, asked: Estimate = estimate) -> list[str]:
        return _notes(traced, asked, operator_rows(traced, predicted_step(asked, traced.ranks), asked))

    assert notes(ran()) == []
    measured_on = replace(
        estimate, provenance=replace(estimate.provenance, compute=("gpu, 40 GiB", "abacus"))
    )
    assert notes(ran(), measured_on) == ["the traces are of device, the prediction is for abacus, gpu"]
    for same in ("gpu, 80 GiB", "unknown device"):
        assert notes(replace(ran(), hardware=same), measured_on) == []
    traced = ran()
    one = replace(traced, parts_s={0: traced.parts_s[0]}, work=tuple(w for w in traced.work if w.rank == 0))
    assert notes(one) == ["1 of 2 ranks are traced: a slow one among the others shows as waiting only"]
    [note] = notes(ran(lambda work: replace(work, vector=()) if work.operator == "gemm" else work))
    assert note.startswith("the traces show 0% of the predicted matrix products: without shapes")


@pytest.mark.parametrize(
    ("own", "side"),
    [(99, "slower than"), (100, "among"), (150, "among"), (200, "among"), (201, "faster than")],
)
def test_a_speed_beside_published_ones(own: float, side: str) -> None:
    several = PublishedSteps(
        software="it", device="h100-sxm", steps=3, tokens_per_s_per_gpu=(100.0, 200.0), gpus=(8, 64)
    )
    line = several.line(own)
    assert (
        line
        == f"it: 100 to 200 tokens/s per GPU, 3 steps on 8–64 h100-sxm; this step, {own}, is {side} these"
    )
    single = replace(several, steps=1, tokens_per_s_per_gpu=(100.0, 100.0), gpus=(8, 8))
    assert single.line(own).startswith("it: 100 tokens/s per GPU, 1 step on 8 h100-sxm; ")
    assert " on 8 h100-sxm at 500 W; " in replace(single, power_limit_w=500.0).line(own)


def test_published_steps_are_of_the_same_shape_kind_and_device(make_bundle: Callable[..., Path]) -> None:
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1, zero=3)
    model = load_model("llama-3.1-8b", sequence_length=8192)
    estimate = Estimator.load(make_bundle()).predict(
        model=replace(model, name="ours"), parallelism=layout, cluster=Cluster(gpus_per_node=8)
    )
    found = {one.software: one for one in published_like(estimate, "h100-sxm")}
    file = RunsFile.read(Path(__file__).parents[3] / "validate" / "torchtitan-h100.toml")
    runs = [
        run for run in file.runs
        if run.model.name == "llama-3.1-8b" and run.kind == "16 bit, dense" and not run.flag
        and run.model.sequence_length == 8192
    ]  # fmt: skip
    speeds = [
        run.parallelism.samples_per_update * 8192 / run.measured_s / run.parallelism.world_size
        for run in runs
    ]
    gpus = [run.parallelism.world_size for run in runs]
    assert found["torchtitan"] == PublishedSteps(
        software="torchtitan", device=file.device, steps=len(runs), gpus=(min(gpus), max(gpus)),
        tokens_per_s_per_gpu=(min(speeds), max(speeds)), power_limit_w=500,
    )  # fmt: skip
    assert published_like(estimate, "") == published_like(estimate, "abacus") == ()
    assert published_like(replace(estimate, model=replace(model, layers=31)), "h100-sxm") == ()


@pytest.mark.parametrize(
    ("one", "other", "are_near"),
    [(100, 100, True), (110, 100, True), (100, 110, True), (111, 100, False), (0, 1, False)],
)
def test_about_as_many_tokens(one: int, other: int, are_near: bool) -> None:
    assert is_near_rows(one, other) is are_near


def test_stages_are_the_outermost_dimension_and_bytes_those_of_nccl_tests(estimate: Estimate) -> None:
    layout = replace(estimate.parallelism, pp=3, dp=4)
    asked = replace(estimate, parallelism=layout)
    assert [stage_of(rank, asked) for rank in (0, 3, 4, 7, 8, 11, 12, 99)] == [0, 0, 1, 1, 2, 2, 2, 2]
    rows = [
        Row(name=name, operator=name, pass_="once", vector=(10, 2, 4))
        for name in ("all_reduce", "all_gather")
    ]
    assert [row.message_bytes(4) for row in rows] == [40, 320]


@pytest.mark.parametrize(
    ("width", "matched"), [(4, True), (5.98, True), (2.7, True), (6.1, False), (2.6, False)]
)
def test_a_workload_within_one_and_a_half_times_is_the_same_call(
    ran: Ran, estimate: Estimate, width: float, matched: bool
) -> None:
    """A gelu of [2, 32, 4 · 64] elements."""

    def wider(work: Work) -> Work:
        is_it = work.operator == "gelu" and work.pass_ == "forward"
        return replace(work, vector=(*work.vector[:-1], round(64 * width))) if is_it else work

    rows = operator_rows(ran(wider), predicted_step(estimate, (0, 1)), estimate)
    [gelu] = [row for row in rows if row.operator == "gelu" and row.pass_ == "forward" and row.predicted_s]
    assert gelu.is_matched is matched
    assert (len([row for row in rows if row.operator == "gelu"]) == 2) is matched


def test_steps_are_kept_with_their_own_traces_only(ran: Ran, estimate: Estimate, tmp_path: Path) -> None:
    found, kept, other = compare_stated(estimate, step_s=3.0), tmp_path / "kept.db", tmp_path / "other.db"
    with pytest.raises(
        UsageError, match=r"^--db keeps steps with their traces, found none; expected --keep FILE"
    ):
        keep_in_database(found, [kept], kept)
    for path in (kept, other):
        Database.open(path, create=True).close()
    traced = replace(found, traced=ran())
    with pytest.raises(UsageError) as caught:
        keep_in_database(traced, [kept, other], other)
    assert str(caught.value) == f"--db is {other}, expected {kept}, which holds the traces"
    with pytest.raises(UsageError) as caught:
        keep_in_database(traced, [kept], kept)
    assert str(caught.value) == f"{kept}: holds these traces in other runs, expected a database without them"


def test_messages_have_the_bytes_of_the_steps_numbers(ran: Ran, estimate: Estimate) -> None:
    traced = ran()
    predicted = predicted_step(estimate, traced.ranks)
    sizes = {}
    for dtype in ("float32", "float64", "bfloat16"):
        known_type = replace(estimate, provenance=replace(estimate.provenance, dtype=dtype))
        [row] = collective_rows(traced, predicted, known_type)
        sizes[dtype] = row.predicted_bytes
    assert sizes["float32"] == sum(one.message_bytes(4) for one in predicted.calls if one.pass_ == "once") > 0
    assert (sizes["float64"], sizes["bfloat16"]) == (2 * sizes["float32"], sizes["float32"] / 2)
