"""A stack fitted to runs files: before, and with every model (or layout) left out in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import one_line
from kernelcast.runtime.stack import FittedRuns, LeftOut, Stack, stack_named
from kernelcast.validate.stack_fit import FittedStep, fit, left_out_by
from kernelcast.validate.steps import Score, ScoredStep, asked_files

_DECIMALS = 6
_UNSTEADY = "its repetitions scatter (mean_s); scored all the same"


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
    steps = [FittedStep(step.run, step.estimate) for _, step in known if step.estimate is not None]
    whole = fit(_steady(steps), fixed)
    by, groups = left_out_by([step.run for step in steps])
    names = list(dict.fromkeys(groups))
    left_out: list[ScoredStep | None] = [None] * len(steps)
    for group in names if len(names) > 1 else ():
        others = [step for step, own in zip(steps, groups, strict=True) if own != group]
        without = fit(_steady(others), fixed)
        for index, own in enumerate(groups):
            if own == group:
                [left_out[index]] = known[index][0].score(without, [steps[index].run])
    pairs = [
        (group, before, out)
        for group, (_, before), out in zip(groups, known, left_out, strict=True)
        if out is not None
    ]
    scores = [
        StackScore(
            before=Score.of(group, [before for own, before, _ in pairs if group in (own, "all")]),
            left_out=Score.of(group, [out for own, _, out in pairs if group in (own, "all")]),
        )
        for group in ((*names, "all") if pairs else ())
    ]
    said = software or "; ".join(dict.fromkeys(one.file.stack or one.file.site for one in files))
    after = [one.score(whole, [step.run])[0] for one, step in known]
    before_all, after_all = Score.of("all", [step for _, step in known]), Score.of("all", after)
    return FittedStack(
        stack=replace(
            whole,
            name=name,
            software=one_line(said),
            kernel=kernel,
            source=one_line("; ".join(dict.fromkeys(one.file.source for one in files))),
            error_before=_rounded(before_all.mean_abs_error),
            error_after=_rounded(after_all.mean_abs_error),
            runs=tuple(
                FittedRuns(
                    file=one.path.name,
                    digest=one.file.digest,
                    asked=one.asked,
                    bundle_digest=one.estimator.bundle.digest,
                    fabric=one.fabric_name,
                    steps=count,
                )
                for one in files
                if (count := sum(other is one and step.run.is_steady for other, step in known))
            ),
            left_out=tuple(
                LeftOut(
                    name=one.before.model,
                    steps=one.before.steps,
                    error_before=_rounded(one.before.mean_abs_error),
                    error_left_out=_rounded(one.left_out.mean_abs_error),
                )
                for one in scores[:-1]
            ),
        ),
        left_out_by=by,
        left_out_steps=tuple(
            (one.path.name, out) for (one, _), out in zip(known, left_out, strict=True) if out is not None
        ),
        scores=tuple(scores),
        before=before_all,
        after=after_all,
        unpredicted=(
            *((step.run.label, step.reason) for _, step in scored if step.estimate is None),
            *((step.run.label, _UNSTEADY) for _, step in known if not step.run.is_steady),
        ),
    )


def _steady(steps: Sequence[FittedStep]) -> list[FittedStep]:
    """Those whose repetitions agree; all, where none do."""
    return [step for step in steps if step.run.is_steady] or list(steps)


def _rounded(error: float | None) -> float:
    return round(error or 0.0, _DECIMALS)
