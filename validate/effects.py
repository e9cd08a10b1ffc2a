"""How each option of the training software changes the errors of measured steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from kernelcast.runtime.request.fields import LAYOUT, STACK
from kernelcast.validate.steps import AskedFile, asked_files, shipped_runs

FORMAT = "kernelcast.effects/1"

_NUMBERS: Mapping[str, tuple[float, ...]] = {
    "exposed_share": (0, 0.5, 1),
    "shard_group": (8,),
    "recompute_layers": (1,),
    "dropout": (0.1,),
    "vocabulary_multiple": (1, 128),
    "host_launch_us": (10,),
}
"""Values to try of options that have more than a few; of other numbers, such as the rank of adapters, none."""
_MOST_VALUES = 8  # of what recomputation may cover


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Errors of one source's steps with one option set where possible; `changed` counts changed predictions."""

    site: str
    steps: int
    changed: int
    mean_error: float
    mean_abs_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option (None: as the files state) and its effect on every source."""

    field: str | None
    value: Any
    effects: tuple[Effect, ...]


def option_effects(paths: Sequence[Path] = ()) -> tuple[Option, ...]:
    """Errors of runs files' steps, of those that ship without any: as stated, then with each other value of an option.

    Values without any effect, and steps without a prediction, are left out. Errors as `score_steps`.
    """
    files = asked_files(paths or shipped_runs())
    stated = [_predicted_s(one) for one in files]
    found = [Option(field=None, value=None, effects=_effects(files, stated, stated))]
    for name in STACK:
        values = LAYOUT[name].kind.values
        for value in _NUMBERS.get(name, () if isinstance(values, range) else values[:_MOST_VALUES]):
            times = [_predicted_s(one, name, value) for one in files]
            if any(map(_changed, stated, times)):
                found.append(Option(field=name, value=value, effects=_effects(files, stated, times)))
    return tuple(found)


def to_dict(options: Sequence[Option]) -> dict[str, Any]:
    return {"format": FORMAT, "options": [asdict(one) for one in options]}


def _predicted_s(file: AskedFile, name: str = "", value: Any = None) -> list[float | None]:
    """Predicted steps in seconds, one per run; None where one cannot be predicted."""
    changed = {name: value} if name else {}
    steps = file.score(changed=changed, interval=False)
    times: list[float | None] = []
    for step in steps:
        if step.estimate is None and changed:
            [step] = file.score(runs=[step.run], interval=False)
        times.append(None if step.estimate is None else step.estimate.step_time_s)
    return times


def _effects(
    files: Sequence[AskedFile], stated: Sequence[list[float | None]], times: Sequence[list[float | None]]
) -> tuple[Effect, ...]:
    found = []
    for file, before, after in zip(files, stated, times, strict=True):
        predicted = zip(file.file.runs, after, strict=True)
        if errors := [time_s / run.measured_s - 1 for run, time_s in predicted if time_s is not None]:
            means = {"mean_error": mean(errors), "mean_abs_error": mean(map(abs, errors))}
            changed = _changed(before, after)
            found.append(Effect(site=file.file.site, steps=len(errors), changed=changed, **means))
    return tuple(found)


def _changed(before: list[float | None], after: list[float | None]) -> int:
    """Steps that differ by more than the order of a sum."""
    pairs = zip(before, after, strict=True)
    return sum(not math.isclose(one or 0, other or 0, rel_tol=1e-6) for one, other in pairs)
