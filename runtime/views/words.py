"""Numbers as people read them."""

import math

from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.estimate.estimate import Estimate

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def seconds(value_s: float) -> str:
    """A time in the unit that reads best, with four digits: `1.234 s`, `12.34 ms`, `5.600 µs`."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value_s * scale >= 1 or unit == "µs":
            return f"{_four_digits(value_s * scale)} {unit}"
    raise AssertionError("unreachable")


def gibibytes(size_bytes: float) -> str:
    """A size in GiB, small ones in MiB or KiB."""
    for scale, unit in ((_KIB, "KiB"), (_MIB, "MiB")):
        if 0 < size_bytes < scale * 1024 / 10:
            return f"{size_bytes / scale:,.1f} {unit}"
    return f"{size_bytes / _GIB:,.1f} GiB"


def measured(created_at: str) -> str:
    """When the newest measurement of a bundle was made."""
    return (
        "measured at a time not recorded" if created_at == UNKNOWN_MOMENT else f"measured until {created_at}"
    )


def rate(per_s: float) -> str:
    """So many per second: `1,234`, slow ones with three digits, `0.0426`."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def percent(share: float) -> str:
    """A share of 1."""
    return f"{100 * share:.1f} %"


def counted(count: int, what: str) -> str:
    """`1 stage`, `2 stages`."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def layout_words(estimate: Estimate) -> str:
    """The layout of the estimate in a line."""
    layout = estimate.parallelism
    schedule = {
        "gpipe": "GPipe",
        "1f1b": "1F1B",
        "interleaved": "interleaved 1F1B",
        "zero_bubble": "zero-bubble",
    }
    words = [f"pp {layout.pp} × tp {layout.tp} × dp {layout.dp}", schedule[layout.schedule]]
    if layout.virtual_stages > 1:
        words.append(f"{layout.virtual_stages} chunks per stage")
    words.append(f"{counted(layout.micro_batches, 'micro-batch')} of {layout.micro_batch}")
    words.append(f"recomputation {layout.recompute}")
    words.append(f"ZeRO-{layout.zero}")
    if layout.sequence_parallel:
        words.append("sequence parallel")
    return ", ".join(words)


def _four_digits(value: float) -> str:
    if value <= 0:
        return "0"
    decimals = max(0, 3 - math.floor(math.log10(value)))
    return f"{value:,.{min(decimals, 3)}f}"
