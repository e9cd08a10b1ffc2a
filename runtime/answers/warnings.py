"""Every warning about an answer: its cause, its text (warnings.toml), and its values for JSON."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
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
    EXTRAPOLATED = "extrapolated"  # evaluated beyond the measured range
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
        """What is wrong, in a word; `range` of a value or layout outside the measured range."""
        return str(self.values.get("kind", "range"))

    def to_dict(self) -> dict[str, Any]:
        return {"cause": self.cause.value, **self.values, "message": self.message}


@cache
def _texts() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("warnings.toml").read_text(encoding="utf-8"))


def warning_of(
    name: str,
    values: Mapping[str, Any],
    *,
    severity: float = 1.0,
    kind: str = "",
    is_assumption: bool = False,
    is_part: bool = False,
    **words: object,
) -> AnswerWarning:
    """The warning of a row of warnings.toml (of some `kind`), whose texts have the `values` and further `words`."""
    row, words = _texts()[name][kind] if kind else _texts()[name], {**values, **words}
    topic, message, brief = (row[part].format_map(words) for part in ("topic", "message", "brief"))
    return AnswerWarning(Cause(row["cause"]), topic, message, brief, values, severity, is_assumption, is_part)


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
    """A regressor was evaluated outside its training range."""
    asked, low, high = one.asked, one.minimum, one.maximum
    # How many times the end of the range, or its part.
    if asked > high:
        severity, side = asked / high if high > 0 else math.inf, "beyond"
    else:
        severity, side = low / asked if asked > 0 else math.inf, "below"
    times = f"{severity:,.0f}" if severity >= 100 else f"{severity:.3g}"
    values = {**_of_key(key), "feature": one.feature, "asked": asked, "range": [low, high]}
    return warning_of("feature", values, severity=severity, times=times, side=side)


def layout_warning(key: Key, asked: Sequence[float], measured: Sequence[Layout]) -> AnswerWarning:
    """No sample of a collective has its layout."""
    values = {**_of_key(key), **_layout_values(asked, measured)}
    return warning_of("layout", values, severity=float(math.prod(asked)), layouts=_layouts(measured))


def extended_warning(
    operator: str, asked: Layout, measured: Sequence[Layout], *, fabric: str
) -> AnswerWarning:
    """A collective's layout was never measured: its measured layouts were extended by a description."""
    values = {"kind": "extended", "operator": operator, **_layout_values(asked, measured), "fabric": fabric}
    return warning_of("extended", values, severity=float(math.prod(asked)), layouts=_layouts(measured))


def _layout_values(asked: Sequence[float], measured: Sequence[Layout]) -> dict[str, Any]:
    return {"feature": "layout", "asked": list(asked), "measured": list(map(list, measured))}


def _of_key(key: Key) -> dict[str, str]:
    operator, direction = key
    return {"operator": operator, "direction": direction.value}


def _layouts(layouts: Sequence[Layout]) -> str:
    return ", ".join(f"{nodes} × {gpus}" for nodes, gpus in layouts)


def fabric_warning(operators: Sequence[str], *, fabric: str, is_measured: bool) -> AnswerWarning:
    """Collectives were answered by measurements of another cluster, or computed from a description."""
    cause = Cause.TRANSFERRED if is_measured else Cause.DESCRIBED
    values = {"kind": cause.value, "operators": list(operators), "fabric": fabric}
    name = "measured_fabric" if is_measured else "described_fabric"
    return warning_of(name, values, names=", ".join(operators))


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
            origin = source.replace("asked", "given")
            found.append(
                warning_of("devices_per_node", values, sizes=", ".join(map(str, known)), origin=origin)
            )
    return tuple(found)


def concurrency_warning(
    compute: Sequence[ComputeFingerprint], levels: Sequence[int], processes: int
) -> AnswerWarning | None:
    """A warning where more processes share a CPU than operators were measured with; GPUs have memory of their own."""
    if not levels or processes <= max(levels) or all(device.kind != "cpu" for device in compute):
        return None
    values = {"kind": "concurrency", "asked": processes, "measured": list(levels)}
    named, most = ", ".join(map(str, levels)), max(levels)
    return warning_of("concurrency", values, severity=processes / most, levels=named, most=most)


