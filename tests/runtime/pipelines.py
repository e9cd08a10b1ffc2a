"""Numbers for which a schedule exists, for tests that draw layouts."""

from typing import Any, get_args

from hypothesis import strategies as st

from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@st.composite
def pipelines(
    draw: st.DrawFn,
    *,
    schedules: tuple[Schedule, ...] = SCHEDULES,
    most_pp: int = 6,
    most_micro_batches: int = 12,
    most_chunks: int = 4,
) -> dict[str, Any]:
    """`schedule`, `pp`, `micro_batches` and `virtual_stages` that go together.

    At least as many stages as the schedule needs are drawn, and micro-batches beyond the fewest it needs.
    """
    schedule = draw(st.sampled_from(schedules))
    kind = SCHEDULE_KINDS[schedule]
    pp = kind.pp_multiple * draw(
        st.integers(-(-kind.least_pp // kind.pp_multiple), max(kind.least_pp, most_pp) // kind.pp_multiple)
    )
    multiple = kind.micro_batch_multiple or pp
    more = draw(st.integers(0, most_micro_batches)) if kind.least_rounds else 0
    least = kind.least_rounds * pp or multiple * draw(st.integers(1, most_micro_batches))
    virtual_stages = kind.virtual_stages or draw(st.integers(1, max(1, most_chunks)))
    return {
        "schedule": schedule,
        "pp": pp,
        "micro_batches": least + multiple * more,
        "virtual_stages": virtual_stages,
    }
