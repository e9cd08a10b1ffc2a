"""Experts that pairs of devices share, by hand."""

from kernelcast.runtime import Cluster, Parallelism
from kernelcast.runtime.step.layers.experts import Experts
from kernelcast.runtime.step.kinds import LayerKind
from kernelcast.runtime.step.layers.sizes import Sizes
from tests.runtime.step.layers.conftest import MIXTURE, listed


def experts(expert_tp: int) -> Experts:
    """On one of eight devices: two of four tensor-parallel pairs hold different experts."""
    layout = Parallelism(
        pp=1, tp=2, dp=4, ep=2, expert_tp=expert_tp, micro_batch=3, micro_batches=2, sequence_parallel=True
    )
    sizes = Sizes.of(MIXTURE, layout, Cluster(gpus_per_node=8))
    return Experts(sizes.of_kind(LayerKind(has_experts=True)))


def test_a_pair_of_devices_has_half_of_every_expert_and_the_rows_of_both() -> None:
    # 24 tokens of its own to 2 experts each, and as many of the other; 4 of 8 experts, 10 of 20 columns.
    cut = experts(expert_tp=2)
    assert cut.rows == 96
    products = [one for one in listed(cut.calls) if one[0].startswith(("grouped_gemm", "swiglu"))]
    assert products == [
        ("grouped_gemm/experts_gate_up", (4, 24, 32, 2 * 10), 1),
        ("swiglu", (1, 96, 10), 1),
        ("grouped_gemm/experts_down", (4, 24, 10, 32), 1),
        ("swiglu", (3, 16, 12), 1),  # of the shared experts, 24 columns on two devices
    ]
    entries = 24 * 2 * 32
    assert listed(cut.forward_collectives) == [
        ("all_to_all/expert", (entries, 1, 2), 2),
        ("all_to_all/expert", (24 * 2 * 2, 1, 2), 1),  # probabilities of rows in fp32, two entries each
        # Rows of both are gathered, and their results summed.
        ("all_gather/expert_tensor", (entries, 1, 2), 1),
        ("reduce_scatter/expert_tensor", (2 * entries, 1, 2), 1),
    ]
    whole = experts(expert_tp=1)
    assert whole.rows == 48
    # Gate and up and down of half the columns, of as many experts.
    assert whole.expert_parameters - cut.expert_parameters == 4 * 3 * 32 * 10
