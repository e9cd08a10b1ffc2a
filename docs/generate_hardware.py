"""Write the tables of docs/hardware.md and its picture from what ships: devices, how operators are known, transfers.

python docs/generate_hardware.py
"""

import tomllib
from math import exp
from pathlib import Path

from kernelcast.docs.markdown import filled
from kernelcast.runtime.answers.known_operators import known_operators
from kernelcast.runtime.catalogue import (
    TransferError,
    all_hardware,
    hardware_bundle,
    measured_hardware,
    transfer_errors,
)
from kernelcast.runtime.hardware.attention_kernels import time_ratio
from kernelcast.runtime.hardware.devices import device, device_named
from kernelcast.runtime.hardware.limits import sustained, sustained_origin
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.shipped import ATTENTION_KERNELS

FOLDER = Path(__file__).resolve().parent
PAGE, PICTURE = FOLDER / "hardware.md", FOLDER / "transfer.png"
TARGETS = ("h100-sxm",)
_SHOWN = ("a100-sxm", "gh200")
_OVER = "flash-2"


def page(text: str) -> str:
    """The page with its tables written again."""
    for name, content in (
        ("devices", _devices()),
        ("known", _known()),
        ("kernels", _kernels()),
        ("transfers", _transfers()),
        ("sustained", _sustained()),
        ("sources", _sources()),
    ):
        text = filled(text, name, content)
    return text


def _devices() -> str:
    lines = ["| name | device | usual fabric | own measurements | the rest from |", "|---|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {device(one.device).title} | {one.fabric} | {one.data or '–'} | "
        f"{', '.join(one.donors) or '–'} |"
        for one in all_hardware().values()
    ]
    return "\n".join(lines) + "\n"


def _sustained() -> str:
    """What long matrix products reach, a line per device with a known or assumed rate."""
    lines = [
        "| device | peak, TFLOP/s | sustained | short ones up to | from | products |",
        "|---|---|---|---|---|---|",
    ]
    for name in all_hardware():
        origin = sustained_origin(of) if (of := device_named(name)) else None
        if of is None or origin is None:
            continue
        found, peak = sustained()[origin.name], of.flops_per_s["bfloat16"] / 1e12
        is_own = origin is of
        lines.append(
            f"| {name} | {peak:.0f} | {found.share * peak:.0f} ({found.share:.0%}) | "
            f"{f'{found.burst * peak:.0f}' if is_own and found.burst else '–'} | "
            f"{found.source if is_own else f'the share of {origin.name}'} | {f'{found.rows:,}' if is_own else '–'} |"
        )
    return "\n".join(lines) + "\n"


