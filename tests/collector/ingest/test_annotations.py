"""NCCL's annotations of calls, by a law: the first of a thread that begins in the call's time."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.ingest.collectives import Annotations

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 8),
        st.sampled_from("ab"),
        st.sampled_from(["nccl:all_reduce", "step"]),
    )
)


def event(start_us: int, time_us: int, thread: str, name: str) -> Any:
    return SimpleNamespace(start_us=start_us, end_us=start_us + time_us, thread=thread, name=name)


@given(EVENTS, st.tuples(st.integers(0, 20), st.integers(0, 8), st.sampled_from("abc"), st.just("call")))
def test_the_first_that_begins_in_a_call_is_its_own(events: list[Any], asked: Any) -> None:
    annotations, call = sorted([event(*one) for one in events], key=lambda one: one.start_us), event(*asked)
    found = Annotations(SimpleNamespace(of_category=lambda category: annotations)).begun_in(call)  # type: ignore[arg-type]
    own = [one for one in annotations if one.thread == call.thread and one.name.startswith("nccl")]
    assert found is next((one for one in own if call.start_us <= one.start_us <= call.end_us), None)
