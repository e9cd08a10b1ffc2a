"""Encoders per stage, by hand: n + 5 blocks spread evenly, 2 and 3 of them not encoders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.partition import partition


@pytest.mark.parametrize(
    ("encoders", "pp", "expected"),
    [
        (44, 4, (11, 12, 12, 9)),  # 49 blocks: 13, 12, 12, 12
        (44, 8, (5, 6, 6, 6, 6, 6, 6, 3)),  # 49 blocks: 7, then 6 each
        (40, 4, (10, 11, 11, 8)),  # 45 blocks: 12, 11, 11, 11
        (32, 4, (8, 9, 9, 6)),  # 37 blocks: 10, 9, 9, 9
        (4, 2, (3, 1)),  # 9 blocks: 5, 4
        (7, 1, (7,)),
        (1, 1, (1,)),
        (1, 2, (1, 0)),  # 6 blocks: 3, 3; the last stage has norm, logits and loss only
        (4, 3, (1, 3, 0)),
    ],
)
def test_stage_sizes(encoders: int, pp: int, expected: tuple[int, ...]) -> None:
    assert partition(encoders, pp) == expected


@pytest.mark.parametrize(("encoders", "pp", "most"), [(44, 17, 16), (44, 50, 16), (1, 3, 2), (40, 0, 15)])
def test_stages_that_do_not_fit_are_refused(encoders: int, pp: int, most: int) -> None:
    with pytest.raises(
        UsageError, match=rf"^pp is {pp}, expected from 1 to {most}: {encoders} encoders make"
    ):
        partition(encoders, pp)


@given(st.integers(1, 300), st.integers(1, 120))
def test_stages_sum_to_all_encoders(encoders: int, pp: int) -> None:
    if pp > (encoders + 5) // 3:
        with pytest.raises(UsageError):
            partition(encoders, pp)
        return
    stages = partition(encoders, pp)
    assert len(stages) == pp
    assert sum(stages) == encoders
    assert min(stages) >= 0
    blocks = list(stages)
    blocks[0] += 2
    blocks[-1] += 3
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] - blocks[-1] <= 1
