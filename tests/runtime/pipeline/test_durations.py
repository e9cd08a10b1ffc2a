"""The grid that times are rounded to, by hand."""

import numpy as np
import pytest

from kernelcast.runtime.pipeline.durations import Durations, Overlap


def durations(small_us: float, update_us: float) -> Durations:
    """Two chunks; the last one sends nothing forward and the first one nothing backward."""

    def row(*times: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.array([times])

    return Durations(
        forward_us=row(small_us, 8),
        backward_us=row(10, small_us),
        weight_us=row(small_us, 7),
        send_forward_us=row(8, 1000),
        send_backward_us=row(1000, 7),
        all_reduce_us=row(small_us, 6),
        update_us=row(small_us, update_us),
        overlap=Overlap(first_us=row(2, 7), last_us=row(12, 16), buckets=row(1, 1), link_us=row(3, 0)),
    )


@pytest.mark.parametrize(("update_us", "grid"), [(10, 2.0**-43), (9, 2.0**-44)])
def test_the_grid_leaves_room_for_five_passes_of_each_kind(update_us: float, grid: float) -> None:
    # 5 · (8 + 10 + 7 + 8 + 7) + 6 + 10 + 2 + 7 + 12 + 16 + 3 = 256, the first that takes a bit more than 255 does; a
    # grid step is 2⁻⁵² of the next power of two.
    for places, rounded in ((0, 0), (0.4, 0), (0.5, 0), (0.6, 1), (1, 1), (1.5, 2), (2, 2)):
        found = durations(1 + places * grid, update_us).on_grid(5)
        expected = 1 + rounded * grid
        assert found.forward_us.tolist() == [[expected, 8]]
        assert found.backward_us.tolist() == [[10, expected]]
        assert found.all_reduce_us.tolist() == [[expected, 6]]


def test_configurations_have_grids_of_their_own_and_zeros_one() -> None:
    nothing = np.zeros((2, 1))
    times = np.array([[1 + 2.0**-40], [2.0**20 + 2.0**-40]])
    found = Durations(
        forward_us=times,
        backward_us=nothing,
        weight_us=nothing,
        send_forward_us=nothing,
        send_backward_us=nothing,
        all_reduce_us=nothing,
        update_us=nothing,
    ).on_grid(1)
    # Of 2²⁰ and a bit the grid is 2⁻³¹.
    assert found.forward_us.tolist() == [[1 + 2.0**-40], [2.0**20]]
    assert not found.backward_us.any()
