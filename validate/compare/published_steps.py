"""Published steps of the same model, device and number format: what others reached, in tokens per second and GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kernelcast.runtime import Estimate, ModelConfig
from kernelcast.runtime.views.formatting import counted, rate, value_range
from kernelcast.validate.runs import MeasuredRun, RunsFile, kind_of
from kernelcast.validate.steps import SHIPPED, TODAY, shipped_runs

_SHAPE = ("hidden_size", "layers", "mlp_size", "experts", "sequence_length")
"""Models that agree in these are the same, whatever their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSteps:
    """Steps that one software ran: tokens per second and GPU of the slowest and the fastest, and their GPUs.

    `power_limit_w` is what all of them ran under, 0 for the usual limit or several.
    """

    software: str
    device: str
    steps: int
    tokens_per_s_per_gpu: tuple[float, float]
    gpus: tuple[int, int]
    power_limit_w: float = 0.0

    def line(self, own: float) -> str:
        """In words, with the speed of the compared step, such as `torchtitan: 5,600 to 8,500 tokens/s per GPU, …`."""
        low, high = self.tokens_per_s_per_gpu
        reached = rate(low) if self.steps == 1 else f"{rate(low)} to {rate(high)}"
        where = f"{counted(self.steps, 'step')} on {value_range(*self.gpus)} {self.device}"
        where += f" at {self.power_limit_w:g} W" if self.power_limit_w else ""
        side = "slower than these" if own < low else "faster than these" if own > high else "among these"
        return f"{self.software}: {reached} tokens/s per GPU, {where}; this step, {rate(own)}, is {side}"


def published_like(estimate: Estimate, device: str) -> tuple[PublishedSteps, ...]:
    """Shipped steps with the estimate's model, sequence length and dtype, on its device or a variant, by software."""
    if not device:
        return ()
    kind, shape = kind_of(estimate.model, estimate.parallelism), _shape(estimate.model)
    found: dict[tuple[str, str], list[MeasuredRun]] = {}
    for file in _files():
        if file.device.startswith(device):
            software = file.stack.split(",")[0] or file.publisher
            found.setdefault((software, file.device), []).extend(
                run for run in file.runs if run.kind == kind and not run.flag and _shape(run.model) == shape
            )
    return tuple(_of(*which, runs) for which, runs in found.items() if runs)


def _shape(model: ModelConfig) -> tuple[object, ...]:
    return tuple(getattr(model, name) for name in _SHAPE)


def _of(software: str, device: str, runs: Sequence[MeasuredRun]) -> PublishedSteps:
    gpus = [run.parallelism.world_size for run in runs]
    limits_w = {run.parallelism.power_limit_w for run in runs}
    rates = [
        run.parallelism.samples_per_update * run.model.sequence_length / run.measured_s / devices
        for run, devices in zip(runs, gpus, strict=True)
    ]
    return PublishedSteps(
        software=software,
        device=device,
        steps=len(rates),
        tokens_per_s_per_gpu=(min(rates), max(rates)),
        gpus=(min(gpus), max(gpus)),
        power_limit_w=limits_w.pop() if len(limits_w) == 1 else 0.0,
    )


@cache
def _files() -> tuple[RunsFile, ...]:
    return tuple(RunsFile.read(path) for path in shipped_runs(names=(*SHIPPED, *TODAY)))
