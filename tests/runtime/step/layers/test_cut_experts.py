"""Experts that pairs of devices share, by hand."""

from typing import Any

from kernelcast.runtime.step.layers.experts import experts
from kernelcast.runtime.step.op import computing
from kernelcast.runtime.step.parameters import held_parameters
from kernelcast.runtime.step.passes import Passes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import EXPERTS, MIXTURE, collectives, listed, sized


def sizes(**fields: Any) -> Sizes:
    """On one of eight devices: two of four tensor-parallel pairs hold different experts."""
    layout = {"tp": 2, "dp": 4, "ep": 2, "micro_batch": 3, "sequence_parallel": True}
    return sized(MIXTURE, kind=EXPERTS, **layout, **fields)


def test_a_pair_of_devices_has_half_of_every_expert_and_the_rows_of_both() -> None:
    # 24 tokens of its own to 2 experts each, and as many of the other; 4 of 8 experts, 10 of 20 columns.
    cut, whole = (experts(sizes(expert_tp=degree)) for degree in (2, 1))
    products = [one for one in listed(computing(cut)) if one[0].startswith(("grouped_gemm", "swiglu"))]
    assert products == [
        ("swiglu", (3, 16, 12), 1),  # of the shared experts, 24 columns on two devices
        ("grouped_gemm/experts_gate_up", (4, 24, 32, 2 * 10), 1),
        ("swiglu", (1, 96, 10), 1),
        ("grouped_gemm/experts_down", (4, 24, 10, 32), 1),
    ]
    entries = 24 * 2 * 32
    assert collectives(Passes(cut).forward.calls) == [
        # Rows of both are gathered, and their results summed.
        ("all_gather/expert_tensor", (entries, 1, 2), 1),
        ("all_to_all/expert", (24 * 2 * 2, 1, 2), 1),  # probabilities of rows in fp32, two entries each
        ("all_to_all/expert", (entries, 1, 2), 2),
        ("reduce_scatter/expert_tensor", (2 * entries, 1, 2), 1),
    ]
    assert ("swiglu", (1, 48, 20), 1) in listed(computing(whole))
    # Gate and up and down of half the columns, of as many experts.
    held, less = (held_parameters(sizes(), ops).experts for ops in (whole, cut))
    assert held - less == 4 * 3 * 32 * 10
