"""`kernelcast stack`: list and fit."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import chosen_bundle
from kernelcast.cli.tables import print_table, signed_percent, table_of, text_table
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import UsageError, one_line, shown
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.request.field_types import read_decimal
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.stack import NAMES, Stack, shipped_stacks, stack_named, stack_toml
from kernelcast.runtime.views.formatting import percent

if TYPE_CHECKING:
    from kernelcast.validate.stack_runs import FittedStack, StackScore
    from kernelcast.validate.steps import Score

FORMAT = "kernelcast.stack/1"
_KERNELS = LAYOUT["attention_kernel"].kind.values[1:]
_NORMAL_95 = 1.6448536269514722


@click.group()
def stack() -> None:
    """Fit and list software stacks: how training software changes the sum of operator times.

    A stack has a factor for attention, a factor for all other compute, and the exposed share of overlapped collectives.
    Fitted once to a few measured steps, it applies to any hardware and fabric: predict, search, walltime, serve and
    validate steps take it as --stack.

    \b
    kernelcast stack list
    kernelcast stack fit site.toml -o ours.toml
    kernelcast predict --hardware h100-sxm --model llama-2-7b --dp 8 --zero 3 --micro-batch 1 --global-batch 64 \\
      --stack ours.toml
    """


@stack.command("list", short_help="List the software stacks that ship.")
@option.json
def list_() -> Shown:
    """List the software stacks that ship, with 90 % intervals of their factors and mean absolute errors.

    \b
    kernelcast stack list
    """
    found = [stack_named(name) for name in shipped_stacks()]
    return Shown([asdict(one) for one in found], lambda: _show_list(found))


def _show_list(found: list[Stack]) -> None:
    print_table(
        [(one, _factors(one)) for one in found],
        ("name", lambda row: row[0].name),
        ("attention", lambda row: row[1][0]),
        ("other compute", lambda row: row[1][1]),
        ("exposed share", lambda row: row[1][2]),
        ("residual", lambda row: percent(row[0].residual)),
        ("steps", lambda row: f"{row[0].steps or '-'}"),
        ("before", lambda row: percent(row[0].error_before)),
        ("held out", lambda row: percent(row[0].error_left_out)),
    )
    for one in found:
        say(f"\n{one.name}: {one.software}")


def _factors(one: Stack) -> list[str]:
    """The factors, each with its 90 % interval if it has one."""
    texts = []
    for index, name in enumerate(NAMES):
        value, log_variance = getattr(one, name), one.log_covariance[index][index]
        most = 1.0 if name == "exposed_share" else math.inf
        width = math.exp(_NORMAL_95 * math.sqrt(log_variance))
        interval = f" ({value / width:.3f} to {min(most, value * width):.3f})" if log_variance else ""
        texts.append(f"{value:.3f}{interval}")
    return texts


@stack.command(short_help="Fit a stack's factors to measured steps.")
@click.argument("paths", metavar="RUNS...", nargs=-1, required=True, type=option.FILE)
@option.bundle
@option.runs_fabric
@option.several(
    "--fix",
    "fixed",
    f"Set a factor instead of fitting it ({', '.join(NAMES)}); repeatable.",
    metavar="FACTOR=VALUE",
)
@option.text("--name", "Name of the stack.  [default: the output file's]", default="", metavar="NAME")
@option.text(
    "--software",
    "Description of the software.  [default: from RUNS]",
    default="",
    metavar="TEXT",
)
@option.choice(_KERNELS, "--kernel", "Kernel of fused attention in the steps.  [default: not stated]")
@option.file("--output", "-o", "Write the stack (TOML).  [default: only report]")
@option.json
def fit(
    *,
    paths: tuple[Path, ...],
    bundle: str | None,
    hardware: str | None,
    fabric: str,
    fixed: tuple[str, ...],
    name: str,
    output: Path | None,
    **asked: Any,
) -> Shown:
    """Fit the factors of a software stack to measured steps.

    RUNS are files of measured steps (TOML, docs/validation.md); each names the hardware and fabric of its steps, which
    --hardware, --bundle and --fabric override. Errors are cross-validated over models (over layouts, if all steps are
    of one model).

    \b
    kernelcast stack fit site.toml -o ours.toml
    kernelcast stack fit site.toml --fix attention=1
    """
    from kernelcast.validate.stack_runs import fit_stack  # imported here: list does without it

    given = bundle is not None or hardware is not None
    found = fit_stack(
        paths,
        name=name or (output.stem if output is not None else "fitted"),
        fixed=dict(map(_fixed, fixed)),
        bundle=chosen_bundle(bundle, hardware) if given else "",
        fabric=fabric,
        **asked,
    )
    if output is not None:
        write_pieces(output, [stack_toml(found.stack)])
    return Shown(_document(found), lambda: say(_text(found)), written=output)


def _fixed(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    value = read_decimal(number)
    if value is None:
        raise UsageError(f"--fix is {shown(text)}, expected a factor and its value, such as attention=1")
    return name, float(value)


def _document(found: "FittedStack") -> dict[str, object]:
    return {
        "format": FORMAT,
        **plain_values(found, "stack", "helps", "left_out_by", "before", "after"),
        "scores": [plain_values(one, "before", "left_out") for one in found.scores],
        "left_out_steps": [{"runs_file": name, **step.to_dict()} for name, step in found.left_out_steps],
        "unpredicted": [{"label": label, "reason": reason} for label, reason in found.unpredicted],
    }


def _text(found: "FittedStack") -> str:
    stack = found.stack
    factors = [
        (factor, text, "set" if factor in stack.fixed else "fitted")
        for factor, text in zip(NAMES, _factors(stack), strict=True)
    ]
    lines = [f"{one_line(label)}: not used, {one_line(why)}" for label, why in found.unpredicted]
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


def _left_out(by: str, scores: "tuple[StackScore, ...]") -> str:
    return table_of(
        scores,
        (by, lambda one: one.before.model),
        ("steps", lambda one: f"{one.before.steps}"),
        ("error before", lambda one: signed_percent(one.before.mean_error or 0)),
        ("absolute", lambda one: percent(one.before.mean_abs_error or 0)),
        ("in interval", lambda one: _inside(one.before)),
        ("cross-validated", lambda one: signed_percent(one.left_out.mean_error or 0)),
        ("absolute", lambda one: percent(one.left_out.mean_abs_error or 0)),
        ("in interval", lambda one: _inside(one.left_out)),
        ("half-width", lambda one: percent(one.left_out.median_half_width or 0)),
    )


def _inside(score: "Score") -> str:
    return f"{score.inside} of {score.predicted}"


def _verdict(found: "FittedStack") -> str:
    if found.helps is None:
        return "With one layout cross-validation is not possible: whether the stack helps with others is not known."
    if found.helps:
        return f"The stack helps: it reduces the error, cross-validated by {found.left_out_by}."
    return f"The stack does NOT help: it does not reduce the error, cross-validated by {found.left_out_by}."
