"""What lies outside a trained range: features with a tolerance, elements of elementwise operators, layouts."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime.answers.sources import TOLERANCE, doublings_beyond, exceeded
from kernelcast.runtime.answers.warnings import range_warnings
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction

Regressor = Callable[..., RegressorEntry]
GEMM, BATCHED, NORM, REDUCE = (
    ("gemm", Direction.FORWARD),
    ("batched_gemm", Direction.FORWARD),
    ("layer_norm", Direction.FORWARD),
    ("all_reduce", Direction.ONCE),
)
SIZES = st.integers(1, 10_000)


def elementwise(regressor: Regressor, low: float, high: float) -> RegressorEntry:
    return replace(regressor(NORM, b"model", largest=64), elements_range=(low, high))


def test_a_value_a_percent_away_is_no_warning(regressor: Regressor) -> None:
    one = regressor(GEMM, b"model", largest=100)
    assert TOLERANCE == 0.02
    assert range_warnings(one, [(102, 1, 1)]) == {}
    [warning] = range_warnings(one, [(103, 1, 1)])
    assert warning.brief == "gemm up to 1.03× beyond measured m"
    assert doublings_beyond(one, (102, 1, 1)) == 0


def test_a_larger_product_is_several_measured_ones_and_a_smaller_one_is_none(regressor: Regressor) -> None:
    one = regressor(GEMM, b"model", largest=100)
    below = replace(one, training_range=((8, 100), (8, 100), (8, 100)))
    assert doublings_beyond(one, (200, 400, 800)) == 0
    assert doublings_beyond(below, (200, 2, 100)) == 2
    assert doublings_beyond(regressor(BATCHED, b"model", largest=100), (800, 1, 1, 1)) == 3


def test_an_elementwise_operator_has_a_range_of_elements(regressor: Regressor) -> None:
    one = elementwise(regressor, 16, 1024)
    # Each feature is far outside of 1 to 64, their product inside.
    assert range_warnings(one, [(1, 1, 1000), (512, 2, 1)]) == {}
    [warning] = range_warnings(one, [(8, 16, 32)])
    assert (warning.values["feature"], warning.values["asked"], warning.values["range"]) == (
        "elements",
        4096,
        [16, 1024],
    )
    assert warning.brief == "layer_norm up to 4× beyond measured elements"
    assert doublings_beyond(one, (8, 16, 32)) == 2
    [warning] = range_warnings(one, [(1, 1, 4)])
    assert warning.brief == "layer_norm up to 4× below measured elements"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vector=st.tuples(SIZES, SIZES, SIZES), low=SIZES, more=SIZES)
def test_only_the_number_of_elements_counts(
    regressor: Regressor, vector: tuple[int, int, int], low: int, more: int
) -> None:
    one = elementwise(regressor, low, low + more)
    flat = (1, 1, prod(vector))
    beyond = [found.asked for found in exceeded(one, vector)]
    assert beyond == [found.asked for found in exceeded(one, flat)]
    assert doublings_beyond(one, vector) == doublings_beyond(one, flat)
    # What is no warning is not widened, and the other way round.
    assert bool(beyond) == bool(doublings_beyond(one, vector))


def test_a_layout_never_measured_is_one_warning(regressor: Regressor) -> None:
    one = replace(regressor(REDUCE, b"model", largest=2), layouts=((1, 2), (2, 2)))
    [warning] = range_warnings(one, [(2, 8, 4)])
    assert warning.brief == "all_reduce on 8 × 4, never measured"


@pytest.mark.parametrize(("operator", "vector"), [("rope", (2, 3, 5, 1, 7)), ("rope", (1, 3, 2, 2, 7))])
def test_elements_of_queries_and_keys(operator: str, vector: tuple[int, ...]) -> None:
    b, l, heads, kv_heads, size = vector  # noqa: E741
    assert OPERATORS[operator].elements(vector) == b * l * (heads + kv_heads) * size


def test_costs_of_elementwise_operators_are_multiples_of_their_elements() -> None:
    found = [row for row in OPERATORS.values() if row.is_elementwise]
    assert {"gelu", "layer_norm", "softmax", "rope", "bias_add"} <= {row.name for row in found}
    for row in found:
        small, large = tuple(range(2, 2 + len(row.features))), tuple(range(5, 5 + len(row.features)))
        growth = row.elements(large) / row.elements(small)
        for direction in row.costs:
            moved = [row.moved_bytes(direction, vector, 1) for vector in (small, large)]
            assert moved[1] == pytest.approx(growth * moved[0])


def test_only_elementwise_operators_have_a_range_of_elements(regressor: Regressor) -> None:
    with pytest.raises(
        DataError, match=r"^regressor gemm \(forward\): elements_range is \(1.0, 2.0\), expected"
    ):
        replace(regressor(GEMM, b"model"), elements_range=(1.0, 2.0))
    one = elementwise(regressor, 1, 2)
    assert RegressorEntry.from_dict(one.to_dict()) == one
    assert "elements_range" not in regressor(NORM, b"model").to_dict()
