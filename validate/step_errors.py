"""Errors of sums of operators on the shipped measured steps: the table that intervals are drawn from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import mean

import numpy as np

from kernelcast.runtime.answers.step_errors import CarriedError, ErrorsOfSource, StepErrors, is_carried
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.stack.stack_file import shipped_stacks, stack_named
from kernelcast.runtime.toml_text import toml_document
from kernelcast.validate.steps import AskedFile, ScoredStep, asked_files, shipped_runs

MOST_VALUES = 20
"""Quantiles kept of a source; of fewer steps all are."""
_DECIMALS = 4
_BOTH: tuple[TimelineKind, ...] = ("simulate", "closed-form")
_HEADER = """\
# What sums of operators got wrong in measured steps, log(measured / predicted): written by `make step-errors` from the
# runs files in validate/. source: steps by machine and timeline, without unsteady ones (mean of repetitions above 1.5
# times their minimum); log_errors are equally likely quantiles, all errors where there are few. carried: mean error of
# a machine's steps by a stack that was fitted to other devices (docs/trust.md, A step; docs/stacks.md).
"""


def step_errors() -> StepErrors:
    """Errors of all steps that ship and can be predicted, by source, and of the stacks that ship on other devices."""
    machines = _machines(asked_files(shipped_runs()))
    return StepErrors(
        sources=tuple(_source(files, timeline) for timeline in _BOTH for files in machines),
        carried=tuple(_carried(machines)),
    )


def _machines(asked: Sequence[AskedFile]) -> list[list[AskedFile]]:
    """Files by who measured on which device: several files of one machine are one source."""
    found: dict[tuple[str, str], list[AskedFile]] = {}
    for one in asked:
        found.setdefault((one.file.publisher, one.file.device), []).append(one)
    return list(found.values())


def step_errors_toml(errors: StepErrors) -> str:
    """The table as it ships."""
    values = asdict(errors)
    return f"{_HEADER}\n{toml_document({'source': values['sources'], 'carried': values['carried']})}"


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


def _source(files: Sequence[AskedFile], timeline: TimelineKind) -> ErrorsOfSource:
    steps = [step for one in files for step in one.score(timeline=timeline)]
    found = log_errors(steps)
    return ErrorsOfSource(
        name=files[0].path.stem,
        publisher=files[0].file.publisher,
        timeline=timeline,
        steps=len(found),
        unsteady=sum(not step.run.is_steady for step in steps),
        log_errors=quantiles_of(found),
    )


def _carried(machines: Sequence[Sequence[AskedFile]]) -> Iterator[CarriedError]:
    for name in shipped_stacks():
        stack = stack_named(name)
        for files in machines:
            if is_carried(stack, files[0].estimator.bundle):
                found = [error for one in files for error in log_errors(one.score(stack))]
                error = round(mean(found), _DECIMALS)
                yield CarriedError(stack=name, name=files[0].path.stem, steps=len(found), log_error=error)
