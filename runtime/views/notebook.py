"""Answers as a notebook shows them: tables without style or script, as cells bring their own."""

from collections.abc import Iterable, Sequence

from kernelcast.runtime.estimate.doubts import LEAST_SHARE, warning_lines
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.search.result import Answer, SearchResult
from kernelcast.runtime.views.formatting import amount, counted, gibibytes, percent, rate, seconds
from kernelcast.runtime.views.page import Markup, bullets, details, element, joined

_ALWAYS = ("pp", "tp", "dp")


def estimate_html(estimate: Estimate) -> Markup:
    """The headline of an estimate, its stages and its warnings."""
    layout, source, memory = estimate.parallelism, estimate.provenance, estimate.memory
    peak = "" if estimate.peak is None else f", MFU {percent(estimate.mfu)} of {estimate.peak.device}"
    facts = [
        ("step", _with_interval(estimate)),
        ("tokens/s", rate(estimate.tokens_per_s)),
        ("compute", f"{amount(estimate.flops_per_s_per_device, 'FLOP/s')} per device{peak}"),
        ("model", f"{estimate.model.name}, sequences of {estimate.model.sequence_length:,} tokens"),
        (
            "layout",
            f"{layout.degrees} = {layout.world_size} devices, {estimate.cluster.gpus_per_node} per node; micro-batch "
            f"{layout.micro_batch} × {layout.micro_batches}, recompute {layout.recompute}, ZeRO {layout.zero}",
        ),
        ("memory", f"{gibibytes(memory.largest_bytes)} on the fullest device{_room(estimate)}"),
        ("hardware", "; ".join(source.compute)),
        *(("data", text) for text in source.data),
        *([("fabric", source.collectives.description)] if source.collectives is not None else []),
        *([("stack", str(source.stack))] if source.stack is not None else []),
        ("bundle", source.bundle),
    ]
    rows = (
        element(
            "tr", element("th", name, style="text-align: left"), element("td", text, style="text-align: left")
        )
        for name, text in facts
    )
    stages = _table(
        ("stage", "layers", "forward", "backward", "update", "memory"),
        (
            (
                str(stage.index),
                str(stage.layers),
                seconds(stage.forward_s),
                seconds(stage.backward_s),
                seconds(stage.update_s),
                gibibytes(bytes_.total_bytes),
            )
            for stage, bytes_ in zip(estimate.stages, memory.stages, strict=True)
        ),
    )
    parts = [
        element("table", element("tbody", *rows)),
        details(counted(len(estimate.stages), "stage"), stages),
    ]
    if lines := warning_lines(estimate.doubts, hint="estimate.warnings has each"):
        parts.append(details("what makes this less certain", bullets(*lines)))
    return element("div", *parts)


def search_html(result: SearchResult) -> Markup:
    """The best layouts, and how many were evaluated; why there is none where there is none."""
    if result.best is None:
        return element("p", result.why_nothing())
    layouts = [one.parallelism for one in result.top]
    degrees = [
        name
        for name in (*DEGREES, *EXPERT_DEGREES)
        if name in _ALWAYS or any(getattr(one, name) > 1 for one in layouts)
    ]
    headers = (
        "step",
        "MFU",
        "tokens/s/device",
        "memory",
        *degrees,
        "micro-batch",
        "schedule",
        "recompute",
        "ZeRO",
    )
    counts, space = result.counts, result.question.space
    caption = (
        f"best of {counts.layouts:,} layouts of {space.model.name}, {space.global_batch} samples per update: "
        f"{counts.evaluated:,} evaluated, {counts.out_of_memory:,} out of memory"
    )
    rows = (_row(one, degrees) for one in result.top)
    return _table((*headers, "warnings"), rows, caption=caption)


def _row(one: Answer, degrees: Sequence[str]) -> tuple[str, ...]:
    layout, doubtful = one.parallelism, one.estimate.doubtful_share
    return (
        seconds(one.step_time_s),
        percent(one.estimate.mfu),
        rate(one.tokens_per_s_per_gpu),
        gibibytes(one.memory_bytes),
        *(str(getattr(layout, name)) for name in degrees),
        f"{layout.micro_batch} × {layout.micro_batches}",
        f"{layout.schedule} × {layout.virtual_stages}" if layout.virtual_stages > 1 else layout.schedule,
        layout.recompute,
        str(layout.zero),
        percent(doubtful) if doubtful >= LEAST_SHARE else "",
    )


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str = "") -> Markup:
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in headers)))
    body = element("tbody", *(element("tr", *(element("td", text) for text in row)) for row in rows))
    return element("table", *([element("caption", caption)] if caption else []), joined([head, body]))


def _with_interval(estimate: Estimate) -> str:
    if estimate.interval_s is None:
        return seconds(estimate.step_time_s)
    low_s, high_s = estimate.interval_s
    return f"{seconds(estimate.step_time_s)} (90 %: {seconds(low_s)} to {seconds(high_s)})"


def _room(estimate: Estimate) -> str:
    memory = estimate.memory
    if memory.gpu_memory_bytes is None:
        return ""
    return f", {'fits' if memory.fits else 'does NOT fit'} into {gibibytes(memory.gpu_memory_bytes)}"
