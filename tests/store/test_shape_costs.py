"""Costs of calls by the shapes of their inputs: the smallest and the largest sizes."""

import pytest

from kernelcast.store.shape_costs import call_costs


@pytest.mark.parametrize(("size", "is_known"), [(1, True), (2**31 - 1, True), (2**31, False), (0, False)])
def test_sizes_of_a_shape(size: int, is_known: bool) -> None:
    found = list(call_costs({7: ("aten::add", f"[[{size}]]", "float32", "kernel")}))
    assert found == ([(7, f"{size}", float(size), 8.0 * size)] if is_known else [])
