"""A stack fitted to runs files: before, and with every model (or layout) left out in turn."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import one_line
from kernelcast.runtime.stack import FittedRuns, LeftOut, Stack, stack_named
from kernelcast.validate.stack_fit import FittedStep, fit, left_out_by
from kernelcast.validate.steps import AskedFile, Score, ScoredStep, asked_files

_DECIMALS = 6
_UNSTEADY = "its repetitions scatter (mean_s); it is scored anyway"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackScore:
    """Figures of a model's or layout's steps without the stack, and with factors fitted to the others' steps alone."""

    before: Score
    left_out: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStack:
    """A stack, and how well it does. `scores` are empty where nothing can be left out; the last of several is of all.

    `left_out_by` is "model" or "layout"; `unpredicted` says which steps had no part, and why. `left_out_steps` are the
    steps, each by factors that were fitted without its model (or layout), with the name of their file.
    """

    stack: Stack
    left_out_by: str
    scores: tuple[StackScore, ...]
    after: Score
    before: Score
    unpredicted: tuple[tuple[str, str], ...]
    left_out_steps: tuple[tuple[str, ScoredStep], ...] = ()

    @property
    def helps(self) -> bool | None:
        """Whether steps that were left out are predicted better with it; None where none was."""
        if not self.scores:
            return None
        last = self.scores[-1]
        return (last.left_out.mean_abs_error or 0.0) < (last.before.mean_abs_error or 0.0)


def fit_stack(
    paths: Sequence[Path],
    *,
    name: str,
    software: str = "",
    kernel: str | None = None,
    fixed: Mapping[str, float] | None = None,
    bundle: str = "",
    fabric: str = "",
) -> FittedStack:
    """Fit a stack to the steps of runs files, each predicted as `score_steps` does; a bundle's calibration is not used.

    `software` defaults to the files' `stack`; `kernel` is the kernel of fused attention in the steps, if known.

    Raises:
        UsageError: no step can be predicted, or a fixed factor is wrong; as `score_steps`.
        DataError: as `score_steps`.
    """
    files, fixed = asked_files(paths, bundle=bundle, fabric=fabric), fixed or {}
    plain = stack_named("none")
    scored = [(one, step) for one in files for step in one.score(plain)]
    known = [(one, step) for one, step in scored if step.estimate is not None]
    if not known:
        raise UsageError(f"no step can be predicted, expected one that can: {scored[0][1].reason}")
    steps = [FittedStep(step.run, step.estimate) for _, step in known if step.estimate]
    whole = fit(_steady(steps), fixed)
    by, groups = left_out_by([step.run for step in steps])
    left_out = _left_out(known, steps, groups, fixed)
    scores = [
        StackScore(
            before=Score.of(group, _part([step for _, step in known], groups, group)),
            left_out=Score.of(group, _part(left_out, groups, group)),
        )
        for group in ((*dict.fromkeys(groups), "all") if left_out else ())
    ]
    after_all = Score.of("all", [one.score(whole, [step.run])[0] for one, step in known])
    scores_before = Score.of("all", [step for _, step in known])
    stated = software or "; ".join(dict.fromkeys(one.file.stack or one.file.site for one in files))
    return FittedStack(
        stack=replace(
            whole,
            name=name,
            software=one_line(stated),
            kernel=kernel,
            source=one_line("; ".join(dict.fromkeys(one.file.source for one in files))),
            error_before=_rounded(scores_before.mean_abs_error),
            error_after=_rounded(after_all.mean_abs_error),
            runs=_fitted_runs(known),
            left_out=tuple(map(_stored, scores[:-1])),
        ),
        left_out_by=by,
        left_out_steps=tuple((one.path.name, out) for (one, _), out in zip(known, left_out, strict=False)),
        scores=tuple(scores),
        before=scores_before,
        after=after_all,
        unpredicted=(
            *((step.run.label, step.reason) for _, step in scored if step.estimate is None),
            *((step.run.label, _UNSTEADY) for _, step in known if not step.run.is_steady),
        ),
    )


def _left_out(
    known: Sequence[tuple[AskedFile, ScoredStep]],
    steps: Sequence[FittedStep],
    groups: Sequence[str],
    fixed: Mapping[str, float],
) -> list[ScoredStep]:
    """Each step by factors that were fitted without its group; none where there is one group alone."""
    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        return []
    without = {
        name: fit(_steady([step for step, own in zip(steps, groups, strict=True) if own != name]), fixed)
        for name in names
    }
    return [
        one.score(without[group], [step.run])[0] for (one, step), group in zip(known, groups, strict=True)
    ]


def _part(steps: Sequence[ScoredStep], groups: Sequence[str], group: str) -> list[ScoredStep]:
    return [step for step, own in zip(steps, groups, strict=True) if group in (own, "all")]


def _fitted_runs(known: Sequence[tuple[AskedFile, ScoredStep]]) -> tuple[FittedRuns, ...]:
    """The files with steps that were fitted to."""
    counts = Counter(one.path for one, step in known if step.run.is_steady)
    files = {one.path: one for one, _ in known}
    return tuple(
        FittedRuns(
            file=path.name,
            digest=files[path].file.digest,
            asked=files[path].asked,
            bundle_digest=files[path].estimator.bundle.digest,
            fabric=files[path].fabric_name,
            steps=count,
        )
        for path, count in counts.items()
    )


def _stored(score: StackScore) -> LeftOut:
    return LeftOut(
        name=score.before.model,
        steps=score.before.steps,
        error_before=_rounded(score.before.mean_abs_error),
        error_left_out=_rounded(score.left_out.mean_abs_error),
    )


def _steady(steps: Sequence[FittedStep]) -> list[FittedStep]:
    """The steps whose repetitions agree; all of them where no step's do."""
    return [step for step in steps if step.run.is_steady] or list(steps)


def _rounded(error: float | None) -> float:
    return round(error or 0.0, _DECIMALS)
