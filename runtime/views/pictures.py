"""The pictures of an estimate's page one by one, for pages with a layout of their own."""

from collections.abc import Iterable
from typing import Any

from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.views.memory_pictures import LEGEND, PARTS, memory_over_step_picture, memory_picture
from kernelcast.runtime.views.simulated_step import step_or_reason
from kernelcast.runtime.views.step_breakdown import operator_totals, step_shares
from kernelcast.runtime.views.timeline_picture import legend_entries, timeline_picture

PICTURES_FORMAT = "kernelcast.pictures/1"
_TOP_OPERATORS = 15


def pictures(estimate: Estimate) -> dict[str, Any]:
    """Plain values, form `kernelcast.pictures/1` (docs/json.md). SVG is coloured by the classes of colours.css."""
    timeline, too_long = step_or_reason(estimate)
    drawn: dict[str, Any] = {"svg": "", "notes": [f"not drawn: {too_long}"]}
    over_step = ""
    if timeline is not None:
        drawn = dict(zip(("svg", "notes"), timeline_picture(estimate, timeline), strict=True))
        over_step, _ = memory_over_step_picture(estimate, timeline)
    return {
        "format": PICTURES_FORMAT,
        "timeline": {**drawn, "legend": _legend(legend_entries(estimate))},
        "shares": [asdict(share) for share in step_shares(estimate, timeline)],
        "memory": {
            "svg": memory_picture(estimate.memory),
            "legend": _legend((style, name) for _, name, style in PARTS),
        },
        "memory_over_step": {"svg": over_step, "legend": _legend(LEGEND)},
        "operators": [asdict(total) for total in operator_totals(estimate)[:_TOP_OPERATORS]],
        "warnings": [
            {"line": doubt.line, "each": [str(one) for one in doubt.warnings]}
            for doubt in estimate.doubts
            if doubt.has_influence
        ],
    }


def _legend(entries: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"style": style, "text": text} for style, text in entries]
