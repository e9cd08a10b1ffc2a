"""How much a step depends on the rate between nodes, where that rate is described and not measured."""

from kernelcast.runtime.answers.collective_times import collective_source
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.record import Record

_HALF, _DOUBLE = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSensitivity(Record):
    """Change of a step's time (0.1: 10 % longer) at half and at double the described rate between nodes.

    `gbit_per_s_per_device`: the rate of a node's cards over its devices.
    """

    fabric: str
    gbit_per_s_per_device: float
    at_half: float
    at_double: float


def rate_sensitivity(
    estimator: Estimator, estimate: Estimate, *, fabric: FabricChoice | None = None
) -> RateSensitivity | None:
    """Evaluate the estimate's layout at both rates; `fabric` is the one that it was asked with.

    None where the layout stays in a node, or no description answered its collectives.
    """
    used = estimate.provenance.collectives
    source = collective_source(estimator.predictor, fabric)
    described = None if source is None else source.fabric
    if used is None or used.kind != "described" or described is None or described.between is None:
        return None
    if estimate.parallelism.world_size <= estimate.cluster.gpus_per_node:
        return None
    try:
        half, double = (_scaled(described, factor) for factor in (_HALF, _DOUBLE))
    except DataError:  # a rate that no description may have
        return None
    at_half, at_double = (
        estimator.step_time_s(
            model=estimate.model,
            parallelism=estimate.parallelism,
            cluster=estimate.cluster,
            bucket_entries=estimate.bucket_entries,
            timeline=estimate.timeline,
            fabric=one,
        )
        / estimate.step_time_s
        - 1
        for one in (half, double)
    )
    between = described.between
    return RateSensitivity(
        fabric=described.name,
        gbit_per_s_per_device=between.cards * between.bytes_per_s * 8 / 1e9 / described.devices_per_node,
        at_half=at_half,
        at_double=at_double,
    )


def _scaled(fabric: Fabric, factor: float) -> Fabric:
    assert fabric.between is not None
    return replace(fabric, between=replace(fabric.between, gbit_per_s=factor * fabric.between.gbit_per_s))
