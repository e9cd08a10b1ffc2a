"""The lower bound that spares simulations: below the simulation for any durations, and not far below it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.estimate.layouts import SCHEDULES
from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE, Durations
from kernelcast.runtime.search.evaluate import Group, Structure

LAYOUTS = 6


@st.composite
def any_group(draw: st.DrawFn) -> Group:
    """Layouts of one structure whose every duration is anything, zero included."""
    schedule = draw(st.sampled_from(SCHEDULES))
    interleaved = schedule == "interleaved"
    pp = draw(st.integers(2 if interleaved else 1, 6))
    virtual_stages = draw(st.integers(1, 3)) if interleaved else 1
    rounds = draw(st.lists(st.integers(1, 12), min_size=LAYOUTS, max_size=LAYOUTS))
    micro_batches = np.array(rounds) * (pp if interleaved else 1)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.5, 3.0]))

    def times(name: str) -> Any:
        width = pp * (virtual_stages if name in PER_CHUNK else 1)
        values = np.exp(spread * random.standard_normal((LAYOUTS, width)))
        return values * (random.random((LAYOUTS, width)) > draw(st.sampled_from([0.0, 0.5])))

    arrays = {name: times(name) for name in (*PER_CHUNK, *PER_STAGE)}
    if schedule != "zero_bubble":
        arrays["weight_us"][:] = 0
    arrays["send_forward_us"][:, -1] = arrays["send_backward_us"][:, 0] = 0
    structure = Structure(SCHEDULES.index(schedule), pp, virtual_stages, False)
    return Group(structure, np.arange(LAYOUTS), micro_batches, Durations(**arrays))


@settings(deadline=None, max_examples=200)
@given(any_group())
def test_no_simulation_is_shorter_than_its_bound(group: Group) -> None:
    simulated = group.simulated_us(np.ones(LAYOUTS, dtype=bool))
    assert (group.bound_us() <= simulated).all()


@settings(deadline=None, max_examples=50)
@given(any_group(), st.lists(st.booleans(), min_size=LAYOUTS, max_size=LAYOUTS))
def test_what_is_chosen_does_not_change_its_time(group: Group, chosen: list[bool]) -> None:
    everything = group.simulated_us(np.ones(LAYOUTS, dtype=bool))
    mask = np.array(chosen)
    assert group.simulated_us(mask).tolist() == everything[mask].tolist()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_meet_their_bound(schedule: str) -> None:
    ones = np.ones((1, 4))
    durations = Durations(
        forward_us=ones,
        backward_us=2 * ones,
        weight_us=0 * ones,
        send_forward_us=0 * ones,
        send_backward_us=0 * ones,
        all_reduce_us=5 * ones,
        update_us=7 * ones,
    )
    group = Group(
        Structure([*SCHEDULES].index(schedule), 4, 1, False),
        np.arange(1),
        np.array([8]),
        durations,  # type: ignore[arg-type]
    )
    # (m − 1 + pp) · 3, the all-reduce and the update.
    assert group.bound_us() == pytest.approx([33 + 5 + 7])
    assert group.simulated_us(np.ones(1, dtype=bool)) == pytest.approx([33 + 5 + 7])
