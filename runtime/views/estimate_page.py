"""An estimate as one self-contained page of HTML: no scripts, no links, no network."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernelcast.runtime.bundle.regressor_entry import STATISTICS
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.training import Training
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.pipeline.pass_times import StepTimeline
from kernelcast.runtime.request.field_types import with_unit
from kernelcast.runtime.request.fields import AS_MEASURED
from kernelcast.runtime.step.chunks import counts_text
from kernelcast.runtime.step.parameters import total_parameters
from kernelcast.runtime.views.formatting import (
    amount,
    counted,
    gibibytes,
    in_days,
    measured,
    percent,
    rate,
    seconds,
    sizes_text,
)
from kernelcast.runtime.views.memory_pictures import LEGEND, PARTS, memory_over_step_picture, memory_picture
from kernelcast.runtime.views.page import (
    Markup,
    bullets,
    details,
    document,
    element,
    facts,
    legend,
    region,
    rows_table,
    section,
    tile,
)
from kernelcast.runtime.views.simulated_step import step_or_reason
from kernelcast.runtime.views.step_breakdown import operator_rows, operator_totals, step_shares
from kernelcast.runtime.views.timeline_picture import legend_entries, timeline_picture

_TOP_OPERATORS = 15


def write_page(estimate: Estimate, path: Path, run: Training | None = None) -> None:
    """Write the page of an estimate and of its training run, deterministically; errors as `write_pieces`."""
    write_pieces(path, [page(estimate, run)])


def page(estimate: Estimate, run: Training | None = None) -> str:
    """The whole page: headline, question, timeline, where the time goes, memory, operators, warnings."""
    title = f"A training step of {estimate.model.name}: {seconds(estimate.step_time_s)}"
    return document(title, _header(estimate, run), element("main", *_sections(estimate)), _footer(estimate))


def _header(estimate: Estimate, run: Training | None) -> Markup:
    tiles = (tile(*figure) for figure in (*headline(estimate), *_training(run)))
    return element(
        "header",
        element("h1", f"A training step of {estimate.model.name}"),
        element("p", layout_line(estimate), class_="soft"),
        element("dl", *tiles, class_="tiles"),
    )


_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero_bubble": "zero-bubble",
    "zb_v": "ZB-V",
    "dualpipe": "DualPipe",
    "dualpipe_v": "DualPipe-V",
}


def layout_line(estimate: Estimate) -> str:
    layout = estimate.parallelism
    words = {
        layout.degrees: True,
        _SCHEDULES[layout.schedule]: True,
        f"{layout.virtual_stages} chunks per stage": layout.virtual_stages > 1,
        f"{counted(layout.micro_batches, 'micro-batch')} of {layout.micro_batch}": True,
        f"recomputation {layout.recompute}": True,
        f"ZeRO-{layout.zero}": True,
        "sequence parallel": layout.sequence_parallel,
        f"attention as {layout.attention_kernel}": layout.attention_kernel != AS_MEASURED,
    }
    return ", ".join(text for text, is_told in words.items() if is_told)


def headline(estimate: Estimate) -> Iterator[tuple[str, str, str]]:
    """Name, value and note of the figures that a reader looks for first."""
    spread = "no interval requested"
    if estimate.interval_s is not None:
        spread = f"90 % interval: {' to '.join(map(seconds, estimate.interval_s))}"
    yield "step", seconds(estimate.step_time_s), spread
    if (grade := estimate.grade) is not None:
        yield "grade", grade.grade, grade.reason
    devices = estimate.parallelism.world_size
    yield "tokens/s", rate(estimate.tokens_per_s), f"{rate(estimate.tokens_per_s / devices)} per device"
    rate_text, peak = f"{amount(estimate.flops_per_s_per_device, 'FLOP/s')} per device", estimate.peak
    of_peak = "; peak not known" if peak is None else f" of {amount(peak.flops_per_s, 'FLOP/s')}"
    yield "MFU", "–" if peak is None else percent(estimate.mfu), rate_text + of_peak
    yield "devices", f"{devices:,}", estimate.per_node_text
    yield "pipeline bubble", percent(estimate.bubble_share), "of the time until the last pass ends"
    memory = estimate.memory
    room = "device memory not known"
    if memory.gpu_memory_bytes is not None:
        less = f" less {taken}" if (taken := sizes_text(memory.taken_bytes)) else ""
        room = f"{memory.fit_verdict} into {gibibytes(memory.gpu_memory_bytes)}{less}"
    yield "fullest device", gibibytes(memory.largest_bytes), room


def _training(run: Training | None) -> Iterator[tuple[str, str, str]]:
    """Time and cost of training, where tokens were given."""
    if run is None:
        return
    ends = run.days_interval
    spread = "" if ends is None else f", 90 % interval: {' to '.join(map(in_days, ends))}"
    yield "training", in_days(run.days), f"on {with_unit(run.tokens)} tokens{spread}"
    if run.cost is not None:
        low, high = (1.0, 1.0) if ends is None else (end / run.days for end in ends)
        between = "" if ends is None else f", 90 % interval: {run.cost * low:,.0f} to {run.cost * high:,.0f}"
        yield "cost", f"{run.cost:,.0f}", f"of {run.gpu_hours:,.0f} device-hours{between}"


def _sections(estimate: Estimate) -> Iterator[Markup]:
    if estimate.warnings:
        yield from _warnings(estimate)
    timeline, too_long = step_or_reason(estimate)
    yield section("The question", facts(question(estimate)))
    yield _timeline(estimate, timeline, too_long)
    yield _shares(estimate, timeline)
    yield _memory(estimate, timeline)
    yield _operators(estimate)


def _warnings(estimate: Estimate) -> Iterator[Markup]:
    """Warnings by cause, and each one under its group; nothing where no group has an influence."""
    groups = [doubt for doubt in estimate.doubts if doubt.has_influence]
    if groups:
        each = [str(warning) for doubt in groups for warning in doubt.warnings]
        body = (bullets(*(doubt.line for doubt in groups)), details("Each warning", bullets(*each)))
        yield element("section", element("h2", "Warnings"), *body, class_="warnings")


def question(estimate: Estimate) -> dict[str, str]:
    """The request, and the hardware and data behind the answer, by name."""
    model, layout, source = estimate.model, estimate.parallelism, estimate.provenance
    asked = {
        "model": f"{model.name}: {counted(model.layers, 'layer')}, hidden size {model.hidden_size:,}, "
        f"{model.attention_heads} heads, sequence {model.sequence_length:,}, "
        f"vocabulary {estimate.padded_vocabulary_size:,} (padded), {total_parameters(model):,} parameters",
        "layers per stage": counts_text(estimate.layer_counts),
        "global batch": f"{counted(layout.samples_per_update, 'sample')}, "
        f"{layout.samples_per_update * layout.sample_length(model):,} tokens",
        "cluster": f"{counted(layout.world_size, 'device')}, {estimate.per_node_text}",
        "hardware": "; ".join((*source.compute, *source.fabric)) or "not recorded",
        "bundle": f"{Path(source.bundle).name}: {STATISTICS[source.statistic]}, {source.dtype}, "
        f"{measured(source.created_at)}",
    }
    if source.collectives is not None:
        asked["fabric"] = f"{source.collectives.description} ({source.collectives.kind})"
    if estimate.peak is not None:
        peak = estimate.peak
        asked["peak of a device"] = (
            f"{amount(peak.flops_per_s, 'FLOP/s')} in {peak.dtype}, {peak.device} ({peak.source})"
        )
    if source.stack is not None:
        asked["stack"] = str(source.stack)
    if source.calibration is not None:
        asked["calibration"] = source.calibration.summary
    if source.data:
        asked["data"] = "; ".join(source.data)
    return asked


def _timeline(estimate: Estimate, timeline: StepTimeline | None, too_long: str) -> Markup:
    if timeline is None:
        return section("Timeline", element("p", f"Not drawn: {too_long}.", class_="soft"), _stages(estimate))
    svg, notes = timeline_picture(estimate, timeline)
    if estimate.timeline == "closed-form":
        notes.append(
            "the predicted step is the closed form's; the drawing is the simulated schedule, "
            f"{seconds(timeline.step_us * 1e-6)}"
        )
    shown_text = [element("p", f"{'; '.join(notes)}.".capitalize(), class_="soft")] if notes else []
    return section(
        "Timeline",
        *shown_text,
        region("Timeline", svg),
        legend(legend_entries(estimate)),
        _stages(estimate),
    )


def _stages(estimate: Estimate) -> Markup:
    caption = "Forward and backward of one micro-batch with sends; the rest once per update; per device"
    return details("The stages in figures", rows_table(stage_rows(estimate), caption=caption))


def stage_rows(estimate: Estimate) -> list[dict[str, Any]]:
    """The stages as a table for `cell_text`: values by column."""
    return [
        {
            "stage": stage.index,
            "layers": stage.layers,
            "parameters": stage.parameters,
            "forward_time_s": stage.forward_s,
            "backward_time_s": stage.backward_s,
            "all-reduce_time_s": stage.all_reduce_s,
            "update_ops_time_s": stage.computed_s,
            "all-gather_time_s": stage.all_gather_s,
        }
        for stage in estimate.stages
    ]


def _shares(estimate: Estimate, timeline: StepTimeline | None) -> Markup:
    shares = step_shares(estimate, timeline)
    whole_s = sum(share.time_s for share in shares)
    largest_s = max(share.time_s for share in shares)
    strip, rows = [], []
    for share in shares:
        part, width = share.time_s / whole_s, 100 * share.time_s / largest_s
        place = {"style": f"flex: {part:.6f} 0 0", "title": f"{share.name}: {percent(part)}"}
        strip.append(element("span", class_=share.style, **place))
        name = element("dt", element("span", class_=f"key {share.style}"), " ", share.name)
        numbers = (element("dd", text, class_="number") for text in (seconds(share.time_s), percent(part)))
        bar = element("span", class_=f"bar {share.style}", style=f"width: {width:.2f}%")
        rows.append(element("div", name, *numbers, element("dd", bar, class_="track")))
    shown_text = f"A device of the average stage, from the start to the end of the step ({seconds(whole_s)})."
    return section(
        "Where the time goes",
        element("p", shown_text, class_="soft"),
        element("div", *strip, class_="strip", aria_hidden="true"),
        element("dl", *rows, class_="shares"),
    )


def _memory(estimate: Estimate, timeline: StepTimeline | None) -> Markup:
    memory = estimate.memory
    rows = [
        {
            "stage": stage.stage,
            **{f"{name}_memory_bytes": getattr(stage, field) for field, name, _ in PARTS},
            "total_memory_bytes": stage.total_bytes,
            "on the host_memory_bytes": stage.host_bytes,
            "fits": {True: "yes", False: "no", None: "not known"}[memory.fits_stage(stage)],
        }
        for stage in memory.stages
    ]
    return section(
        "Memory of one device",
        region("Memory of one device", memory_picture(memory)),
        legend((style, name) for _, name, style in PARTS),
        details("Memory in figures", rows_table(rows, caption="Per device at its fullest moment")),
        *(() if timeline is None else _memory_over_step(estimate, timeline)),
    )


def _memory_over_step(estimate: Estimate, timeline: StepTimeline) -> Iterator[Markup]:
    svg, peaks = memory_over_step_picture(estimate, timeline)
    yield element("h3", "Over the step")
    yield region("Memory over the step", svg)
    yield legend(LEGEND)
    yield details("Peaks in figures", rows_table(peaks, caption="Per device, the first pass at its peak"))


def _operators(estimate: Estimate) -> Markup:
    rows = operator_rows(estimate)
    caption = "One device of every stage, all micro-batches of a step; overlapping calls count in full"
    parts = [rows_table(rows[:_TOP_OPERATORS], caption=caption)]
    if rest := rows[_TOP_OPERATORS:]:
        parts.append(details(f"{len(rest)} more", rows_table(rest, caption="The other operators")))
    return section("Operators", *parts)


def _footer(estimate: Estimate) -> Markup:
    source = estimate.provenance
    shown_text = (
        f"kernelcast {source.kernelcast_version}; measured with {'; '.join(source.software) or 'not recorded'}. "
        f"Bundle {source.bundle_digest}, data set {source.dataset_digest}."
    )
    return element("footer", element("p", shown_text), class_="soft")


PICTURES_FORMAT = "kernelcast.pictures/1"


def pictures(estimate: Estimate) -> dict[str, Any]:
    """The page's pictures one by one, form `kernelcast.pictures/1` (docs/json.md), with the classes of colours.css."""
    timeline, too_long = step_or_reason(estimate)
    drawn: dict[str, Any] = {"svg": "", "notes": [f"not drawn: {too_long}"]}
    over_step = ""
    if timeline is not None:
        drawn = dict(zip(("svg", "notes"), timeline_picture(estimate, timeline), strict=True))
        over_step, _ = memory_over_step_picture(estimate, timeline)

    def legend_of(entries: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
        return [{"style": style, "text": text} for style, text in entries]

    parts = legend_of((style, name) for _, name, style in PARTS)
    doubts = [doubt for doubt in estimate.doubts if doubt.has_influence]
    return {
        "format": PICTURES_FORMAT,
        "timeline": {**drawn, "legend": legend_of(legend_entries(estimate))},
        "shares": [asdict(share) for share in step_shares(estimate, timeline)],
        "memory": {"svg": memory_picture(estimate.memory), "legend": parts},
        "memory_over_step": {"svg": over_step, "legend": legend_of(LEGEND)},
        "operators": [asdict(total) for total in operator_totals(estimate)[:_TOP_OPERATORS]],
        "warnings": [{"line": doubt.line, "each": list(map(str, doubt.warnings))} for doubt in doubts],
    }
