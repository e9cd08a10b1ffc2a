"""Intervals as a bundle's manifest holds them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.regressor_entry import METHODS, Interval

widths = st.floats(0, 20)
numbers = st.integers(1, 512)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    by = draw(st.sampled_from(["all", "size", "layout"]))
    bounds = draw(st.sets(st.floats(1e-3, 1e30), min_size=1, max_size=4)) if by == "size" else set()
    layouts = draw(st.sets(st.tuples(numbers, numbers), min_size=1, max_size=4)) if by == "layout" else set()
    count = 1 + len(bounds) + len(layouts)
    return Interval(
        method=draw(st.sampled_from(METHODS)),
        level=draw(st.floats(0.01, 0.99)),
        by=by,
        size_bounds=tuple(sorted(bounds)),
        layouts=tuple(sorted(layouts)),
        log_half_widths=tuple(draw(st.lists(widths, min_size=count, max_size=count))),
    )


@given(interval=intervals())
def test_there_and_back(interval: Interval) -> None:
    assert Interval.from_dict(json.loads(json.dumps(interval.to_dict()))) == interval


@given(interval=intervals(), extra=widths)
def test_a_half_width_too_many_or_too_few_is_refused(interval: Interval, extra: float) -> None:
    given_widths = interval.log_half_widths
    for wrong in ((*given_widths, extra), given_widths[1:], (*given_widths[1:], float("nan"))):
        with pytest.raises(
            DataError, match=r"^log_half_widths is .*, expected one number, 0 or more, per group"
        ):
            replace(interval, log_half_widths=wrong)


def test_what_does_not_go_together_is_refused() -> None:
    plain = Interval.of_all(0.5)
    for changes, message in (
        ({"by": "size"}, "size_bounds"),
        ({"by": "layout"}, "layouts"),
        ({"size_bounds": (1.0,)}, "size_bounds"),
        ({"by": "size", "size_bounds": (2.0, 2.0), "log_half_widths": (1.0,) * 3}, "size_bounds"),
        ({"by": "size", "size_bounds": (0.0,), "log_half_widths": (1.0,) * 2}, "size_bounds"),
        ({"by": "size", "size_bounds": (float("inf"),), "log_half_widths": (1.0,) * 2}, "size_bounds"),
        ({"by": "layout", "layouts": ((1, 2), (1, 2)), "log_half_widths": (1.0,) * 3}, "layouts"),
        ({"level": 0.0}, "level"),
        ({"method": ""}, "method"),
        ({"by": "luck"}, "by"),
    ):
        with pytest.raises(DataError, match=f"^{message} is "):
            replace(plain, **changes)  # type: ignore[arg-type]
