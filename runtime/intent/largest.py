"""The largest global batch, or sequence length, with a layout that fits into the memory of the devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.intent.best import OpenRequest, require_answer
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import MAX_DEGREE, MAX_SIZE
from kernelcast.runtime.search.needed_memory import look_for_fitting
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.space import divisors

_EIGHTHS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value of a field that fits, in steps of `step`, with these micro-batches; `request` asks there."""

    field: str
    value: int
    step: int
    request: OpenRequest
    micro_batches: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            **values_of(self, "field", "value", "step"),
            "micro_batches": list(self.micro_batches) or None,
        }


def largest_global_batch(request: OpenRequest, *, micro_batches: int, micro_batch: int | None) -> Largest:
    """The largest global batch of `micro_batches` per update, over every dp; `micro_batch` fixes that. UsageError where
    the memory of the devices is not known; DataError where nothing fits.
    """
    _require_memory(request)
    fitting = _Fitting()

    def fits(dp: int, samples: int) -> bool:
        batch = dp * micro_batches * samples
        if samples > MAX_DEGREE or batch > MAX_SIZE:
            return False
        return fitting.fits(request.with_space(global_batch=batch, dp=(dp,), micro_batches=(micro_batches,)))

    space = request.question.space
    [devices] = space.gpus
    best, best_step = 0, 1
    for dp in reversed(divisors(devices)):
        if space.dp is not None and dp not in space.dp:
            continue
        step = dp * micro_batches
        least = best // step + 1
        if micro_batch is None:
            samples = _last(partial(fits, dp), least)
        else:
            samples = micro_batch if micro_batch >= least and fits(dp, micro_batch) else 0
        if samples >= least:
            best, best_step = samples * step, step
    if not best:
        require_answer(request.estimator, request.question, fitting.failed)
    return Largest(
        field="global_batch",
        value=best,
        step=best_step,
        request=request.with_space(global_batch=best, micro_batches=(micro_batches,)),
        micro_batches=(micro_batches,),
    )


def largest_sequence_length(request: OpenRequest) -> Largest:
    """The largest sequence length that fits: a power of two plus a multiple of its eighth. UsageError where the memory
    of the devices is not known; DataError where nothing fits.
    """
    _require_memory(request)
    fitting = _Fitting()

    def of(length: int) -> OpenRequest | None:
        try:
            return request.with_space(model=request.question.space.model.with_sequence_length(length))
        except UsageError:  # longer than the model's positions
            return None

    def fits(length: int) -> bool:
        asked = of(length)
        return asked is not None and fitting.fits(asked)

    power = _last(lambda exponent: fits(1 << exponent - 1), 1) - 1
    if power < 0:
        require_answer(request.estimator, (of(1) or request).question, fitting.failed)
    step = max(1, (1 << power) // _EIGHTHS)
    length = step * _last(lambda number: fits(step * number), (1 << power) // step)
    fitted = of(length)
    assert fitted is not None
    return Largest(field="sequence_length", value=length, step=step, request=fitted)


class _Fitting:
    """Whether requests have a layout that fits; `failed` is what was found of those that have none."""

    def __init__(self) -> None:
        self.failed = Found()

    def fits(self, request: OpenRequest) -> bool:
        """Go through the layouts until one fits."""
        found = look_for_fitting(request.estimator.bundle, request.question)
        if found.counts.out_of_memory < found.counts.layouts:
            return True
        self.failed = Found.merged((self.failed, found), 1)
        return False


def _last(holds: Callable[[int], bool], least: int) -> int:
    """The largest number from `least` on for which `holds`, which no larger one does; `least` - 1 without one."""
    if not holds(least):
        return least - 1
    low, high = least, 2 * least
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _require_memory(request: OpenRequest) -> None:
    if request.question.gpu_memory_bytes is None:
        fields = ("gpu_memory", "largest")
        raise UsageError("{} is neither given nor in the bundle, which {} needs", fields=fields)