def substitute_warning(source: Source) -> AnswerWarning:
    """An operator that the bundle lacks was answered by another regressor."""
    by, other = source.answered_by
    kinds = {
        "equal_work": source.asks is not None,
        "part": source.is_part,
        "same_product": source.order,
        "other_pass": source.is_other_pass,
        "as_much_memory": source.alike,
        "same_size": True,
    }
    kind = next(name for name, holds in kinds.items() if holds)
    share = {1.0: "", 0.5: "half of "}.get(source.factor, f"{source.factor:g} times ")
    values = {**_of_key(source.key), "kind": "substitute", "source": by, "factor": source.factor}
    return warning_of(
        "substitute",
        values,
        kind=kind,
        share=share,
        other=other,
        is_assumption=source.is_assumption,
        is_part=source.is_part,
    )


def optimizer_warning(layout: Parallelism) -> AnswerWarning | None:
    """The optimizer's time was scaled from the measured optimizer by bytes moved; None for the measured one."""
    kind, states = layout.optimizer, layout.optimizer_states
    if (kind, states) == MEASURED:
        return None
    factor = moved_share(kind, states)
    values = {"operator": "adam", "kind": "optimizer", "optimizer": kind, "states": states, "factor": factor}
    return warning_of("optimizer", values, is_assumption=True)


def devices_warning(devices: int) -> AnswerWarning | None:
    """More devices than any published step had; None otherwise."""
    if devices <= MOST_DEVICES:
        return None
    return warning_of("devices", {"kind": "devices", "asked": devices, "measured": MOST_DEVICES})


def equal_features_warning(key: Key, features: Sequence[str]) -> AnswerWarning:
    """A workload was evaluated as if two features were equal, as they are in all samples."""
    values = {"kind": "equal_features", **_of_key(key), "features": list(features)}
    return warning_of("equal_features", values)


def left_out_warning(operators: Sequence[str]) -> AnswerWarning:
    """Operators of the step that the bundle lacks; the sum leaves them out."""
    values = {"kind": "left_out", "operators": list(operators)}
    return warning_of("left_out", values, names=", ".join(operators))


def operator_transfer_warning(key: Key, transfer: Transfer) -> AnswerWarning:
    """An operator was measured on another device; 90 % of such transfers were within `log_half_width`, in log(time)."""
    points = 0 if transfer.correction is None else transfer.correction.points
    devices = {"origin": transfer.origin.device, "target": transfer.target.device}
    width = {"points": points, "log_half_width": transfer.log_half_width}
    values = {"kind": "operator_transfer", **_of_key(key), **devices, **width}
    how = f"corrected by {points} points" if points else "scaled by the peaks of both"
    return warning_of(
        "operator_transfer", values, how=how, and_points=f" and {points} points" if points else ""
    )


def large_error_warning(key: Key, error: float) -> AnswerWarning:
    """A regressor answered whose mean error on held-out rows is large."""
    values = {"kind": "large_error", **_of_key(key), "error": error}
    return warning_of("large_error", values, severity=error, percent=100 * error)


def offload_warning(layout: Parallelism, link_bytes_per_s: float | None) -> AnswerWarning | None:
    """The host's part of an update, or the copying of activations, was computed from rates; None without either."""
    parts = {name: getattr(layout, name) for name in ("offload_optimizer", "offload_activations")}
    if not any(parts.values()):
        return None
    stated, memory = layout.host_link_gb_per_s, layout.host_memory_gb_per_s
    link = stated or (link_bytes_per_s or 0.0) / 1e9
    shares = {name.removeprefix("offload_"): part for name, part in parts.items()}
    values = {"kind": "offload", **shares, "link_gb_per_s": link, "memory_gb_per_s": memory}
    words: dict[str, Any] = {
        "named": ", ".join(f"{name} {part:g}" for name, part in parts.items() if part),
        "link_is": "as stated" if stated else "published for the device",
        "host": f" and {memory:g} GB/s for the host's optimizer (as stated)" * bool(layout.offload_optimizer),
    }
    return warning_of("offload", values, **words)


def stack_load_warning(
    stack: Stack | None, sources: Iterable[Key], entries: Mapping[Key, RegressorEntry]
) -> AnswerWarning | None:
    """A warning if a factor other than 1 multiplies sustained times of one of `sources`, the keys that answered.

    A stack's factors correct for the clocks that a long step sustains; times under sustained load already contain them.
    """
    multiplied = (key for key in sources if key in entries and entries[key].load.is_sustained)
    if stack is None or not any(stack.log_factor(operator) for operator, _ in multiplied):
        return None
    return warning_of("stack_load", {"kind": "stack_load", "stack": stack.name})
