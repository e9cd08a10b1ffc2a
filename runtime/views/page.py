"""An estimate as one page of HTML that needs nothing else: no scripts, no links, no network."""

from collections.abc import Iterator
from pathlib import Path

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.pipeline import StepTimeline
from kernelcast.runtime.step.parameters import total_parameters
from kernelcast.runtime.views.file import write_pieces
from kernelcast.runtime.views.markup import Markup, element, joined, raw, table
from kernelcast.runtime.views.memory_picture import PARTS, memory_legend, memory_picture
from kernelcast.runtime.views.operator_totals import operator_totals
from kernelcast.runtime.views.shares import step_shares
from kernelcast.runtime.views.step import simulated_step
from kernelcast.runtime.views.step_picture import legend, step_picture
from kernelcast.runtime.views.style import STYLE
from kernelcast.runtime.views.words import counted, gibibytes, layout_words, measured, percent, rate, seconds

_TOP_OPERATORS = 15
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(estimate: Estimate, path: Path) -> None:
    """Write the page of an estimate to `path`; the same estimate gives the same bytes.

    Raises:
        DataError: the file cannot be written.
    """
    write_pieces(path, [page(estimate)])


def page(estimate: Estimate) -> str:
    """The whole page: headline, question, timeline, where the time goes, memory, operators, warnings."""
    title = f"A training step of {estimate.model.name}: {seconds(estimate.step_time_s)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", raw(STYLE)),
    )
    body = element("body", _header(estimate), element("main", *_sections(estimate)), _footer(estimate))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _header(estimate: Estimate) -> Markup:
    return element(
        "header",
        element("h1", f"A training step of {estimate.model.name}"),
        element("p", layout_words(estimate), class_="soft"),
        element("dl", *_tiles(estimate), class_="tiles"),
    )


def _tiles(estimate: Estimate) -> Iterator[Markup]:
    def tile(name: str, value: str, note: str) -> Markup:
        return element("div", element("dt", name), element("dd", value), element("dd", note, class_="note"))

    if estimate.interval_s is None:
        spread = "no interval was asked for"
    else:
        spread = "90 % interval: " + " to ".join(seconds(one_s) for one_s in estimate.interval_s)
    yield tile("step", seconds(estimate.step_time_s), spread)
    devices = estimate.parallelism.world_size
    per_device = f"{rate(estimate.tokens_per_s / devices)} per device"
    yield tile("tokens per second", rate(estimate.tokens_per_s), per_device)
    nodes = f"{estimate.cluster.gpus_per_node:,} per node ({estimate.cluster_source})"
    yield tile("devices", f"{devices:,}", nodes)
    yield tile("pipeline bubble", percent(estimate.bubble_share), "of the time until the last pass ends")
    memory = estimate.memory
    if memory.gpu_memory_bytes is None:
        there = "a device's memory is not known"
    elif memory.fits:
        there = f"fits into {gibibytes(memory.gpu_memory_bytes)}"
    else:
        there = f"does not fit into {gibibytes(memory.gpu_memory_bytes)}"
    yield tile("fullest device", gibibytes(memory.largest_bytes), there)


def _sections(estimate: Estimate) -> Iterator[Markup]:
    if estimate.warnings:
        yield _warnings(estimate)
    timeline: StepTimeline | None = None
    too_long = ""
    try:
        timeline = simulated_step(estimate)
    except UsageError as error:
        too_long = str(error)
    yield _question(estimate)
    yield _timeline(estimate, timeline, too_long)
    yield _shares(estimate, timeline)
    yield _memory(estimate)
    yield _operators(estimate)


def _section(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content)


def _warnings(estimate: Estimate) -> Markup:
    listed = [element("li", str(warning)) for warning in estimate.warnings]
    body = element("ul", *listed)
    if len(listed) > 6:
        body = joined(
            (
                element("ul", *listed[:5]),
                element("details", element("summary", f"{len(listed) - 5} more"), element("ul", *listed[5:])),
            )
        )
    return element("section", element("h2", "Warnings"), body, class_="warnings")


def _question(estimate: Estimate) -> Markup:
    model, layout, source = estimate.model, estimate.parallelism, estimate.provenance
    facts = {
        "model": f"{model.name}: {counted(model.layers, 'layer')}, hidden size {model.hidden_size:,}, "
        f"{model.attention_heads} heads, sequence {model.sequence_length:,}, "
        f"vocabulary {estimate.padded_vocabulary_size:,} (padded), {total_parameters(model):,} parameters",
        "layers per stage": _layer_words(estimate.layer_counts),
        "global batch": f"{counted(layout.samples_per_update, 'sample')}, "
        f"{layout.samples_per_update * model.sequence_length:,} tokens",
        "cluster": f"{counted(layout.world_size, 'device')}, {estimate.cluster.gpus_per_node:,} per node "
        f"({estimate.cluster_source})",
        "hardware": "; ".join((*source.compute, *source.fabric)) or "not recorded",
        "bundle": f"{Path(source.bundle).name}: {source.statistic} times, {source.dtype}, "
        f"{measured(source.created_at)}",
    }
    if source.calibration is not None:
        facts["calibration"] = source.calibration.summary
    rows = [part for name, value in facts.items() for part in (element("dt", name), element("dd", value))]
    return _section("The question", element("dl", *rows, class_="facts"))


