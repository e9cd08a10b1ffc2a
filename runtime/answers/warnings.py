"""Every warning about an answer: its cause, its text, and its values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.answers.sources import (
    LAYOUT_FEATURES,
    Exceeded,
    Source,
    exceeded,
    is_unmeasured_layout,
)
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.operators import Key
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.update import MEASURED, moved_share

if TYPE_CHECKING:
    from kernelcast.runtime.stack import Stack

LARGE_ERROR = 0.25
"""A mean error on held-out rows above this makes an answer doubtful, as a fraction."""
MOST_DEVICES = 16_384
"""Devices of the largest published steps (Llama 3 405B, arXiv 2407.21783, table 4)."""


class Cause(StrEnum):
    """Why an answer is doubtful, most severe first."""

    LEFT_OUT = "left_out"  # not in the sum
    EXTRAPOLATED = "extrapolated"  # asked beyond what was measured
    SUBSTITUTED = "substituted"  # answered by measurements of something else
    DESCRIBED = "described"  # computed from a description of links, not measured
    TRANSFERRED = "transferred"  # measured on another cluster
    DOUBTFUL = "doubtful"  # a regressor that does not follow its measurements

    @property
    def in_words(self) -> str:
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class AnswerWarning:
    """One reason to trust some answers less, a sentence as text; `brief` is a clause. Of one `topic`, the most severe
    is shown. `values` are plain fields of the JSON form. `is_assumption`: other work was measured; `is_part`: only the
    sum of its passes was, which matters where a schedule splits it.
    """

    cause: Cause
    topic: str
    message: str
    brief: str
    values: Mapping[str, Any]
    severity: float = 1.0
    is_assumption: bool = False
    is_part: bool = False

    def __hash__(self) -> int:
        return hash(self.message)

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """What is wrong, in a word; `range` of a value or layout outside of what was measured."""
        return str(self.values.get("kind", "range"))

    def to_dict(self) -> dict[str, Any]:
        return {"cause": self.cause.value, **self.values, "message": self.message}


def range_warnings(
    entry: RegressorEntry, vectors: Sequence[tuple[float, ...]]
) -> dict[AnswerWarning, tuple[tuple[float, ...], ...]]:
    """A warning per feature outside its training range and per unmeasured layout, each with its workload vectors."""
    found: dict[Exceeded | tuple[float, ...], list[tuple[float, ...]]] = {}
    for vector in vectors:
        for one in exceeded(entry, vector):
            found.setdefault(one, []).append(vector)
        if is_unmeasured_layout(entry, vector):
            found.setdefault(vector[-LAYOUT_FEATURES:], []).append(vector)
    return {
        feature_warning(entry.key, one)
        if isinstance(one, Exceeded)
        else layout_warning(entry.key, one, entry.layouts): tuple(own)
        for one, own in found.items()
    }


def feature_warning(key: Key, one: Exceeded) -> AnswerWarning:
    """A regressor was asked outside what it was trained on."""
    (operator, direction), asked, low, high = key, one.asked, one.minimum, one.maximum
    # How many times the end of the range, or its part.
    if asked > high:
        severity, side = asked / high if high > 0 else math.inf, "beyond"
    else:
        severity, side = low / asked if asked > 0 else math.inf, "below"
    times = f"{severity:,.0f}" if severity >= 100 else f"{severity:.3g}"
    what = f"{operator} ({direction}): {one.feature}"
    message = f"{what} = {asked:g} is outside the training range, {low:g} to {high:g}"
    brief = f"{operator} up to {times}× {side} measured {one.feature}"
    values = {**_of_key(key), "feature": one.feature, "asked": asked, "range": [low, high]}
    return AnswerWarning(Cause.EXTRAPOLATED, operator, message, brief, values, severity=severity)


def layout_warning(key: Key, asked: Sequence[float], measured: Sequence[Layout]) -> AnswerWarning:
    """A collective was asked for a layout that none of its samples has."""
    operator, direction = key
    values = {**_of_key(key), **_layout_values(asked, measured)}
    how = f"only {_layouts(measured)}"
    return _unmeasured(f"{operator} ({direction})", operator, values, how, "never measured")


def extended_warning(
    operator: str, asked: Layout, measured: Sequence[Layout], *, fabric: str
) -> AnswerWarning:
    """A collective's layout was never measured: its measured layouts were extended by a description."""
    values = {"kind": "extended", "operator": operator, **_layout_values(asked, measured), "fabric": fabric}
    how = f"extended from {_layouts(measured)} by the description of fabric {fabric}"
    return _unmeasured(operator, operator, values, how, f"extended by fabric {fabric}")


def _unmeasured(subject: str, operator: str, values: dict[str, Any], how: str, brief: str) -> AnswerWarning:
    """A warning about the layout `asked` in `values`."""
    nodes, gpus = values["asked"]
    message = f"{subject}: layout {nodes:g} × {gpus:g} (nodes × devices per node) was never measured, {how}"
    brief = f"{operator} on {nodes:g} × {gpus:g}, {brief}"
    topic = f"{operator} layout"
    return AnswerWarning(Cause.EXTRAPOLATED, topic, message, brief, values, severity=float(nodes * gpus))


