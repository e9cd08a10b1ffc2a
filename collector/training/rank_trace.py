"""A summary of one rank's traced steps, as plain values that go to process 0."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kernelcast.collector.traces.kineto import ANNOTATION_CATEGORY, Trace
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
    - `forward`, `loss`, `backward`, `layer_forward`, `layer_backward`: [duration without the sums over the
      tensor-parallel group, number of those sums] of every one
    - `idle`: µs of each step within passes, and outside of them, in which nothing ran (or the process waited); not of
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
    """Gloo's own event ends when the message is through; it began with the call, which already hands data over."""
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
    """Time of every call, grouped by step. A call's pieces are added; work without a call counts each by itself."""
    calls: dict[tuple[str, str, bool], list[dict[tuple[int, int], float]]] = {}
    for number, step in enumerate(work.steps):
        for index, piece in enumerate(work.pieces):
            if not step.start_us <= piece.start_us <= step.end_us:
                continue
            owner = piece.owner
            key = (owner.name, owner.direction, owner.known)
            of_step = calls.setdefault(key, [defaultdict(float) for _ in work.steps])
            of_step[number][owner.call, -1 if owner.known else index] += piece.time_us
    return [[*key, [list(found.values()) for found in of_step]] for key, of_step in calls.items()]


def _passes(work: TracedWork) -> dict[str, list[list[float]]]:
    """Passes: on a GPU from the first start to the last end of their kernels, on a CPU the marks around them."""
    names = {FORWARD: "forward", LOSS: "loss", BACKWARD: "backward"}
    own: dict[int, list[WorkSpan]] = defaultdict(list)
    for piece in work.pieces:
        own[piece.owner.in_pass].append(piece)
    found: dict[str, list[list[float]]] = {name: [] for name in names.values()}
    for number, event in work.passes.items():
        span_us = _span_us(own[number]) if work.on_device else event.duration_us
        found[names[event.name]].append(_without_sums(span_us, own[number]))
    return found


def _layers(work: TracedWork) -> dict[str, list[list[float]]]:
    """First start to last end of the work of every layer call."""
    own: dict[tuple[int, str], list[WorkSpan]] = defaultdict(list)
    for piece in work.pieces:
        if piece.owner.layer >= 0 and piece.owner.in_pass in work.passes:
            is_backward = work.passes[piece.owner.in_pass].name == BACKWARD
            own[piece.owner.layer, "layer_backward" if is_backward else "layer_forward"].append(piece)
    found: dict[str, list[list[float]]] = {"layer_forward": [], "layer_backward": []}
    for (_, name), pieces in own.items():
        found[name].append(_without_sums(_span_us(pieces), pieces))
    return found


def _span_us(pieces: Sequence[WorkSpan]) -> float:
    return max((p.end_us for p in pieces), default=0.0) - min((p.start_us for p in pieces), default=0.0)


def _without_sums(span_us: float, pieces: Sequence[WorkSpan]) -> list[float]:
    """The span without the sums over the tensor-parallel group, and their number."""
    sums_us = [piece.time_us for piece in pieces if piece.owner.name in _SUMS]
    return [span_us - sum(sums_us), len(sums_us)]


def _idle(work: TracedWork) -> dict[str, list[float]]:
    if work.on_device:
        return {}
    found: dict[str, list[float]] = {"passes": [], "between": []}
    for step in work.steps:
        own = [p for p in work.pieces if step.start_us <= p.start_us <= step.end_us]
        passes = [e for e in work.passes.values() if step.start_us <= e.start_us <= step.end_us]
        in_passes = sum(p.time_us for p in own if p.owner.in_pass >= 0)
        inside = sum(e.duration_us for e in passes) - in_passes
        outside = step.duration_us - sum(p.time_us for p in own) - inside
        found["passes"].append(inside)
        found["between"].append(outside)
    return found