def _known() -> str:
    """The source of each operator's times on the measured devices, as a letter."""
    letters = {
        "measured": "m",
        "measured as a sum": "m",
        "measured as the forward product": "m",
        "transferred": "t",
        "substituted": "s",
        "not known": "–",
    }
    found = {name: known_operators(hardware_bundle(name)) for name in measured_hardware()}
    lines = ["| operator | direction | " + " | ".join(found) + " |", "|---|---|" + "---|" * len(found)]
    for row in zip(*found.values(), strict=True):
        if row[0].operator != "gemm" or row[0].direction != "backward":
            cells = [
                f"{letters[one.how]}{f' {one.transfer_error:.2f}×' if one.transfer_error else ''}"
                for one in row
            ]
            lines.append(f"| {row[0].operator} | {row[0].direction} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _kernels() -> str:
    """Measured kernels, and the ratio of every kernel's time to FlashAttention 2, which every source has."""
    table = tomllib.loads(ATTENTION_KERNELS.read_text(encoding="utf-8"))
    lines = ["| measured | forward | backward | how it is known |", "|---|---|---|---|"]
    for name, row in table["measured"].items():
        passes = (row.get(one, "–") for one in ("forward", "backward"))
        lines.append(f"| {name} | {' | '.join(passes)} | {row['source']} |")
    lines += [
        "",
        f"| architecture | pass | heads of | time over {_OVER}'s | source |",
        "|---|---|---|---|---|",
    ]
    for row in table["rates"]:
        for text in row["directions"]:
            direction, size = Direction(text), row.get("head_size", 0)
            ratios = (
                (kernel, time_ratio(row["architecture"], direction, size or 1, of=kernel, over=_OVER))
                for kernel in table["kernel"]
                if kernel in row and kernel != _OVER
            )
            cells = ", ".join(
                f"{kernel} {one.factor:.2f} (± {exp(one.log_half_width) - 1:.0%})"
                for kernel, one in ratios
                if one
            )
            lines.append(
                f"| {row['architecture']} | {text} | {size or 'any size'} | {cells} | {row['source']} |"
            )
    return "\n".join(lines) + "\n"


def _line(one: TransferError) -> str:
    by = f" (by {one.by})" if one.by else ""
    return (
        f"| {one.key[0]} ({one.key[1]}){by} | {one.origin} | {one.target} | {one.rows:,} | {one.median_error:.0%} | "
        f"{exp(one.median_log):.2f} | {exp(one.log_half_width):.2f}× |"
    )


_HEADS = (
    "| operator | from | to | rows | median error | predicted / measured | 90 % within |\n"
    "|---|---|---|---|---|---|---|\n"
)


def _transfers() -> str:
    """Between devices, by the operator itself."""
    chosen = [one for one in transfer_errors() if not one.source and not one.by and one.origin != one.target]
    shown = [one for one in chosen if (one.origin, one.target) == _SHOWN or one.target in TARGETS]
    return _HEADS + "\n".join(map(_line, shown)) + "\n"


def _sources() -> str:
    """On one device: what others measured there, and substitutes."""
    shown = [one for one in transfer_errors() if one.source and one.origin == one.target]
    pairs = (("Liger-Kernel", "gh200", "h100-sxm"), ("SimuMax", "h100-sxm", "b200-sxm"))
    shown += [one for one in transfer_errors() if (one.source, one.origin, one.target) in pairs]
    heads = _HEADS.replace("| to |", "| measured on |")
    return (
        heads
        + "\n".join(
            _line(one).replace(f"| {one.target} |", f"| {one.target}, {one.source} |", 1)
            if one.origin != one.target
            else _line(one).replace(
                f"| {one.origin} | {one.target} |", f"| {one.origin} | {one.target}, {one.source} |"
            )
            for one in shown
        )
        + "\n"
    )


def picture() -> None:
    """Bars: median error and what 90 % are within, of A100's operators on GH200 and of both on H100."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [one for one in transfer_errors() if not one.source and not one.by]
    pairs = (("a100-sxm", "gh200"), ("a100-sxm", "h100-sxm"), ("gh200", "h100-sxm"), ("h100-sxm", "h200-sxm"))
    names = sorted({one.key for one in rows if (one.origin, one.target) in pairs}, reverse=True)
    figure, axes = plt.subplots(figsize=(9, 8), dpi=100)
    found = {pair: {one.key: one for one in rows if (one.origin, one.target) == pair} for pair in pairs}
    for place, ((origin, target), own) in enumerate(found.items()):
        for height, key in enumerate(names):
            if key in own:
                beside = [pair for pair in pairs if key in found[pair]]
                y = height + 0.2 * ((len(beside) - 1) / 2 - beside.index((origin, target)))
                one = own[key]
                axes.plot(
                    [exp(one.median_log - one.log_half_width), exp(one.median_log + one.log_half_width)],
                    [y, y],
                    color=f"C{place}",
                    linewidth=1,
                )
                axes.plot(
                    [exp(one.median_log)],
                    [y],
                    "o",
                    color=f"C{place}",
                    markersize=5,
                    label=f"{origin} → {target}" if key == next(iter(own)) else None,
                )
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.1, 0.25, 0.5, 1, 2, 4, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(range(len(names)), [f"{name} ({direction})" for name, direction in names])
    axes.set_xlabel("predicted / measured: median, and ± what 90 % of errors are within")
    axes.legend(loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(PICTURE)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    picture()
