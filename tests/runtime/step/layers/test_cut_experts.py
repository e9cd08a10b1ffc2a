"""Experts that pairs of devices share, by hand."""

from kernelcast.runtime.step.layers.experts import Experts
from tests.runtime.step.layers.test_experts import PROBABILITIES, listed, sizes


def test_a_pair_of_devices_has_half_of_every_expert_and_the_rows_of_both() -> None:
    # 24 tokens of its own to 2 experts each, and as many of the other; 4 of 8 experts, 10 of 20 columns.
    experts = Experts(sizes(ep=2, expert_tp=2))
    assert (experts.width, experts.groups, experts.rows) == (10, 4, 96)
    products = [one for one in listed(experts.calls) if one[0].startswith(("grouped_gemm", "swiglu"))]
    assert products == [
        ("grouped_gemm/experts_gate_up", (4, 24, 32, 2 * 10), 1),
        ("swiglu", (1, 96, 10), 1),
        ("grouped_gemm/experts_down", (4, 24, 10, 32), 1),
        ("swiglu", (3, 16, 12), 1),  # of the shared experts, 24 columns on two devices
    ]
    entries = 24 * 2 * 32
    assert listed(experts.forward_collectives) == [
        ("all_to_all/expert", (entries, 1, 2), 2),
        ("all_to_all/expert", (PROBABILITIES, 1, 2), 1),
        # Rows of both are gathered, and their results summed.
        ("all_gather/expert_tensor", (entries, 1, 2), 1),
        ("reduce_scatter/expert_tensor", (2 * entries, 1, 2), 1),
    ]
    whole = Experts(sizes(ep=2))
    assert (whole.width, whole.rows) == (20, 48)
    # Gate and up and down of half the columns, of as many experts.
    assert whole.expert_parameters - experts.expert_parameters == 4 * 3 * 32 * 10
