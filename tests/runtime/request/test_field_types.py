"""Counts with units, read and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.request.field_types import counted, names, with_unit


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("15T", 15 * 10**12),
        ("1.5b", 1_500_000_000),
        ("300B", 3 * 10**11),
        ("2k", 2000),
        ("7", 7),
        ("15e12", 15 * 10**12),
    ],
)
def test_units_are_read(text: str, count: int) -> None:
    assert counted(1, 10**18).read(text) == count


@pytest.mark.parametrize(
    "text", ["", "T", "1.5", "0", "1e7T", "-1T", "1 T x", "1.0000000000001T", "15TB", "nanT"]
)
def test_others_are_not(text: str) -> None:
    assert counted(1, 10**18).read(text) is None


@given(st.integers(1, 9999), st.sampled_from(["", "k", "M", "B", "T"]))
def test_what_is_shown_is_read(number: int, unit: str) -> None:
    count = counted(1, 10**18).read(f"{number}{unit}")
    assert isinstance(count, int)
    assert counted(1, 10**18).read(with_unit(count)) == count


def test_names_are_every_choice_of_them_and_one_may_stand_alone() -> None:
    assert names(("a", "b", "c"), "x").values == (
        ("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")
    )  # fmt: skip
    assert names(("a", "b", "c"), "x", "b").values == (("a",), ("b",), ("c",), ("a", "c"))
