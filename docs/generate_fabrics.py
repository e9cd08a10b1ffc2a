"""Write the tables of docs/fabrics.md: defaults by kind of link, and the figures of `validate fabrics --json`.

python docs/generate_fabrics.py [RESULT.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

from kernelcast.docs.markdown import filled
from kernelcast.runtime.hardware.fabric import link_defaults

PAGE = Path(__file__).resolve().parent / "fabrics.md"


def page(text: str, result: dict[str, Any] | None) -> str:
    """The page with its tables written again; results stay as they are without a new one."""
    text = filled(text, "defaults", _defaults())
    return text if result is None else filled(text, "results", _results(result))


def _defaults() -> str:
    lines = ["| kind | latency | start-up | efficiency | from |", "|---|---|---|---|---|"]
    lines += [
        f"| {kind} | {one.latency_us:g} µs | {one.startup_us:g} µs | {one.efficiency.usual:.2f} "
        f"({one.efficiency.low:.2f} to {one.efficiency.high:.2f}) | {one.source} |"
        for kind, one in link_defaults().items()
    ]
    return "\n".join(lines) + "\n"


def _results(result: dict[str, Any]) -> str:
    limits = result["limits"]
    lines = [
        "All-reduces of A100 nodes above 32 MiB, from a description whose latency and efficiency come from the "
        f"other two sources (limit {limits['described']:.0%}):",
        "",
        "| source | efficiency | median error | signed | rows |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['source']} | {one['efficiency']:.2f} | {_share(one['median_error'])} | "
        f"{_signed(one['median_signed_error'])} | {one['rows']:,} |"
        for one in result["described"]
    ]
    lines += [
        "",
        f"The same of 8 devices, from the source's rows of 2 and 4 (limit {limits['extended']:.0%}):",
        "",
        "| source | median error | signed | rows |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one['source']} | {_share(one['median_error'])} | {_signed(one['median_signed_error'])} | {one['rows']:,} |"
        for one in result["extended"]
    ]
    for one in result["across"]:
        lines += [
            "",
            f"`{one['operator']}` on 10 × 8 H100, from rows of 1 × 8 and 10 × 1: median from 256 MiB "
            f"{_share(one['median_error'])} (limit {limits['across']:.0%}).",
            "",
            "| message | measured | predicted | error | slower level alone |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {size['message_bytes'] / 2**20:,.0f} MiB | {size['measured_us'] / 1e3:.3f} ms | "
            f"{size['predicted_us'] / 1e3:.3f} ms | {_signed(size['error'])} | "
            f"{_signed(size['slower_level_us'] / size['measured_us'] - 1)} |"
            for size in one["sizes"]
        ]
    return "\n" + "\n".join(lines) + "\n"


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _signed(value: float) -> str:
    return f"{value:+.1%}".replace("%", " %").replace("-", "−")


if __name__ == "__main__":
    new = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")) if sys.argv[1:] else None
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), new), encoding="utf-8")
