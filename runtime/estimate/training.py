"""Days, device-hours, price and energy of training on a number of tokens, at an estimate's rate."""

from math import ceil

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.record import Record

_S_PER_DAY, _S_PER_HOUR = 86_400.0, 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Record):
    """`tokens` trained on at a constant rate, without start-up, checkpoints and failures. `steps` are whole updates;
    `useful_tokens_per_s` leaves out padding; None: no interval, `cost` without a price, energy not known.
    """

    tokens: int
    days: float
    days_interval: tuple[float, float] | None
    gpu_hours: float
    cost: float | None
    energy_kwh: float | None
    steps: int
    useful_tokens_per_s: float
    samples_per_s: float


def training(
    estimate: Estimate,
    tokens: int,
    *,
    useful: float = 1.0,
    sample_tokens: float | None = None,
    price_per_gpu_hour: float | None = None,
) -> Training:
    """Train on `tokens` as estimated, a fraction `useful` of a sequence's, which a sample has unless said."""
    rate = useful * estimate.tokens_per_s
    steps = tokens / (rate * estimate.step_time_s)
    seconds = steps * estimate.step_time_s
    gpu_hours = seconds * estimate.parallelism.world_size / _S_PER_HOUR
    energy = estimate.energy
    return Training(
        tokens=tokens,
        days=seconds / _S_PER_DAY,
        days_interval=None
        if estimate.interval_s is None
        else (steps * estimate.interval_s[0] / _S_PER_DAY, steps * estimate.interval_s[1] / _S_PER_DAY),
        gpu_hours=gpu_hours,
        cost=None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour,
        energy_kwh=None if energy is None else steps * energy.step_kwh,
        # The quotient of two products: an update is not begun for their rounding.
        steps=ceil(steps * (1 - 1e-12)),
        useful_tokens_per_s=rate,
        samples_per_s=rate / (sample_tokens or useful * estimate.parallelism.sample_length(estimate.model)),
    )


def step_time_for(*, tokens: int, days: float, tokens_per_step: int) -> float:
    """Seconds that a step may take for `tokens` in `days`."""
    return days * _S_PER_DAY * tokens_per_step / tokens
