"""The trace of a step: what viewers demand of the format, and every slice where the simulation has it."""

import json
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.output_file import check_target
from kernelcast.runtime.pipeline.schedules import Kind
from kernelcast.runtime.views.chrome_trace import trace_lines, write_chrome_trace
from kernelcast.runtime.views.simulated_step import simulated_step

Make = Callable[..., Path]
TINY = ModelConfig(
    name='tiny "<&é', hidden_size=8, sequence_length=4, attention_heads=2, layers=8, vocabulary_size=100
)
LAYOUTS: list[dict[str, Any]] = [
    {"pp": 1, "dp": 1, "micro_batches": 2},
    {"pp": 4, "dp": 2, "micro_batches": 3},
    {"pp": 4, "dp": 2, "micro_batches": 6, "schedule": "gpipe"},
    {"pp": 4, "dp": 2, "micro_batches": 6, "schedule": "zero_bubble"},
    {"pp": 4, "dp": 2, "micro_batches": 8, "schedule": "interleaved", "virtual_stages": 2},
    {"pp": 4, "dp": 2, "micro_batches": 7, "schedule": "zb_v"},
    {"pp": 4, "dp": 2, "micro_batches": 8, "schedule": "dualpipe"},
    {"pp": 2, "dp": 2, "micro_batches": 4, "schedule": "dualpipe_v"},
    {
        "pp": 4,
        "dp": 2,
        "micro_batches": 3,
        "overlap_gradients": True,
        "overlap_parameters": True,
        "overlap_bucket": 50,
    },
]


MIXTURE = replace(TINY, experts=4, experts_per_token=2)


def test_collectives_of_experts_lie_inside_passes(make_bundle: Make) -> None:
    layout = {"pp": 2, "dp": 2, "ep": 2, "micro_batches": 3}
    events = parsed(ask(make_bundle({"all_to_all": 50.0}), model=MIXTURE, **layout))
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    inside = [event for event in slices if event["name"] == "expert all-to-all"]
    passes = [event for event in slices if event["cat"] in tuple(Kind)]
    assert len(inside) == len(passes) == 2 * 2 * 3
    around = {(event["tid"], event["ts"]): event["ts"] + event["dur"] for event in passes}
    for event in inside:
        # Four layers of a stage: rows, their probabilities, and back.
        assert event["dur"] == 4 * 3 * 50
        assert event["ts"] + event["dur"] < around[event["tid"], event["ts"]]


def ask(bundle: Path, model: ModelConfig = TINY, **layout: Any) -> Estimate:
    return Estimator.load(bundle).predict(
        model=model,
        parallelism=Parallelism(**{"tp": 1, "micro_batch": 1} | layout),
        cluster=Cluster(gpus_per_node=4),
        interval=False,
    )


def parsed(estimate: Estimate) -> list[dict[str, Any]]:
    trace = json.loads("".join(trace_lines(estimate)))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.get("schedule", f"1f1b {layout['pp']}"))
