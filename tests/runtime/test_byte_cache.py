"""What is remembered is bounded by its bytes, and answers stay the same."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.byte_cache import Remembered, bytes_of, remembered


def test_what_was_not_used_for_longest_goes() -> None:
    known = Remembered[str, int](4096)
    for number, name in enumerate("abc"):
        known.put(name, number, 1000)
    assert known.get("a") == 0
    known.put("d", 3, 1000)  # four with what an entry takes are more than 4,096
    assert [known.get(name) for name in "abcd"] == [0, None, 2, 3]
    assert known.size_bytes <= 4096
    known.put("e", 4, 4000)  # alone more than there is room for
    assert known.get("e") is None
    assert len(known) == 3


def test_a_function_is_asked_again_once_its_answers_are_too_large() -> None:
    asked: list[int] = []

    @remembered(1 << 20)
    def zeros(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """As many zeros."""
        asked.append(count)
        return np.zeros(count)

    first = zeros(40_000)  # 320 kB
    assert zeros(40_000) is first
    assert zeros.__name__ == "zeros"
    for count in (40_001, 40_002, 40_003):
        zeros(count)
    assert zeros(40_003) is zeros(40_003)
    assert zeros(40_000) is not first
    assert zeros(200_000) is not zeros(200_000)  # never kept
    assert asked == [40_000, 40_001, 40_002, 40_003, 40_000, 200_000, 200_000]


def test_names_of_arguments_count() -> None:
    @remembered(1 << 20)
    def both(first: int, *, second: int = 0) -> tuple[int, int]:
        """Both of them."""
        return first, second

    assert both(1, second=2) == (1, 2)
    assert both(1, second=3) == (1, 3)
    assert both(1) == (1, 0)


@dataclass(frozen=True, slots=True)
class Slotted:
    """Two parts."""

    one: object
    other: object


@dataclass
class Plain:
    """One part."""

    one: object


def test_what_is_held_is_counted_once() -> None:
    array = np.zeros(1000)
    assert 8000 < bytes_of(array) < 8300
    # A view may be all that keeps what it looks at.
    assert 4000 < bytes_of(array[:500]) < 4300
    for held in (Slotted(array, [array]), Plain((array, array)), {"key": array, array.nbytes: {1, 2}}):
        assert 8000 < bytes_of(held) < 9000
    assert bytes_of([array, array.copy()]) > 16_000
    assert bytes_of(Slotted) < 3000  # what a class holds is not counted


def test_threads_agree() -> None:
    @remembered(10_000)
    def text(number: int) -> str:
        """A number, a thousand times."""
        return f"{number}" * 1000

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: text(index % 10), range(1000)))
    assert found == [f"{index % 10}" * 1000 for index in range(1000)]
