"""Configurations as arrays: sums per stage, the closed form, and the lower bound that spares simulations."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.estimate.configurations import Configurations, Structure, structures
from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE, SAVED, Durations
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.layouts import Layouts
from tests.runtime.pipelines import pipelines

LAYOUTS = 6


def configurations(
    schedule: Schedule,
    pp: int,
    virtual_stages: int,
    micro_batches: list[int],
    arrays: dict[str, np.ndarray[Any, Any]],
) -> Configurations:
    count = len(micro_batches)
    return Configurations(
        structure=Structure(schedule, pp, virtual_stages, False),
        rows=np.arange(count),
        micro_batches=np.array(micro_batches),
        durations=Durations(**arrays),
        gather_us=np.zeros((count, pp)),
        layer_forward_us=np.zeros(count),
        layer_backward_us=np.zeros(count),
    )


def by_hand(schedule: Schedule = "1f1b", virtual_stages: int = 1, m: int = 3, **times: Any) -> Configurations:
    """One configuration; a duration that is not given is 0."""
    chunks = len(times["forward_us"])
    usual = dict.fromkeys(PER_CHUNK, [0.0] * chunks) | dict.fromkeys(
        PER_STAGE, [0.0] * (chunks // virtual_stages)
    )
    arrays = {name: np.array([row], dtype=np.float64) for name, row in (usual | times).items()}
    return configurations(schedule, chunks // virtual_stages, virtual_stages, [m], arrays)


@st.composite
def any_configurations(draw: st.DrawFn) -> Configurations:
    """Layouts of one structure whose every duration is anything, zero included."""
    shape = draw(pipelines(most_chunks=3))
    schedule, pp, virtual_stages = shape["schedule"], shape["pp"], shape["virtual_stages"]
    kind = SCHEDULE_KINDS[schedule]
    more = draw(st.lists(st.integers(0, 11), min_size=LAYOUTS, max_size=LAYOUTS))
    micro_batches = [shape["micro_batches"] + number * (kind.micro_batch_multiple or pp) for number in more]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.5, 3.0]))

    def times(name: str) -> Any:
        width = pp * (1 if name in PER_STAGE else virtual_stages * kind.copies)
        values = np.exp(spread * random.standard_normal((LAYOUTS, width)))
        return values * (random.random((LAYOUTS, width)) > draw(st.sampled_from([0.0, 0.5])))

    arrays = {name: times(name) for name in (*PER_CHUNK, *PER_STAGE)}
    if not kind.splits:
        arrays["weight_us"][:] = 0
    if kind.pairs:
        arrays |= {name: np.minimum(times(name), arrays[name.removeprefix("saved_")]) for name in SAVED}
    arrays["send_forward_us"][:, -1] = arrays["send_backward_us"][:, 0] = 0
    return configurations(schedule, pp, virtual_stages, micro_batches, arrays)


@settings(deadline=None, max_examples=200)
@given(any_configurations())
def test_no_simulation_is_shorter_than_its_bound(found: Configurations) -> None:
    assert (found.bound_us() <= found.times("simulate").step_us).all()


@settings(deadline=None, max_examples=50)
@given(
    any_configurations(),
    st.lists(st.booleans(), min_size=LAYOUTS, max_size=LAYOUTS),
    st.sampled_from(["simulate", "closed-form"]),
)
def test_what_is_chosen_does_not_change_its_time(
    found: Configurations, chosen: list[bool], timeline: Any
) -> None:
    everything, mask = found.times(timeline), np.array(chosen)
    some = found.times(timeline, mask)
    assert some.step_us.tolist() == everything.step_us[mask].tolist()
    assert some.pipeline_us.tolist() == everything.pipeline_us[mask].tolist()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_meet_their_bound(schedule: Schedule) -> None:
    found = by_hand(
        schedule, m=8, forward_us=[1] * 4, backward_us=[2] * 4, all_reduce_us=[5] * 4, update_us=[7] * 4
    )
    # (m − 1 + pp) · 3, the all-reduce and the update.
    assert found.bound_us() == pytest.approx([33 + 5 + 7])
    assert found.times("simulate").step_us == pytest.approx([33 + 5 + 7])
    assert found.times("simulate").pipeline_us == pytest.approx([33])


TWO_STAGES: dict[str, Any] = {
    "forward_us": [10, 20],
    "backward_us": [30, 40],
    "send_forward_us": [1, 0],
    "send_backward_us": [0, 2],
    "all_reduce_us": [5, 6],
    "update_us": [7, 8],
}


def test_two_stages_by_hand() -> None:
    found = by_hand(**TWO_STAGES)
    # A transfer is charged to the stage that sends.
    assert found.forward_us.tolist() == [[11, 20]]
    assert found.backward_us.tolist() == [[30, 42]]
    # (3 − 1 + 2) · (20 + 42), the first all-reduce and the longest update.
    assert found.times("closed-form").step_us.tolist() == [248 + 5 + 8]
    # The second stage begins at 10 + 1 and computes 3 · 60; the last gradient comes up in 2, and the first stage's
    # last backward pass takes 30: 223. Then its all-reduce and update.
    assert found.bound_us() == pytest.approx([223 + 5 + 7], rel=1e-9)
    assert found.times("simulate").step_us == pytest.approx([223 + 5 + 7])


@pytest.mark.parametrize(
    ("change", "bound_us"),
    [
        # Each transfer counts once, in its own direction.
        ({"send_forward_us": [101, 0]}, 335),
        ({"send_backward_us": [0, 102]}, 335),
        # The second stage ends at 191; a long update or all-reduce of its own decides.
        ({"update_us": [7, 100]}, 191 + 6 + 100),
        ({"all_reduce_us": [5, 106]}, 191 + 106 + 8),
        # The first stage is never idle.
        ({"forward_us": [500, 20]}, 3 * (500 + 30) + 5 + 7),
        ({"backward_us": [300, 40]}, 3 * (10 + 300) + 5 + 7),
    ],
)
def test_bounds_by_hand(change: dict[str, Any], bound_us: float) -> None:
    assert by_hand(**TWO_STAGES | change).bound_us() == pytest.approx([bound_us], rel=1e-9)


def test_bound_of_split_backward_passes_by_hand() -> None:
    split = TWO_STAGES | {"weight_us": [5, 3]}
    # The last input gradient reaches the first stage's end at 223; its weight gradients follow.
    assert by_hand("zero_bubble", **split).bound_us() == pytest.approx([223 + 5 + 5 + 7], rel=1e-9)
    # Weight gradients of all micro-batches on a stage that is never idle: 191 + 3 · 100.
    long = TWO_STAGES | {"weight_us": [5, 100]}
    assert by_hand("zero_bubble", **long).bound_us() == pytest.approx([491 + 6 + 8], rel=1e-9)


@pytest.mark.parametrize(
    ("update_us", "bound_us"),
    [
        # The second stage: from 1.1, 2 · (2 + 4 + 6 + 8). Half of the all-reduce waits for the last pass.
        ([1, 2], 41.1 + 20 / 2 + 2),
        # Its last gradient comes up in 0.4 and takes 5.
        ([9, 2], 41.1 + 5.4 + 10 / 2 + 9),
    ],
)
def test_bound_of_virtual_stages_by_hand(update_us: list[float], bound_us: float) -> None:
    found = by_hand(
        "interleaved",
        virtual_stages=2,
        m=2,
        forward_us=[1, 2, 3, 4],
        backward_us=[5, 6, 7, 8],
        send_forward_us=[0.1, 0.2, 0.3, 0],
        send_backward_us=[0, 0.4, 0.5, 0.6],
        all_reduce_us=[10, 20],
        update_us=update_us,
    )
    assert found.forward_us == pytest.approx(np.array([[1.1 + 3.3, 2.2 + 4]]))
    assert found.backward_us == pytest.approx(np.array([[5 + 7.5, 6.4 + 8.6]]))
    assert found.bound_us() == pytest.approx([bound_us], rel=1e-9)


def test_structures_share_schedule_degrees_and_sharding() -> None:
    same = {"tp": 1, "dp": 2, "micro_batch": 1, "micro_batches": 8}
    several = [
        Parallelism(schedule=schedule, pp=pp, virtual_stages=chunks, zero=zero, **same)
        for schedule, pp, chunks, zero in (
            ("1f1b", 4, 1, 0),
            ("interleaved", 2, 2, 1),
            ("1f1b", 4, 1, 3),
            ("1f1b", 4, 1, 1),
            ("zero_bubble", 4, 1, 0),
        )
    ]
    layouts = Layouts(np.concatenate([Layouts.of(one).table for one in several]), several[0])
    found = {structure: rows.tolist() for structure, rows in structures(layouts)}
    assert found == {
        Structure("1f1b", 4, 1, False): [0, 3],
        Structure("interleaved", 2, 2, False): [1],
        Structure("1f1b", 4, 1, True): [2],
        Structure("zero_bubble", 4, 1, False): [4],
    }
    assert [structure.is_split for structure in found].count(True) == 1
    assert next(one for one in found if one.is_split).schedule == "zero_bubble"
