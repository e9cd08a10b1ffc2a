"""Errors of sums of operators on the shipped measured steps: the table that intervals are drawn from."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import mean

import numpy as np

from kernelcast.runtime.answers.uncertainty import (
    CarriedError,
    ErrorsOfSource,
    StepErrors,
    devices_of,
    is_carried,
    step_kind,
)
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.stack import shipped_stacks, stack_named
from kernelcast.validate.steps import TODAY, AskedFile, ScoredStep, asked_files, shipped_runs

MOST_VALUES = 20
"""Quantiles kept of a source; of fewer steps all are."""
_DECIMALS = 4
_BOTH: tuple[TimelineKind, ...] = ("simulate", "closed-form")


def step_errors() -> StepErrors:
    """Errors of all steps that ship and can be predicted, by source, and of the stacks that ship on other devices."""
    machines = _machines(asked_files(shipped_runs()))
    asked = [*machines, *_machines(asked_files(shipped_runs(names=TODAY)))]
    return StepErrors(
        sources=tuple(one for timeline in _BOTH for files in asked for one in _sources(files, timeline)),
        carried=tuple(_carried(machines)),
    )


def _machines(asked: Sequence[AskedFile]) -> list[list[AskedFile]]:
    """Files by who measured on which device: several files of one machine are one source."""
    found: dict[tuple[str, str], list[AskedFile]] = {}
    for one in asked:
        found.setdefault((one.file.publisher, one.file.device), []).append(one)
    return list(found.values())


def step_errors_json(errors: StepErrors) -> str:
    """The table as it ships, a line for each source.

    Sources are by machine, kind of step, model and timeline, without unsteady steps (mean of repetitions above 1.5
    times their minimum), flagged ones and hybrid models'; carried are mean errors of stacks that were fitted to other
    devices.
    """
    tables = []
    for name, rows in asdict(errors).items():
        lines = ",\n".join(map(json.dumps, rows))
        tables.append(f'"{name}": [\n{lines}\n]')
    return "{" + ", ".join(tables) + "}\n"


def quantiles_of(errors: Sequence[float]) -> tuple[float, ...]:
    """At most `MOST_VALUES` equally likely quantiles, rising."""
    count = min(len(errors), MOST_VALUES)
    levels = (np.arange(count) + 0.5) / count
    found = np.quantile(errors, levels, method="hazen")
    return tuple(round(float(one), _DECIMALS) for one in found)


def log_errors(steps: Sequence[ScoredStep]) -> list[float]:
    """log(measured / predicted) of the steady steps that were predicted."""
    return [
        math.log(step.run.measured_s / step.estimate.step_time_s)
        for step in steps
        if step.estimate is not None and step.run.is_steady
    ]


def _sources(files: Sequence[AskedFile], timeline: TimelineKind) -> Iterator[ErrorsOfSource]:
    """Of one machine, by kind of step and model."""
    groups: dict[tuple[str, str], list[ScoredStep]] = {}
    for one in files:
        for step in one.score(timeline=timeline, interval=False):
            run = step.run
            # A scan's backward pass is among no measurements: such steps say more of its assumption than of sums.
            if not run.flag and not run.model.layer_pattern:
                groups.setdefault((step_kind(run.model, run.parallelism), run.model.name), []).append(step)
    for (kind, model), steps in groups.items():
        found = log_errors(steps)
        if found:
            yield ErrorsOfSource(
                name=files[0].path.stem,
                publisher=files[0].file.publisher,
                kind=kind,
                model=model,
                timeline=timeline,
                steps=len(found),
                unsteady=sum(not step.run.is_steady for step in steps),
                log_errors=quantiles_of(found),
                devices=devices_of(files[0].estimator.bundle),
            )


def _carried(machines: Sequence[Sequence[AskedFile]]) -> Iterator[CarriedError]:
    for name in shipped_stacks():
        stack = stack_named(name)
        for files in machines:
            if is_carried(stack, files[0].estimator.bundle):
                found = [error for one in files for error in log_errors(one.score(stack))]
                error = round(mean(found), _DECIMALS)
                yield CarriedError(stack=name, name=files[0].path.stem, steps=len(found), log_error=error)
