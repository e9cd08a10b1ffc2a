"""Predicted memory of steps that others measured: Megatron-LM's functional tests, MLPerf, torchtitan, SimuMax."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import log1p
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.defaults import RESERVED_BYTES
from kernelcast.runtime.estimate.device_memory import MemorySpread
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.memory.stages import StageMemory, stage_memory
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.validate.memory_cases import MEASURED, TITAN, AskedCase, asked_cases

FORMAT = "kernelcast.memory-validation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCase:
    """One case with its prediction: of the stage that was logged, the others' too."""

    case: AskedCase
    stages: tuple[StageMemory, ...]

    @property
    def predicted_bytes(self) -> int:
        """Of the stage that the source logged, as the source counts it."""
        found = self.logged
        return found.total_bytes + (found.fragments_bytes if self.case.source == TITAN else 0)

    @property
    def logged(self) -> StageMemory:
        """The stage that the source logged: the first, the last or the fullest."""
        fullest = max(self.stages, key=lambda one: one.total_bytes)
        return {"first": self.stages[0], "last": self.stages[-1], "fullest": fullest}[self.case.logged_stage]

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1; None where nothing was logged."""
        measured = self.case.measured_bytes
        return None if measured is None else self.predicted_bytes / measured - 1

    @property
    def fits(self) -> bool | None:
        """Whether the step, which did run, is predicted to fit; None if the device is unknown."""
        memory = self.case.device_bytes
        if memory is None:
            return None
        buffers = sum(communicator_bytes(Layouts.of(self.case.parallelism)).values())
        return max(one.total_bytes for one in self.stages) <= int(np.sum(memory - RESERVED_BYTES - buffers))

    def to_dict(self) -> dict[str, Any]:
        return {
            **values_of(self.case, "source", "name", "device", "kind", "number_format", "measured_bytes"),
            **values_of(self, "predicted_bytes", "error", "fits"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """Errors of the cases of one source, kind and number format."""

    source: str
    kind: str
    number_format: str
    cases: int
    median_abs_error: float
    mean_abs_error: float
    tenth_largest: float
    mean_error: float

    @classmethod
    def of(cls, key: tuple[str, str, str], errors: Sequence[float]) -> "MemoryGroup":
        sizes = sorted(map(abs, errors))
        return cls(
            source=key[0],
            kind=key[1],
            number_format=key[2],
            cases=len(errors),
            median_abs_error=median(sizes),
            mean_abs_error=fmean(sizes),
            tenth_largest=quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0],
            mean_error=fmean(errors),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryValidation:
    """All cases, unsupported ones by reason with their number, and arguments without a meaning here."""

    cases: tuple[ComparedCase, ...]
    left_out: Mapping[str, int]
    unread: Mapping[str, int]

    @property
    def measured(self) -> tuple[ComparedCase, ...]:
        return tuple(one for one in self.cases if one.error is not None)

    @property
    def groups(self) -> tuple[MemoryGroup, ...]:
        """By source × kind × number format, and all of a source by kind."""
        errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for one in self.cases:
            if one.error is not None:
                case = one.case
                errors[case.source, case.kind, case.number_format].append(one.error)
                errors[case.source, case.kind, "all"].append(one.error)
        return tuple(MemoryGroup.of(key, found) for key, found in sorted(errors.items()))

    @property
    def fitting(self) -> tuple[tuple[str, int, int], ...]:
        """Source, steps that are predicted to fit, and steps that ran on a known device."""
        known: dict[str, list[bool]] = defaultdict(list)
        for one in self.cases:
            if one.fits is not None:
                known[one.case.source].append(one.fits)
        return tuple((source, sum(fits), len(fits)) for source, fits in sorted(known.items()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "measured": dict(MEASURED),
            **plain_values(self, "groups"),
            "fitting": [dict(zip(("source", "fit", "ran"), one, strict=True)) for one in self.fitting],
            **plain_values(self, "left_out", "unread", "cases"),
        }


def spreads(found: MemoryValidation) -> dict[str, MemorySpread]:
    """Quantiles of log(measured / predicted) allocated memory, of dense and expert models, equally weighted."""
    return {kind: _spread(found, has_experts=kind == "experts") for kind in ("dense", "experts")}


def _spread(
    found: MemoryValidation, *, has_experts: bool, without: ModelConfig | None = None
) -> MemorySpread:
    groups: dict[ModelConfig, list[float]] = defaultdict(list)
    for one in found.measured:
        case = one.case
        if case.source != TITAN and case.model != without and (case.kind == "experts") == has_experts:
            groups[case.model].append(-log1p(one.error or 0.0))
    errors = np.concatenate([np.array(of) for of in groups.values()])
    weights = np.concatenate([np.full(len(of), 1 / len(of)) for of in groups.values()])
    order = np.argsort(errors)
    middles = np.cumsum(weights[order]) - weights[order] / 2
    quantiles_of = np.array([0.05, 0.5, 0.95]) * len(groups)
    low, middle, high = np.interp(quantiles_of, middles, errors[order]).tolist()
    return MemorySpread(low=round(low, 4), middle=round(middle, 4), high=round(high, 4))


def spreads_toml(found: MemoryValidation) -> str:
    lines = [
        "# log(measured / predicted) of allocated memory: 5, 50 and 95 % quantiles, models equally weighted.",
        "# kernelcast validate memory DIR -o runtime/shipped/memory_errors.toml writes it.",
    ]
    for kind, one in spreads(found).items():
        lines += [f"\n[{kind}]", f"low = {one.low}", f"middle = {one.middle}", f"high = {one.high}"]
    return "\n".join(lines) + "\n"


def covered(found: MemoryValidation) -> dict[str, tuple[int, int]]:
    """By source, cases inside the interval that the other models of their kind give, and all of them."""
    known: dict[tuple[ModelConfig, bool], MemorySpread] = {}
    counts: dict[str, list[bool]] = defaultdict(list)
    for one in found.measured:
        key = one.case.model, one.case.kind == "experts"
        if one.case.source == TITAN:
            continue
        if key not in known:
            known[key] = _spread(found, has_experts=key[1], without=key[0])
        low, high = known[key].interval_bytes(one.predicted_bytes)
        counts[one.case.source].append(low <= (one.case.measured_bytes or 0) <= high)
    return {source: (sum(inside), len(inside)) for source, inside in sorted(counts.items())}


def validate_memory(directory: Path) -> MemoryValidation:
    """Predict every supported case in the folders of `directory`; errors as `asked_cases`."""
    found = asked_cases(directory)
    return MemoryValidation(
        cases=tuple(_compared(found.cases)),
        left_out=dict(Counter(found.left_out).most_common()),
        unread=dict(Counter(found.unread).most_common()),
    )


def _compared(cases: Iterable[AskedCase]) -> Iterator[ComparedCase]:
    stages = cache(stage_memory)  # of the same layout on the same device there are several
    for case in cases:
        further = {**values_of(case, "dtype", "architecture"), "workspace": case.workspace_bytes}
        yield ComparedCase(case=case, stages=stages(case.model, case.parallelism, **further))