def _layout_values(asked: Sequence[float], measured: Sequence[Layout]) -> dict[str, Any]:
    return {"feature": "layout", "asked": list(asked), "measured": list(map(list, measured))}


def _of_key(key: Key) -> dict[str, str]:
    operator, direction = key
    return {"operator": operator, "direction": direction.value}


def _layouts(layouts: Sequence[Layout]) -> str:
    return ", ".join(f"{nodes} × {gpus}" for nodes, gpus in layouts)


def fabric_warning(operators: Sequence[str], *, fabric: str, is_measured: bool) -> AnswerWarning:
    """Collectives were answered by measurements of another cluster, or computed from a description."""
    names = ", ".join(operators)
    message, brief = f"answered by the measurements of {fabric}", f"from {fabric}"
    if not is_measured:
        message = f"computed from the description of fabric {fabric}, not measured"
        brief = f"by the description of fabric {fabric}"
    cause = Cause.TRANSFERRED if is_measured else Cause.DESCRIBED
    values = {"kind": cause.value, "operators": list(operators), "fabric": fabric}
    return AnswerWarning(cause, "fabric", f"{names}: {message}", f"{names} {brief}", values)


def devices_per_node_warnings(
    used: int, source: str, *, bundle: Sequence[int], fabric: tuple[str, Sequence[int]] | None
) -> tuple[AnswerWarning, ...]:
    """One warning per bundle and fabric whose nodes have another number of devices; none where it is not known."""
    asked = [("the bundle", bundle), *([] if fabric is None else [(f"fabric {fabric[0]}", fabric[1])])]
    found = []
    for of, sizes in asked:
        if sizes and used not in sizes:
            known = sorted(set(sizes))
            values = {"kind": "devices_per_node", "used": used, "source": source, "of": of, "known": known}
            words = f"{used} devices per node ({source}), but {of} has nodes of {', '.join(map(str, known))}"
            found.append(AnswerWarning(Cause.EXTRAPOLATED, "devices per node", words, words, values))
    return tuple(found)


def concurrency_warning(
    compute: Sequence[ComputeFingerprint], levels: Sequence[int], processes: int
) -> AnswerWarning | None:
    """A warning where more processes share a CPU than operators were measured with; GPUs have memory of their own."""
    if not levels or processes <= max(levels) or all(device.kind != "cpu" for device in compute):
        return None
    many = f"{processes} processes of a node compute at once"
    message = (
        f"{many}, and operators were measured with {', '.join(map(str, levels))} of them: more slow each other down "
        f"(kernelcast collect compute --procs-per-node {processes})"
    )
    brief = f"{many}, measured with at most {max(levels)}"
    values = {"kind": "concurrency", "asked": processes, "measured": list(levels)}
    topic, severity = "processes of a node", processes / max(levels)
    return AnswerWarning(Cause.EXTRAPOLATED, topic, message, brief, values, severity=severity)


def substitute_warning(source: Source) -> AnswerWarning:
    """An operator that the bundle lacks was answered by another regressor."""
    (name, direction), (by, by_direction) = source.key, source.answered_by
    share = {1.0: "", 0.5: "half of "}.get(source.factor, f"{source.factor:g} times ")
    if source.asks is not None:
        answered, brief = (
            f"{share}{by} ({by_direction}) of equal work",
            f"{name} by {share}{by} of equal work",
        )
    elif source.is_part:
        answered, brief = f"{share}{by} ({by_direction})", f"{name} by {share}the sum of its gradients"
    elif source.order:
        answered = f"{by_direction} of the same product"
        brief = f"{name} ({direction}) by the forward product"
    elif source.is_other_pass:
        answered = f"{by_direction} times the ratio of their work"
        brief = f"{name} ({direction}) by its other pass"
    else:
        size = "moving as much memory" if source.alike else "of the same size"
        answered, brief = f"{share}{by} {size}", f"{name} by {share}{by}"
    message = f"{name} ({direction}): not in the bundle, answered by {answered}"
    values = {**_of_key(source.key), "kind": "substitute", "source": by, "factor": source.factor}
    flags = {"is_assumption": source.is_assumption, "is_part": source.is_part}
    return AnswerWarning(Cause.SUBSTITUTED, name, message, brief, values, **flags)


def optimizer_warning(layout: Parallelism) -> AnswerWarning | None:
    """Another optimizer than the measured one was answered by it, by the bytes that both move; None of that one."""
    kind, states = layout.optimizer, layout.optimizer_states
    if (kind, states) == MEASURED:
        return None
    factor = moved_share(kind, states)
    message = (
        f"optimizer {kind} with {states} states: not measured, answered by fused Adam of {factor:.2f} times the "
        "parameters, which moves as many bytes"
    )
    brief = f"{kind} ({states} states) by fused Adam"
    values = {"operator": "adam", "kind": "optimizer", "optimizer": kind, "states": states, "factor": factor}
    return AnswerWarning(Cause.SUBSTITUTED, "adam", message, brief, values, is_assumption=True)


