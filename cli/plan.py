"""`kernelcast plan`: a whole training run on the calendar, and failures of one's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.lazy import DefaultGroup, Verb
from kernelcast.cli.options import (
    FILE,
    Shown,
    bundle_option,
    chosen_bundle,
    field_options,
    given_fields,
    json_option,
    memory_options,
    model_option,
    no_calibration_option,
    time_option,
)
from kernelcast.cli.plan_text import render_plan, render_plans
from kernelcast.cli.terminal import is_quiet, print_next, typed_again
from kernelcast.plan.failures import FailureRate
from kernelcast.plan.fields import PLAN
from kernelcast.plan.planning import plan
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.errors import needs_extra
from kernelcast.runtime.estimate.step_spread import StepSpread
from kernelcast.runtime.request.field_types import Field, counts, whole
from kernelcast.runtime.request.fields import MAX_SIZE, REQUEST
from kernelcast.runtime.request.models import find_model

PLANS_FORMAT = "kernelcast.run-plans/1"
_GPUS = Field(
    "gpus",
    counts(whole(1, MAX_SIZE), "numbers of devices, such as 1024 or 1024,2048"),
    "Number of devices; several, separated by commas, are compared. Layout options that are not given are searched.",
)


# fmt: off
VERBS: Mapping[str, Verb] = {
    "run": Verb("plan", "run", "", "Plan a run; may be left out."),
    "fit-failures": Verb("plan_failures", "fit_failures", "store", "Fit how often nodes fail, from logs of jobs."),
}
# fmt: on


@click.group("plan", cls=DefaultGroup, verbs=VERBS, default="run")
def plan_() -> None:
    """Plan a whole training run: days on the calendar, failures, checkpoints, price and energy."""


@click.command("run")
@bundle_option
@model_option
@field_options(*REQUEST.values(), _GPUS)
@memory_options()
@no_calibration_option
@field_options(*PLAN.values())
@time_option(
    "--deadline",
    "deadline_s",
    None,
    "Find the fewest devices that finish within this time in 90 % of runs.",
    most="3650d",
)
@click.option(
    "--db",
    "database",
    type=FILE,
    help="Database with your failures (plan fit-failures) and steps (import mlperf).",
)
@click.option("--picture", type=FILE, help="Draw calendar, fan chart and interval into a .png or .svg file.")
@json_option
def run(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    no_calibration: bool,
    deadline_s: float | None,
    database: Path | None,
    picture: Path | None,
    **fields: Any,
) -> Shown:
    """Plan a whole training run from the predicted step.

    Options of `kernelcast predict` describe model and layout; with --gpus or --deadline the layout is searched. `plan
    run` may be written `plan`.

    \b
    kernelcast plan run --hardware h100-sxm --model llama-3-8b --gpus 256 --global-batch 1024 --tokens 15T --price 2.5
    kernelcast plan --hardware h100-sxm --model llama-3-70b --gpus 1024,2048 --global-batch 2048 --tokens 15T
    kernelcast plan --hardware h100-sxm --model llama-3-8b --deadline 60d --global-batch 1024 --tokens 15T
    """
    path = chosen_bundle(bundle, hardware)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise UsageError(f"--picture is {str(picture)!r}, expected a file that ends in .png or .svg")
    sizes = fields.pop("gpus") or (None,)
    if len(sizes) > 1 and (deadline_s or picture):
        raise UsageError("several --gpus are given with --deadline or --picture, expected one")
    given = given_fields(fields)
    model = find_model(model_name, sequence_length=given.pop("sequence_length", None)).require_length().model
    stack = given.pop("stack", None)
    estimator = Estimator.load(path, calibrated=not no_calibration, stack=stack)
    rate = spread = None
    if database is not None:
        rate, spread = _facts(database, estimator, sizes[0])
    plans = [
        plan(estimator, model, gpus=size, deadline_s=deadline_s, rate=rate, spread=spread, **given)
        for size in sizes
    ]
    if picture is not None:
        from kernelcast.cli.plan_picture import draw_plan

        draw_plan(plans[0], picture)
        click.echo(f"wrote {picture}", err=True)
    if len(plans) > 1:
        documents = [one.to_dict() for one in plans]
        return Shown({"format": PLANS_FORMAT, "plans": documents}, lambda: click.echo(render_plans(plans)))

    def show() -> None:
        click.echo(render_plan(plans[0], is_brief=is_quiet()))
        if picture is None:
            print_next((typed_again("--picture", "plan.svg"), "draw calendar, fan chart and interval"))

    return Shown(plans[0].to_dict, show)


def _facts(
    database: Path, estimator: Estimator, gpus: int | None
) -> tuple[FailureRate | None, StepSpread | None]:
    """What a database says of the site's failures and steps."""
    with needs_extra("--db", "store"):
        from kernelcast.cli.plan_failures import stored_facts
    device = estimator.bundle.manifest.compute[0].device_name if estimator.bundle.manifest.compute else None
    return stored_facts(database, device, gpus or 8)
