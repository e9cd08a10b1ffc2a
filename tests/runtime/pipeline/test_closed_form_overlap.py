"""Eq. 7 with collectives overlapped with passes, by hand."""

import numpy as np
import pytest

from kernelcast.runtime.pipeline.durations import Overlap
from kernelcast.runtime.pipeline.simulate import closed_forms


@pytest.mark.parametrize(
    ("first_backward_us", "link_us", "pipeline_us", "left_us"),
    [
        # Four buckets of 3: three overlap with the last pass of 20, which has room for 15.
        (20, 0, (3 - 1 + 2) * (7 + 20), 3),
        # A pass of 8 has room for 6 of these 9.
        (8, 0, (3 - 1 + 2) * (7 + 9), 12 - 6),
        # 20 µs are as 8 where the pass uses the links itself for 12 of them.
        (20, 12, (3 - 1 + 2) * (7 + 20), 12 - 6),
    ],
)
def test_what_is_left_of_the_first_stages_all_reduce(
    first_backward_us: float, link_us: float, pipeline_us: float, left_us: float
) -> None:
    found = closed_forms(
        forward_us=np.array([[7.0, 3]]),
        backward_us=np.array([[first_backward_us, 9]]),
        all_reduce_us=np.array([[12.0, 50]]),
        update_us=np.array([[1.0, 2]]),
        micro_batches=3,
        overlap=Overlap(
            first_us=np.array([[0.5, 1]]),
            last_us=np.array([[2.0, 3]]),
            buckets=np.array([[4.0, 2]]),
            link_us=np.array([[link_us, 0]]),
        ),
    )
    # Longer first passes of all stages, then longer last ones.
    assert found.pipeline_us.tolist() == [pipeline_us + 1.5 + 5]
    assert found.step_us.tolist() == [pipeline_us + 6.5 + left_us + 2]
