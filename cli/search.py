"""`kernelcast search`: the fastest layouts of a model on a number of devices."""

import time
from contextlib import ExitStack
from typing import Any

import click

from kernelcast.cli.frameworks import as_option, check_alone, print_layout
from kernelcast.cli.options import (
    F,
    RenamedOption,
    bundle_option,
    chosen_bundle,
    field_options,
    memory_options,
    model_option,
    no_calibration_option,
    print_notes,
    take_memory,
)
from kernelcast.cli.sizes import in_days, in_gib
from kernelcast.cli.tables import seconds_precisely, text_table
from kernelcast.runtime import DataError, Estimator, UsageError
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.estimate.doubts import LEAST_SHARE, warning_lines
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.request.fields import (
    DEGREES,
    EXPERT_DEGREES,
    REQUEST,
    SEARCH,
    SHARED,
    TOKENS,
    option_name,
)
from kernelcast.runtime.request.kinds import with_unit
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.search import Answer, Question, SearchResult, search
from kernelcast.runtime.search.read_question import LIMITS, USUAL, few_values, read_question
from kernelcast.runtime.search.result import SEARCH_FORMAT
from kernelcast.runtime.search.sweep import Report
from kernelcast.runtime.stack import find_stack
from kernelcast.runtime.step.partition import counts_text
from kernelcast.runtime.views.formatting import percent, rate, three_digits

_LONG_S = 3.0

_SEQUENCE = {"off": (False,), "on": (True,), "both": (False, True)}


def _limit_options(function: F) -> F:
    """One option for each field of a layout: the values that are allowed."""
    for name, field in reversed(list(LIMITS.items())):
        if name == "sequence_parallel":
            kind: dict[str, Any] = {
                "type": click.Choice(list(_SEQUENCE)),
                "help": f"{field.help}  [default: both]",
            }
        else:
            values = ",".join(map(str, few_values(field)))
            default = values or USUAL.get(name, "any")
            kind = {"metavar": "LIST" if values else "NUMBERS", "help": f"{field.help}  [default: {default}]"}
        old = [option_name(one) for one in field.old]
        function = click.option(option_name(name), name, cls=RenamedOption, old=old, **kind)(function)
    return function


@click.command("search")
@bundle_option
@model_option
@field_options(REQUEST["sequence_length"])
@click.option("--gpus", required=True, metavar="LIST", help="Devices, all of which are used: 64, or 64,128.")
@field_options(
    REQUEST["global_batch"],
    REQUEST["gpus_per_node"],
    REQUEST["fabric"],
    REQUEST["stack"],
    required=("global_batch",),
)
@memory_options(any_size=True)
@field_options(REQUEST["timeline"], SEARCH["rank_by"], TOKENS)
@_limit_options
@field_options(*SHARED.values(), REQUEST["bucket_entries"], SEARCH["top"])
@no_calibration_option
@click.option("--pareto", is_flag=True, help="Show also the Pareto front of time against memory.")
@as_option
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON ({SEARCH_FORMAT}).")
@click.option("--dask", "scheduler", metavar="ADDRESS", help="Share the work over a Dask cluster's workers.")
def search_(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    sequence_length: int | None,
    no_calibration: bool,
    pareto: bool,
    framework: str | None,
    as_json: bool,
    scheduler: str | None,
    tokens: int | None,
    **options: Any,
) -> None:
    """Find the fastest layouts: every valid one is evaluated, those that do not fit into memory are left out.

    \b
    kernelcast search --bundle here.kcast --model llama-2-7b --gpus 64 --global-batch 512
    """
    check_alone(framework, as_json=as_json, pareto=pareto)
    path = chosen_bundle(bundle, hardware)
    memory = take_memory(options, any_size=True)
    given = {name: value for name, value in options.items() if value is not None} | memory
    if "sequence_parallel" in given:
        given["sequence_parallel"] = _SEQUENCE[given["sequence_parallel"]]
    fabric = find_fabric(given.pop("fabric")) if "fabric" in given else None
    software = find_stack(given.pop("stack")) if "stack" in given else None
    given = given if software is None else software.fill(given)
    found = find_model(model_name, sequence_length=sequence_length).require_length()
    print_notes(found)
    estimator = Estimator.load(path, calibrated=not no_calibration, stack=software)
    question = read_question(given, model=found.model, bundle=estimator.bundle, fabric=fabric)
    with ExitStack() as stack:
        report = _late_progress(stack)
        if scheduler is None:
            result = search(estimator, question, report=report)
        else:
            result = _on_dask(scheduler, estimator, question, report)
    if as_json:
        click.echo(json_text(found.with_notes(result.to_dict(tokens=tokens)), indent=2))
    if result.best is None:
        raise DataError(result.why_nothing())
    if framework is not None:
        print_layout(framework, result.best.estimate)
    elif not as_json:
        click.echo(render(result, pareto=pareto, tokens=tokens))