# A transfer of 1 µs is over before the next one starts; of 5,000 µs many are under way together.
@pytest.mark.parametrize("transfer_us", [1, 5000])
def test_the_trace_is_the_simulation(make_bundle: Make, layout: dict[str, Any], transfer_us: float) -> None:
    estimate = ask(make_bundle({"point_to_point": transfer_us, "all_reduce": 70.0}), **layout)
    timeline = simulated_step(estimate)
    events = parsed(estimate)
    slices = [event for event in events if event["ph"] == "X"]

    expected = [
        (stage.stage, f"{one.kind.value} {one.micro_batch}", one.chunk, round(start_us, 3), round(end_us, 3))
        for stage in timeline.stages
        for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True)
    ]
    found = [
        (
            event["tid"],
            event["name"].split(" (")[0],
            event["args"]["chunk"],
            round(event["ts"], 3),
            round(event["ts"] + event["dur"], 3),
        )
        for event in slices
        if event["cat"] in tuple(Kind)
    ]
    assert found == expected

    ends = [event["ts"] + event["dur"] for event in slices]
    assert max(ends) == pytest.approx(timeline.step_us, abs=0.002)
    assert estimate.step_time_s * 1e6 == pytest.approx(timeline.step_us)

    of = defaultdict(list)
    for event in slices:
        of[event["cat"]].append(event)
    pp, dp, micro_batches = layout["pp"], layout["dp"], layout["micro_batches"]
    schedule = layout.get("schedule", "1f1b")
    chunks = pp * (2 if schedule in ("zb_v", "dualpipe", "dualpipe_v") else layout.get("virtual_stages", 1))
    # Where a V turns, the next chunk is on the same stage; of two copies a micro-batch runs through one.
    sends = {"zb_v": chunks - 2, "dualpipe_v": chunks - 2, "dualpipe": pp - 1}.get(schedule, chunks - 1)
    assert len(of["send"]) == 2 * sends * micro_batches
    assert len(of["optimizer"]) == pp
    assert len(of["all-gather"]) == (pp if dp > 1 and not layout.get("overlap_parameters") else 0)
    assert len(of["all-reduce"]) == (chunks if dp > 1 else 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.get("schedule", f"1f1b {layout['pp']}"))
def test_events_are_what_viewers_read(make_bundle: Make, layout: dict[str, Any]) -> None:
    events = parsed(ask(make_bundle({"point_to_point": 333.3, "all_reduce": 70.0}), **layout))
    named = set()
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            assert set(event["args"]) == ({"name"} if event["name"].endswith("_name") else {"sort_index"})
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert event["name"]
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    # A row holds one slice at a time, every row has a name, and there is no name without a row.
    assert named == set(rows)
    for spans in rows.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            assert start >= end - 1e-6
    # Names of stages in their order.
    names = [
        event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1
    ]
    assert names == [f"stage {stage}" for stage in range(layout["pp"])]


def test_the_file_is_written_at_once_and_always_the_same(make_bundle: Make, tmp_path: Path) -> None:
    estimate = ask(make_bundle(), pp=2, dp=1, micro_batches=2)
    target = tmp_path / "step.json"
    target.write_text("before")
    write_chrome_trace(estimate, target)
    first = target.read_bytes()
    assert json.loads(first)["otherData"]["model"] == TINY.name
    write_chrome_trace(estimate, target)
    assert target.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "test.kcast"]


def test_a_file_that_cannot_be_written_is_refused(make_bundle: Make, tmp_path: Path) -> None:
    estimate = ask(make_bundle(), pp=1, dp=1, micro_batches=1)
    nowhere = tmp_path / "no\nwhere" / "step.json"
    with pytest.raises(UsageError) as refused:
        check_target(nowhere, "--trace")
    shown = str(tmp_path / "no\\nwhere")
    assert str(refused.value) == f"--trace {shown}/step.json: no such folder {shown}"
    with pytest.raises(UsageError, match=r"^--html .*: is a folder, expected a file$"):
        check_target(tmp_path, "--html")
    with pytest.raises(DataError, match=r"step.json: cannot be written \(No such file or directory\)$"):
        write_chrome_trace(estimate, nowhere)
    check_target(tmp_path / "step.json", "--trace")


def test_what_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    from kernelcast.runtime.output_file import write_pieces

    def pieces() -> Any:
        yield "half"
        raise KeyboardInterrupt

    target = tmp_path / "step.json"
    target.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_pieces(target, pieces())
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_events_are_made_while_they_are_written(make_bundle: Make) -> None:
    estimate = ask(make_bundle(), pp=8, dp=1, micro_batches=250)
    tracemalloc.start()
    size = sum(map(len, trace_lines(estimate)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    passes = 2 * 8 * 250
    assert size > 100 * passes
    # The passes with their times, not the text nor the events (more than 1 kB each).
    assert peak < 450 * passes
