"""How steps scatter: the table, its use by size, and whether it holds for publishers that are left out."""

from statistics import mean, median

import pytest

from kernelcast.runtime import Estimator, predict
from kernelcast.runtime.estimate.step_spread import own_spread, spread_of, spread_rows


@pytest.mark.parametrize("gpus", [1, 8, 512, 16_384])
def test_quantiles_are_in_order(gpus: int) -> None:
    found = spread_of(gpus)
    assert 1 <= found.p90 <= found.p99
    assert found.p99_range[0] <= found.p99 <= found.p99_range[1]
    assert found.start_range_s[0] <= found.start_s <= found.start_range_s[1]


def test_many_steps_scatter_less_than_one() -> None:
    found = spread_of(512)
    one, many = ([found.of_steps(steps, level) for level in (0.5, 0.9, 0.99)] for steps in (1, 1_000_000))
    assert one == [1.0, found.p90, found.p99]
    assert many == sorted(many)
    assert many[2] - many[0] < found.p99 - 1


def test_publishers_left_out_are_predicted_within_a_percent() -> None:
    """The median error of p90 and p99, and the mean error of the mean step, without the publisher's own rows."""
    rows = [row for row in spread_rows() if row.p99 is not None]
    others = {row: spread_of(row.gpus, (row.publisher,)) for row in rows}
    assert len({row.publisher for row in rows}) >= 7
    for name in ("p90", "p99"):
        assert (
            median(abs(getattr(spread, name) / getattr(row, name) - 1) for row, spread in others.items())
            < 0.01
        )
    assert mean(abs(spread.mean / (row.mean or 0) - 1) for row, spread in others.items()) < 0.005
    within = sum(
        spread.p99_range[0] <= (row.p99 or 0) <= spread.p99_range[1] for row, spread in others.items()
    )
    assert within >= 0.8 * len(rows)


def test_own_steps_take_the_place_of_public_ones() -> None:
    found = own_spread([[1.0] * 98 + [2.0] * 2, [1.0] * 100], 8)
    assert found.mean == pytest.approx(1.01)
    assert found.start_s == spread_of(8).start_s


def test_predictions_have_the_spread_of_their_size() -> None:
    estimate = predict(Estimator.load("h100-sxm"), "llama-3-8b", dp=64, micro_batch=1, global_batch=512)
    assert estimate.spread == spread_of(64)
    assert estimate.to_dict()["step_spread"]["p99"] == spread_of(64).p99
