"""`kernelcast stack fit`."""

from dataclasses import asdict
from pathlib import Path

import click

from kernelcast.cli.options import FILE, bundle_option, chosen_bundle, json_option, runs_fabric_option
from kernelcast.cli.stack_list import factor_texts
from kernelcast.cli.tables import percent, signed_percent, table_of, text_table
from kernelcast.cli.terminal import is_quiet, print_json, say
from kernelcast.runtime.errors import UsageError, one_line, shown
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.request.field_types import read_decimal
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.stack import NAMES, stack_toml
from kernelcast.validate.stack_runs import FittedStack, StackScore, fit_stack
from kernelcast.validate.steps import Score

FORMAT = "kernelcast.stack/1"
_KERNELS = LAYOUT["attention_kernel"].kind.values[1:]


@click.command(short_help="Fit a stack's factors to measured steps.")
@click.argument("paths", metavar="RUNS...", nargs=-1, required=True, type=FILE)
@bundle_option
@runs_fabric_option
@click.option(
    "--fix",
    "fixed",
    metavar="FACTOR=VALUE",
    multiple=True,
    help=f"Set a factor instead of fitting it ({', '.join(NAMES)}); may be given several times.",
)
@click.option("--name", default="", metavar="NAME", help="The stack's name.  [default: the written file's]")
@click.option(
    "--software", default="", metavar="TEXT", help="What it is.  [default: what the runs files say]"
)
@click.option(
    "--kernel",
    metavar="KERNEL",
    type=click.Choice(_KERNELS),
    help=f"Kernel of fused attention in the steps ({', '.join(_KERNELS)}).  [default: not stated]",
)
@click.option("--output", "-o", type=FILE, help="Write the stack (TOML).  [default: only report]")
@json_option
def fit(
    *,
    paths: tuple[Path, ...],
    bundle: str | None,
    hardware: str | None,
    fabric: str,
    fixed: tuple[str, ...],
    name: str,
    software: str,
    kernel: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Fit what training software does to sums of operators to measured steps.

    RUNS are files of measured steps (TOML, docs/validation.md), each predicted with the hardware and the fabric that it
    names, unless others are given. The errors "left out" are of factors that were fitted without any step of the same
    model; of one model alone, without any step of the same layout.

    \b
    kernelcast stack fit site.toml -o ours.toml
    kernelcast stack fit site.toml --fix attention=1
    """
    given = bundle is not None or hardware is not None
    found = fit_stack(
        paths,
        name=name or (output.stem if output is not None else "fitted"),
        software=software,
        kernel=kernel,
        fixed=dict(map(_fixed, fixed)),
        bundle=chosen_bundle(bundle, hardware) if given else "",
        fabric=fabric,
    )
    if output is not None:
        write_pieces(output, [stack_toml(found.stack)])
    if as_json:
        print_json(_document(found))
        return
    say(_shown(found))
    if output is not None:
        say(f"{one_line(str(output))}: written")


def _fixed(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    value = read_decimal(number)
    if value is None:
        raise UsageError(f"--fix is {shown(text)}, expected a factor and its value, such as attention=1")
    return name, float(value)


def _document(found: FittedStack) -> dict[str, object]:
    return {
        "format": FORMAT,
        "stack": asdict(found.stack),
        "helps": found.helps,
        "left_out_by": found.left_out_by,
        "before": asdict(found.before),
        "after": asdict(found.after),
        "scores": [{"before": asdict(one.before), "left_out": asdict(one.left_out)} for one in found.scores],
        "left_out_steps": [{"runs_file": name, **step.to_dict()} for name, step in found.left_out_steps],
        "unpredicted": [{"label": label, "reason": reason} for label, reason in found.unpredicted],
    }


def _shown(found: FittedStack) -> str:
    stack = found.stack
    factors = [
        (factor, text, "set" if factor in stack.fixed else "fitted")
        for factor, text in zip(NAMES, factor_texts(stack), strict=True)
    ]
    lines = [f"{one_line(label)}: no part, {one_line(why)}" for label, why in found.unpredicted]
    sections = [
        f"{stack.name}: {stack.software}\n{stack.steps} steps of {', '.join(one.file for one in stack.runs)}",
        text_table(("factor", "value (90 % interval)", ""), factors),
        f"residual {percent(stack.residual)}; mean absolute error {percent(found.before.mean_abs_error or 0)} before, "
        f"{percent(found.after.mean_abs_error or 0)} after",
    ]
    if is_quiet():
        return "\n\n".join((sections[1], _verdict(found)))
    if found.scores:
        sections.append(_left_out(found.left_out_by, found.scores))
    return "\n\n".join([*sections, *lines, _verdict(found)])


def _left_out(by: str, scores: tuple[StackScore, ...]) -> str:
    return table_of(
        scores,
        (by, lambda one: one.before.model),
        ("steps", lambda one: f"{one.before.steps}"),
        ("error before", lambda one: signed_percent(one.before.mean_error or 0)),
        ("absolute", lambda one: percent(one.before.mean_abs_error or 0)),
        ("in interval", lambda one: _inside(one.before)),
        ("left out", lambda one: signed_percent(one.left_out.mean_error or 0)),
        ("absolute", lambda one: percent(one.left_out.mean_abs_error or 0)),
        ("in interval", lambda one: _inside(one.left_out)),
        ("half-width", lambda one: percent(one.left_out.median_half_width or 0)),
    )


def _inside(score: Score) -> str:
    return f"{score.inside} of {score.predicted}"


def _verdict(found: FittedStack) -> str:
    if found.helps is None:
        return "Of one layout alone nothing can be left out: nothing shows whether the stack helps with other steps."
    if found.helps:
        return (
            f"The stack helps: steps of a {found.left_out_by} that had no part are predicted better with it."
        )
    return f"The stack does NOT help: steps of a {found.left_out_by} that had no part are predicted no better with it."
