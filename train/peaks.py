"""The peak of a CPU, which nobody publishes: the highest rate of its own measured matrix products."""

from collections.abc import Iterable

from kernelcast.runtime.hardware.peak import Peak
from kernelcast.train.dataset import Table
from kernelcast.train.scope import Scope


def measured_peaks(scope: Scope, tables: Iterable[Table]) -> tuple[Peak, ...]:
    """The peak of the scope's CPU in its element type; empty for a GPU, and without measured matrix products.

    The highest rate is a lower bound of what the CPU can do: utilisation that refers to it is an upper bound.
    """
    (device,) = scope.compute
    rates = [
        table.law.flops(table.direction, workload) / (1e-6 * time_us)
        for table in tables
        if device.kind == "cpu" and table.operator == "gemm"
        for workload, time_us in zip(table.workloads.tolist(), table.times_us.tolist(), strict=True)
    ]
    if not rates:
        return ()
    return (
        Peak(
            device=device.description,
            dtype=scope.dtype,
            flops_per_s=max(rates),
            source=f"highest rate among {len(rates)} measured matrix products",
        ),
    )