def _layer_words(counts: tuple[int, ...]) -> str:
    """Runs of equal counts: `12 × 3, 9`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ", ".join(f"{count} × {times}" if times > 1 else str(count) for count, times in runs)


def _timeline(estimate: Estimate, timeline: StepTimeline | None, too_long: str) -> Markup:
    if timeline is None:
        return _section("Timeline", element("p", f"Not drawn: {too_long}.", class_="soft"), _stages(estimate))
    picture = step_picture(estimate, timeline)
    notes = list(picture.notes)
    if estimate.timeline == "closed-form":
        notes.append(
            f"the predicted step is the closed form's; drawn is the simulated schedule, "
            f"{seconds(timeline.step_us * 1e-6)}"
        )
    said = [element("p", f"{'; '.join(notes)}.".capitalize(), class_="soft")] if notes else []
    return _section(
        "Timeline",
        *said,
        element("div", picture.svg, class_="scroll", tabindex="0", role="region", aria_label="Timeline"),
        legend(estimate),
        _stages(estimate),
    )


def _stages(estimate: Estimate) -> Markup:
    rows = [
        (
            str(stage.index),
            str(stage.layers),
            f"{stage.parameters:,}",
            seconds(stage.forward_s),
            seconds(stage.backward_s),
            seconds(stage.all_reduce_s),
            seconds(stage.optimizer_s),
            seconds(stage.all_gather_s),
        )
        for stage in estimate.stages
    ]
    headers = (
        "stage",
        "layers",
        "parameters",
        "forward",
        "backward",
        "all-reduce",
        "optimizer",
        "all-gather",
    )
    caption = "Forward and backward of one micro-batch with sends; the rest once per update; per device"
    return element(
        "details",
        element("summary", "The stages in figures"),
        table(headers, rows, caption=caption, text_columns=1),
    )


def _shares(estimate: Estimate, timeline: StepTimeline | None) -> Markup:
    shares = step_shares(estimate, timeline)
    whole_s = sum(share.time_s for share in shares)
    largest_s = max(share.time_s for share in shares)
    strip = [
        element(
            "span",
            class_=share.style,
            style=f"flex: {share.time_s / whole_s:.6f} 0 0",
            title=f"{share.name}: {percent(share.time_s / whole_s)}",
        )
        for share in shares
    ]
    rows = []
    for share in shares:
        part = share.time_s / whole_s
        bar = element(
            "span", class_=f"bar {share.style}", style=f"width: {100 * share.time_s / largest_s:.2f}%"
        )
        rows.append(
            element(
                "div",
                element("dt", element("span", class_=f"key {share.style}"), " ", share.name),
                element("dd", seconds(share.time_s), class_="number"),
                element("dd", percent(part), class_="number"),
                element("dd", bar, class_="track"),
            )
        )
    return _section(
        "Where the time goes",
        element(
            "p",
            f"A device of the average stage, from the start to the end of the step ({seconds(whole_s)}).",
            class_="soft",
        ),
        element("div", *strip, class_="strip", aria_hidden="true"),
        element("dl", *rows, class_="shares"),
    )


def _memory(estimate: Estimate) -> Markup:
    memory = estimate.memory
    rows = [
        (
            str(stage.stage),
            *(gibibytes(getattr(stage, field)) for field, _, _ in PARTS),
            gibibytes(stage.total_bytes),
            {True: "yes", False: "no", None: "not known"}[memory.fits_stage(stage)],
        )
        for stage in memory.stages
    ]
    headers = ("stage", *(name for _, name, _ in PARTS), "in all", "fits")
    return _section(
        "Memory of one device",
        element(
            "div",
            memory_picture(memory),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label="Memory of one device",
        ),
        memory_legend(),
        element(
            "details",
            element("summary", "Memory in figures"),
            table(headers, rows, caption="Per device at its fullest moment", text_columns=1),
        ),
    )


def _operators(estimate: Estimate) -> Markup:
    totals = operator_totals(estimate)
    whole_s = sum(total.time_s for total in totals)
    rows = [
        (
            total.operator,
            total.direction,
            f"{total.calls:,}",
            seconds(total.time_s / total.calls),
            seconds(total.time_s),
            percent(total.time_s / whole_s),
        )
        for total in totals
    ]
    headers = ("operator", "direction", "calls", "mean time", "device time", "share")
    caption = "One device of every stage, all micro-batches of a step; what runs side by side counts in full"
    parts = [table(headers, rows[:_TOP_OPERATORS], caption=caption, text_columns=2)]
    if len(rows) > _TOP_OPERATORS:
        rest = table(headers, rows[_TOP_OPERATORS:], caption="The others", text_columns=2)
        parts.append(element("details", element("summary", f"{len(rows) - _TOP_OPERATORS} more"), rest))
    return _section("Operators", *parts)


def _footer(estimate: Estimate) -> Markup:
    source = estimate.provenance
    software = "; ".join(source.software) or "not recorded"
    return element(
        "footer",
        element(
            "p",
            f"kernelcast {source.kernelcast_version}; measured with {software}. Bundle {source.bundle_digest}, "
            f"data set {source.dataset_digest}.",
        ),
        class_="soft",
    )
