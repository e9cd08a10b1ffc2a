"""Answers as a notebook shows them: tables without style or script, as cells bring their own."""

from collections.abc import Mapping, Sequence
from typing import Any

from kernelcast.runtime.estimate.doubts import LEAST_SHARE, warning_lines
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.search.result import Answer, SearchResult
from kernelcast.runtime.views.estimate_page import headline, layout_line, question, stage_rows
from kernelcast.runtime.views.formatting import counted, percent, rate, table_texts
from kernelcast.runtime.views.page import Markup, bullets, details, element

_ALWAYS = ("pp", "tp", "dp")


def estimate_html(estimate: Estimate) -> Markup:
    """The headline of an estimate, its question, its stages and its warnings."""
    facts = {name: f"{value} ({note})" for name, value, note in headline(estimate)}
    facts |= {"layout": layout_line(estimate), **question(estimate)}
    left = {"style": "text-align: left"}
    rows = (
        element("tr", element("th", name, **left), element("td", text, **left))
        for name, text in facts.items()
    )
    stages = [
        row | {"device total_memory_bytes": memory.total_bytes}
        for row, memory in zip(stage_rows(estimate), estimate.memory.stages, strict=True)
    ]
    parts = [
        element("table", element("tbody", *rows)),
        details(counted(len(stages), "stage"), _table(stages)),
    ]
    if lines := warning_lines(estimate.doubts, hint="estimate.warnings has each"):
        parts.append(details("warnings", bullets(*lines)))
    return element("div", *parts)


def search_html(result: SearchResult) -> Markup:
    """The best layouts, and how many were evaluated; or why no layout was found."""
    if result.best is None:
        return element("p", result.why_nothing())
    layouts = [one.parallelism for one in result.top]
    degrees = [
        name
        for name in (*DEGREES, *EXPERT_DEGREES)
        if name in _ALWAYS or any(getattr(one, name) > 1 for one in layouts)
    ]
    counts, space = result.counts, result.question.space
    caption = (
        f"best of {counts.layouts:,} layouts of {space.model.name}, {space.global_batch} samples per update: "
        f"{counts.evaluated:,} evaluated, {counts.out_of_memory:,} out of memory"
    )
    return _table([_row(one, degrees) for one in result.top], caption=caption)


def _row(one: Answer, degrees: Sequence[str]) -> dict[str, Any]:
    layout, doubtful = one.parallelism, one.estimate.doubtful_share
    schedule = (
        f"{layout.schedule} × {layout.virtual_stages}" if layout.virtual_stages > 1 else layout.schedule
    )
    return {
        "step_time_s": one.step_time_s,
        "MFU": percent(one.estimate.mfu),
        "tokens/s/device": rate(one.tokens_per_s_per_gpu),
        "peak_memory_bytes": one.memory_bytes,
        **{name: getattr(layout, name) for name in degrees},
        "micro-batch": f"{layout.micro_batch} × {layout.micro_batches}",
        "schedule": schedule,
        "recompute": layout.recompute,
        "ZeRO": layout.zero,
        "warnings": percent(doubtful) if doubtful >= LEAST_SHARE else "",
    }


def _table(rows: Sequence[Mapping[str, Any]], *, caption: str = "") -> Markup:
    heads, texts = table_texts(rows)
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    body = (element("tr", *(element("td", text) for text in row)) for row in texts)
    captions = [element("caption", caption)] if caption else []
    return element("table", *captions, element("thead", head), element("tbody", *body))
