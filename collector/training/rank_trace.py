"""A summary of one rank's traced steps as plain values, sent to process 0."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kernelcast.collector.traces.events import ANNOTATION_CATEGORY
from kernelcast.collector.traces.kineto import Trace
from kernelcast.collector.training.marks import BACKWARD, FORWARD, LOSS
from kernelcast.collector.training.step_trace import (
    LOSS_SUM,
    TENSOR_SUM,
    TracedWork,
    WorkSpan,
    attribute_step,
)

_SUMS = (TENSOR_SUM, LOSS_SUM)


def rank_trace(trace: Trace, *, stage: int) -> dict[str, Any]:
    """Times in µs on the trace's own clock.

    - `operators`: [operator, direction, known, times of its calls in each step]
    - `steps`: durations
    - `forward`, `loss`, `backward`, `layer_forward`, `layer_backward`: for each pass or layer [duration without the
      sums over the tensor-parallel group, number of these sums]
    - `idle`: µs of each step, within and outside of passes, in which nothing ran or the process waited; missing on
      GPUs, whose kernels run later than the marks
    - `messages`: [`send` or `recv`, start, end] of point-to-point transfers between CPUs, Unix µs
    """
    work = attribute_step(trace)
    return {
        "stage": stage,
        "steps": [step.duration_us for step in work.steps],
        "operators": _operators(work),
        **_passes(work),
        **_layers(work),
        "idle": _idle(work),
        "messages": _messages(trace),
    }


def _messages(trace: Trace) -> list[list[Any]]:
    """Messages from the start of the call, which already transfers data, to the end of gloo's event."""
    called_us: dict[str, float] = {}
    found: list[tuple[str, float, float]] = []
    for event in trace.events:
        if event.name in ("c10d::send", "c10d::recv_"):
            called_us[event.name.removeprefix("c10d::").rstrip("_")] = event.start_us
        elif event.category == ANNOTATION_CATEGORY and event.name in ("gloo:send", "gloo:recv"):
            kind = event.name.removeprefix("gloo:")
            found.append((kind, called_us.get(kind, event.start_us), event.end_us))
    base_us = trace.base_time_ns / 1000
    return [[kind, base_us + start_us, base_us + end_us] for kind, start_us, end_us in found]


def _operators(work: TracedWork) -> list[list[Any]]:
    """Times of calls by step. Spans of one call are added; spans without a call count separately."""
    calls: dict[tuple[str, str, bool], list[dict[tuple[int, int], float]]] = {}
    for number, step in enumerate(work.steps):
        for index, span in enumerate(work.spans):
            if not step.start_us <= span.start_us <= step.end_us:
                continue
            owner = span.owner
            key = (owner.name, owner.direction, owner.known)
            of_step = calls.setdefault(key, [defaultdict(float) for _ in work.steps])
            of_step[number][owner.call, -1 if owner.known else index] += span.time_us
    return [[*key, [list(found.values()) for found in of_step]] for key, of_step in calls.items()]


def _passes(work: TracedWork) -> dict[str, list[list[float]]]:
    """Passes: on a GPU from the first start to the last end of their kernels, on a CPU the duration of their marks."""
    names = {FORWARD: "forward", LOSS: "loss", BACKWARD: "backward"}
    own: dict[int, list[WorkSpan]] = defaultdict(list)
    for span in work.spans:
        own[span.owner.in_pass].append(span)
    found: dict[str, list[list[float]]] = {name: [] for name in names.values()}
    for number, event in work.passes.items():
        span_us = _span_us(own[number]) if work.on_device else event.duration_us
        found[names[event.name]].append(_without_sums(span_us, own[number]))
    return found


def _layers(work: TracedWork) -> dict[str, list[list[float]]]:
    """From the first start to the last end of the work of every layer call."""
    own: dict[tuple[int, str], list[WorkSpan]] = defaultdict(list)
    for span in work.spans:
        if span.owner.layer >= 0 and span.owner.in_pass in work.passes:
            is_backward = work.passes[span.owner.in_pass].name == BACKWARD
            own[span.owner.layer, "layer_backward" if is_backward else "layer_forward"].append(span)
    found: dict[str, list[list[float]]] = {"layer_forward": [], "layer_backward": []}
    for (_, name), spans in own.items():
        found[name].append(_without_sums(_span_us(spans), spans))
    return found


def _span_us(spans: Sequence[WorkSpan]) -> float:
    return max((p.end_us for p in spans), default=0.0) - min((p.start_us for p in spans), default=0.0)


def _without_sums(span_us: float, spans: Sequence[WorkSpan]) -> list[float]:
    """The span without the sums over the tensor-parallel group, and the number of these sums."""
    sums_us = [span.time_us for span in spans if span.owner.name in _SUMS]
    return [span_us - sum(sums_us), len(sums_us)]


def _idle(work: TracedWork) -> dict[str, list[float]]:
    if work.on_device:
        return {}
    found: dict[str, list[float]] = {"passes": [], "between": []}
    for step in work.steps:
        own = [p for p in work.spans if step.start_us <= p.start_us <= step.end_us]
        passes = [e for e in work.passes.values() if step.start_us <= e.start_us <= step.end_us]
        in_passes = sum(p.time_us for p in own if p.owner.in_pass >= 0)
        inside = sum(e.duration_us for e in passes) - in_passes
        outside = step.duration_us - sum(p.time_us for p in own) - inside
        found["passes"].append(inside)
        found["between"].append(outside)
    return found
