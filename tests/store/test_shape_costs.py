"""Costs of calls by the shapes of their inputs: the smallest and the largest sizes."""

import pytest

from kernelcast.store.shape_costs import call_costs


@pytest.mark.parametrize(("size", "is_known"), [(1, True), (2**31 - 1, True), (2**31, False), (0, False)])
def test_sizes_of_a_shape(size: int, is_known: bool) -> None:
    found = list(call_costs({7: ("aten::add", f"[[{size}]]", "float32", "kernel")}))
    assert found == ([(7, f"{size}", float(size), 8.0 * size)] if is_known else [])


def test_halves_of_a_backward_pass_are_of_calls_without_the_other_half() -> None:
    """Two inputs of one weight may have outputs of one shape: which one a forward call had is not guessed."""
    small, large, weight, output = [8, 64, 28, 28], [8, 64, 29, 29], [128, 64, 3, 3], [8, 128, 14, 14]
    forward = "aten::cudnn_convolution", [small, weight]
    of_weight = "aten::cudnn_convolution_backward_weight", [weight, output, small]
    of_input = "aten::cudnn_convolution_backward_input", [[], output, weight]
    both = "aten::convolution_backward", [output, large, weight]
    for calls, known in (([forward, of_weight, of_input], [0, 1, 2]), ([forward, of_weight, both], [2])):
        asked = {
            place: (name, str(shapes), "bfloat16", "kernel") for place, (name, shapes) in enumerate(calls)
        }
        found = list(call_costs(asked))
        assert [number for number, *_ in found] == known
        assert {flops for _, _, flops, _ in found} == ({2.0 * 8 * 128 * 14**2 * 64 * 9} if len(known) > 1 else {
            4.0 * 8 * 128 * 14**2 * 64 * 9})  # fmt: skip
