"""Sizes as people write them."""

import pytest

from kernelcast.cli.option import parse_size, whole_numbers
from kernelcast.runtime import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("40GiB", 40 * 2**30), ("1.5 tb", 15 * 10**11), ("7B", 7), ("2mib", 2**21)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, name="gpu_memory") == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0GB", "0.1B", "80 apples", "1e3GB", "٣GB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"^gpu_memory is '.*', expected a size such as 80GB or 40GiB$"):
        parse_size(text, name="gpu_memory")


@pytest.mark.parametrize("text", ["80", "0", "1.5", " 7 "])
def test_sizes_without_a_unit_are_refused_with_the_units_that_exist(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, name="gpu_memory")
    assert str(caught.value) == (
        f"gpu_memory is {text!r} without a unit, expected one of "
        f"B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in {text.strip()}GB"
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", (4,)),
        (" 1, 4 ", (1, 4)),
        ("4,1", (4, 1)),
        *dict.fromkeys(("0,1", "1,5", "1,1", "1,x", "", "٣", "000001")).items(),
    ],
)
def test_lists_of_different_numbers(text: str, numbers: tuple[int, ...] | None) -> None:
    is_rising = numbers is not None and list(numbers) == sorted(numbers)
    for asked in (False, True):
        if numbers is not None and (is_rising or not asked):
            assert whole_numbers(text, "--points", 4, "some", is_rising=asked) == numbers
        else:
            with pytest.raises(UsageError, match=r"^--points is '.*', expected some$"):
                whole_numbers(text, "--points", 4, "some", is_rising=asked)