def _late_progress(stack: ExitStack) -> Report:
    """Shows progress once a search takes long, where rich is installed; most are over before that."""
    begin = time.monotonic()
    shown: Report | None = None

    def report(done: int, total: int, what: str) -> None:
        nonlocal shown
        if shown is None and time.monotonic() - begin > _LONG_S:
            try:
                from kernelcast.cli.progress import progress
            except ModuleNotFoundError:
                return
            shown = stack.enter_context(progress("search"))
        if shown is not None:
            shown(done, total, what)

    return report


def _on_dask(scheduler: str, estimator: Estimator, question: Question, report: Report) -> SearchResult:
    try:
        from kernelcast.cli.search_dask import search_on_dask
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kernelcast"):
            raise
        raise UsageError(
            f"--dask needs the package {error.name}, which is not installed; "
            "expected: pip install 'kernelcast[dask]'"
        ) from error
    return search_on_dask(scheduler, estimator, question, report=report)


def render(result: SearchResult, *, pareto: bool, tokens: int | None = None) -> str:
    """A result as readable text: the best layouts, the front if asked for, what was looked at, warnings."""
    best = result.best
    if best is None:
        return result.why_nothing()
    space = result.question.space
    sections = [
        f"best of {result.counts.layouts:,} layouts of {space.model.name}, {space.global_batch} samples per update: "
        f"step {seconds_precisely(best.step_time_s)}, {rate(best.tokens_per_s_per_gpu)} tokens/s per device",
        _table(result.top, tokens),
    ]
    if pareto:
        sections.append("Pareto front of time and memory\n" + _table(result.front, tokens))
    return "\n\n".join([*sections, "\n".join(_notes(result))])


_EVERY_DEGREE = (*DEGREES, *EXPERT_DEGREES)
_ALWAYS = ("pp", "tp", "dp")
_HEADERS = (
    "", "step", "tokens/s/device", "TFLOP/s/device", "MFU", "GiB", *_EVERY_DEGREE, "micro-batch", "schedule", "layers",
    "recompute", "ZeRO", "seq.", "warnings",
)  # fmt: skip


def _table(answers: tuple[Answer, ...], tokens: int | None) -> str:
    rows = _rows(answers)
    # Further degrees are shown where one of the layouts has them.
    unused = {
        name for name in _EVERY_DEGREE if all(getattr(one.parallelism, name) == 1 for one in answers)
    } - set(_ALWAYS)
    columns = [index for index, header in enumerate(_HEADERS) if header not in unused]
    headers, rows = (
        [_HEADERS[index] for index in columns],
        [[row[index] for index in columns] for row in rows],
    )
    if tokens is not None:
        headers.insert(2, f"days for {with_unit(tokens)}")
        for row, answer in zip(rows, answers, strict=True):
            row.insert(2, in_days(training(answer.estimate, tokens).days))
    return text_table(headers, rows)


def _rows(answers: tuple[Answer, ...]) -> list[list[str]]:
    rows = []
    for rank, answer in enumerate(answers, start=1):
        one = answer.parallelism
        rows.append(
            [
                str(rank),
                seconds_precisely(answer.step_time_s),
                rate(answer.tokens_per_s_per_gpu),
                three_digits(answer.estimate.flops_per_s_per_device / 1e12),
                percent(answer.estimate.mfu),
                in_gib(answer.memory_bytes),
                *(str(getattr(one, name)) for name in _EVERY_DEGREE),
                f"{one.micro_batch} × {one.micro_batches}",
                f"{one.schedule} × {one.virtual_stages}" if one.virtual_stages > 1 else one.schedule,
                counts_text(answer.estimate.layer_counts),
                one.recompute,
                str(one.zero),
                "yes" if one.sequence_parallel else "no",
                _doubtful(answer.estimate.doubtful_share),
            ]
        )
    return rows


def _doubtful(share: float) -> str:
    return percent(share) if share >= LEAST_SHARE else ""


def _notes(result: SearchResult) -> list[str]:
    counts, question = result.counts, result.question
    memory = question.gpu_memory_bytes
    limit = "memory not limited" if memory is None else f"devices of {in_gib(memory)} GiB"
    if memory is not None and question.reserved_memory_bytes:
        limit += f", {in_gib(question.reserved_memory_bytes)} GiB of it reserved"
    looked = f"{counts.evaluated:,} evaluated"
    if question.timeline == "simulate":
        looked += f" ({counts.simulated:,} simulated, {counts.pruned:,} ruled out by a lower bound)"
    notes = [
        f"{looked}, {counts.out_of_memory:,} out of memory, {result.seconds:.1f} s; "
        f"{question.space.gpus_per_node} devices per node, {limit}"
    ]
    if counts.unanswered:
        notes.append(f"warning: {counts.unanswered:,} layouts have no answer: {'; '.join(result.problems)}")
    best = result.best
    calibration = None if best is None else best.estimate.provenance.calibration
    if best is not None and best.estimate.provenance.stack is not None:
        notes.append(f"stack: {best.estimate.provenance.stack.summary}")
    if calibration is not None:
        notes.append(f"calibration: {calibration.summary}")
    lines = [] if best is None else warning_lines(best.estimate.doubts)
    return [*notes, *(f"warning: best layout: {line}" for line in lines)]