def devices_warning(devices: int) -> AnswerWarning | None:
    """More devices than any published step had; None otherwise."""
    if devices <= MOST_DEVICES:
        return None
    brief = f"{devices:,} devices, more than the {MOST_DEVICES:,} of the largest published steps"
    message = f"{brief}: collectives of such groups, stragglers and failures were never compared"
    values = {"kind": "devices", "asked": devices, "measured": MOST_DEVICES}
    return AnswerWarning(Cause.EXTRAPOLATED, "devices", message, brief, values)


def equal_features_warning(key: Key, features: Sequence[str]) -> AnswerWarning:
    """A workload was asked as if two features were equal, as they are in everything that was measured."""
    (name, direction), (own, partner) = key, features
    message = f"{name} ({direction}): measured only with {own} = {partner}, so it is predicted for {own} = {partner}"
    values = {"kind": "equal_features", **_of_key(key), "features": list(features)}
    return AnswerWarning(
        Cause.SUBSTITUTED, f"{name} {own}", message, f"{name} as if {own} = {partner}", values
    )


def left_out_warning(operators: Sequence[str]) -> AnswerWarning:
    """Operators of the step that the bundle lacks; the sum leaves them out."""
    names = ", ".join(operators)
    message, brief = f"not in the bundle: {names}: left out of the sum", f"{names}, not in the bundle"
    values = {"kind": "left_out", "operators": list(operators)}
    return AnswerWarning(Cause.LEFT_OUT, names, message, brief, values)


def operator_transfer_warning(key: Key, transfer: Transfer) -> AnswerWarning:
    """An operator was measured on another device; 90 % of such transfers were within `log_half_width`, in log(time)."""
    (name, direction), origin = key, transfer.origin.device
    points = 0 if transfer.correction is None else transfer.correction.points
    how = f"corrected by {points} points" if points else "scaled by the peaks of both"
    message = f"{name} ({direction}): measured on {origin}, {how}"
    brief = f"{name} from {origin}{f' and {points} points' if points else ''}"
    devices = {"origin": origin, "target": transfer.target.device}
    width = {"points": points, "log_half_width": transfer.log_half_width}
    values = {"kind": "operator_transfer", **_of_key(key), **devices, **width}
    return AnswerWarning(Cause.TRANSFERRED, name, message, brief, values)


def large_error_warning(key: Key, error: float) -> AnswerWarning:
    """A regressor answered whose mean error on held-out rows is large."""
    name, direction = key
    message = f"{name} ({direction}): the regressor is {error:.0%} off on held-out measurements"
    brief = f"{name} up to {100 * error:.0f} % off on held-out measurements"
    values = {"kind": "large_error", **_of_key(key), "error": error}
    return AnswerWarning(Cause.DOUBTFUL, name, message, brief, values, severity=error)


def offload_warning(layout: Parallelism, link_bytes_per_s: float | None) -> AnswerWarning | None:
    """The host's part of an update, or the copying of activations, was computed from rates; None without either."""
    parts = {name: getattr(layout, name) for name in ("offload_optimizer", "offload_activations")}
    if not any(parts.values()):
        return None
    stated, memory = layout.host_link_gb_per_s, layout.host_memory_gb_per_s
    link = stated or (link_bytes_per_s or 0.0) / 1e9
    named = ", ".join(f"{name} {part:g}" for name, part in parts.items() if part)
    source = "as stated" if stated else "published for the device"
    rates = f"{link:g} GB/s between device and host ({source})"
    if layout.offload_optimizer:
        rates += f" and {memory:g} GB/s for the host's optimizer (as stated)"
    message = f"{named}: computed, not measured, with {rates}"
    brief = f"what the host takes by rates, {link:g} GB/s over its link"
    shares = {name.removeprefix("offload_"): part for name, part in parts.items()}
    values = {"kind": "offload", **shares, "link_gb_per_s": link, "memory_gb_per_s": memory}
    return AnswerWarning(Cause.DESCRIBED, "offload", message, brief, values)


def stack_load_warning(
    stack: Stack | None, sources: Iterable[Key], entries: Mapping[Key, RegressorEntry]
) -> AnswerWarning | None:
    """A warning if a factor other than 1 multiplies sustained times of one of `sources`, the keys that answered.

    A stack's factors correct for the clocks that a long step sustains; times under sustained load already contain them.
    """
    multiplied = (key for key in sources if key in entries and entries[key].load.is_sustained)
    if stack is None or not any(stack.log_factor(operator) for operator, _ in multiplied):
        return None
    message = (
        f"stack {stack.name} multiplies times that were measured under sustained load: if it was fitted to bursts, "
        "lower clocks count twice (kernelcast stack fit)"
    )
    brief = f"stack {stack.name} was perhaps fitted to bursts, and multiplies times under sustained load"
    values = {"kind": "stack_load", "stack": stack.name}
    return AnswerWarning(Cause.DOUBTFUL, "load of the device", message, brief, values)
