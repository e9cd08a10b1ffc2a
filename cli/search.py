"""`kernelcast search`: the fastest layouts of a model on a number of devices."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, get_args

import click

from kernelcast.cli import completion, option
from kernelcast.cli.estimate_text import headline, warnings_text
from kernelcast.cli.fields import (
    check_effect,
    chosen_bundle,
    field_options,
    given_fields,
    given_words,
    hardware_names,
    memory_options,
    print_notes,
    rank_by_option,
)
from kernelcast.cli.frameworks import as_option, check_alone, choose_for, layout_words, print_layout
from kernelcast.cli.intent_text import training_text
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import (
    Facts,
    Shown,
    command_line,
    is_quiet,
    print_next,
    title,
    typed_again,
    warning,
)
from kernelcast.runtime import DataError, Estimator, Parallelism, UsageError
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.errors import needs_extra, shown
from kernelcast.runtime.estimate.doubts import LEAST_SHARE
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.request.field_types import option_name
from kernelcast.runtime.request.fields import DATA, DEGREES, EXPERT_DEGREES, REQUEST, SEARCH, SHARED, RankBy
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import LIMITS, USUAL, few_values, read_question
from kernelcast.runtime.search.result import Answer, SearchResult
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.sweep import Report
from kernelcast.runtime.step.chunks import counts_text
from kernelcast.runtime.views.formatting import gibibytes, in_days, percent, rate, seconds, three_digits

_LONG_S = 3.0

# Options of a prediction of the best layout, in addition to the layout.
_AS_PREDICTED = (
    "bundle", "hardware", "model_name", "sequence_length", "gpus_per_node", "fabric", "framework", "stack", "timeline",
    "bucket_entries", "no_calibration",
)  # fmt: skip

_SEQUENCE = {"true": (True,), "false": (False,), "both": (False, True)}


def _sequence(
    _context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[bool, ...] | None:
    found = None if text is None else _SEQUENCE.get(text)
    if text is not None and found is None:
        raise UsageError(f"{parameter.opts[0]} is {shown(text)}, expected true, false or both")
    return found


def _limit_options(function: option.F) -> option.F:
    """One option for each field of a layout: its allowed values."""
    for name, field in reversed(list(LIMITS.items())):
        if name == "sequence_parallel":
            kind: dict[str, Any] = {
                "is_flag": False,
                "flag_value": "true",
                "metavar": f"[{'|'.join(_SEQUENCE)}]",
                "callback": _sequence,
                "shell_complete": completion.names(lambda: _SEQUENCE),
                "help": f"{field.help}  [default: both]",
            }
        else:
            values = ",".join(map(str, few_values(field)))
            default = USUAL.get(name) or values or "any"
            kind = {"metavar": "LIST" if values else "NUMBERS", "help": f"{field.help}  [default: {default}]"}
        for old in field.old:
            function = click.option(option_name(old), old, hidden=True, **kind)(function)
        # A question names the field `schedules`; on the command line it is `--schedule`, as everywhere.
        function = click.option(option_name(field.name), name, **kind)(function)
    return function


@click.command("search")
@option.bundle
@option.model
@field_options(REQUEST["sequence_length"])
@option.text("--gpus", "Number of devices, all of them used: 64, or 64,128.", required=True, metavar="LIST")
@field_options(
    REQUEST["global_batch"],
    REQUEST["gpus_per_node"],
    REQUEST["fabric"],
    REQUEST["stack"],
    REQUEST["framework"],
    required=("global_batch",),
)
@memory_options(any_size=True)
@field_options(REQUEST["timeline"])
@rank_by_option(get_args(RankBy), SEARCH["rank_by"].help)
@field_options(*DATA.values())
@_limit_options
@field_options(*SHARED.values(), REQUEST["bucket_entries"], SEARCH["top"], SEARCH["fit_probability"])
@option.no_calibration
@option.flag("--pareto", "Also show the Pareto front of time and memory.")
@as_option
@option.warnings
@option.text("--dask", "scheduler", "Distribute the search over a Dask cluster.", metavar="ADDRESS")
@option.json
def search_(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    sequence_length: int | None,
    no_calibration: bool,
    pareto: bool,
    printed_as: str | None,
    lists_warnings: bool,
    scheduler: str | None,
    **options: Any,
) -> Shown:
    """Find the fastest layouts: evaluate all valid layouts, and drop layouts that exceed the memory.

    \b
    kernelcast search --bundle here.kcast --model llama-2-7b --gpus 64 --global-batch 512
    """
    check_alone("as_json", "pareto")
    path = chosen_bundle(bundle, hardware)
    given = given_fields(options, any_size=True)
    wish = Wish.of_data({name: given.pop(name, None) for name in DATA})
    fabric = find_fabric(given.pop("fabric")) if "fabric" in given else None
    chosen = choose_for(given, printed_as, hardware=hardware_names(hardware), is_open=True)
    found = find_model(model_name, sequence_length=sequence_length).require_length()
    print_notes(found)
    estimator = Estimator.load(path, calibrated=not no_calibration, stack=chosen.stack)
    question = read_question(chosen.values, model=found.model, bundle=estimator.bundle, fabric=fabric)
    check_effect(options, Parallelism.unchecked(**question.space.common), is_searched=True)
    data = wish.data(question.space.sample_length)
    if not (pareto or click.get_current_context().params["as_json"]):
        question = replace(question, front=False)
    result = _searched_by(scheduler, estimator, question)
    best = result.best

    def show() -> None:
        if best is None:
            return
        if printed_as is not None:
            print_layout(printed_as, best.estimate)
            return
        more = {"in_samples": wish.samples is not None, "lists_warnings": lists_warnings}
        click.echo(render(result, pareto=pareto, data=data, **more))
        layout = layout_words(best.parallelism, also=() if chosen.stack is None else chosen.stack.options)
        print_next(
            (command_line("predict", *given_words(*_AS_PREDICTED), *layout), "components of the best layout"),
            (typed_again("--as", "megatron-lm"), "the best layout as Megatron-LM arguments"),
        )

    error = None if best is not None else DataError(result.why_nothing())
    return Shown(lambda: found.with_notes(result.to_dict(**(data or {}))), show, error=error)


def _searched_by(scheduler: str | None, estimator: Estimator, question: Question) -> SearchResult:
    """The search in this process, or on the Dask cluster of `scheduler`; a long one shows its progress."""
    with ExitStack() as stack:
        report = _late_progress(stack)
        if scheduler is None:
            return search(estimator, question, report=report)
        with needs_extra("--dask", "dask"):
            from kernelcast.cli.search_dask import search_on_dask
        return search_on_dask(scheduler, estimator, question, report=report)


def _late_progress(stack: ExitStack) -> Report:
    """Shows progress of long searches, if rich is installed."""
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


def render(
    result: SearchResult,
    *,
    pareto: bool,
    data: Mapping[str, Any] | None = None,
    in_samples: bool,
    lists_warnings: bool,
) -> str:
    """A result as text: the best layout, the table of layouts, the Pareto front if requested, counts, warnings."""
    best = result.best
    if best is None:
        return result.why_nothing()
    space = result.question.space
    further: Facts = {
        "given": f"{space.global_batch} samples per update; {_limit(result)}",
        "searched": _searched(result),
    }
    at_front: Facts = {}
    if data is not None:
        run = training(best.estimate, **data)
        at_front["training"] = training_text(run, in_samples=in_samples)
    sections = [
        headline(
            best.estimate, at_front=at_front, further=None if is_quiet() else further, is_brief=is_quiet()
        ),
        title("Best layouts", _table(result.top, data)),
    ]
    if pareto:
        sections.append(title("Pareto front of time and memory", _table(result.front, data)))
    if result.counts.unanswered:
        problems = "; ".join(result.problems)
        sections.append(warning(f"{result.counts.unanswered:,} layouts could not be predicted: {problems}"))
    if not is_quiet() and (lines := warnings_text(best.estimate, each=lists_warnings)):
        sections.append(f"Warnings of the best layout:\n{lines}")
    return "\n\n".join(sections)


_EVERY_DEGREE = (*DEGREES, *EXPERT_DEGREES)
_ALWAYS = ("pp", "tp", "dp")
# Left out first if a table is too wide: columns that others imply, or that rarely differ.
_OPTIONAL = ("TFLOP/s per device", "layers", "doubtful", "tokens/s per device", "MFU", "seq.", "ZeRO")


def _table(answers: tuple[Answer, ...], data: Mapping[str, Any] | None) -> str:
    """A row per layout. Values that all layouts share stand above the table; degrees that are always 1 are left out."""
    columns = _columns(answers, data)
    common = [
        name for name in ("recompute", "ZeRO", "seq.") if len(answers) > 1 and len(set(columns[name])) == 1
    ]
    unused = [name for name in _EVERY_DEGREE if name not in _ALWAYS and set(columns[name]) == {"1"}]
    shown = {name: cells for name, cells in columns.items() if name not in (*common, *unused)}
    names = {"seq.": "sequence parallel"}
    line = ", ".join(f"{names.get(name, name)} {columns[name][0]}" for name in common)
    table = text_table(list(shown), list(zip(*shown.values(), strict=True)), optional=_OPTIONAL)
    return f"all with {line}\n{table}" if line else table


def _columns(answers: tuple[Answer, ...], data: Mapping[str, Any] | None) -> dict[str, list[str]]:
    layouts, estimates = [one.parallelism for one in answers], [one.estimate for one in answers]
    like = min(one.step_time_s for one in answers)
    days = {} if data is None else {"training": [in_days(training(one, **data).days) for one in estimates]}
    return {
        "": [str(rank) for rank, _ in enumerate(answers, start=1)],
        "step": [seconds(one.step_time_s, like=like) for one in answers],
        **days,
        "tokens/s per device": [rate(one.tokens_per_s_per_gpu) for one in answers],
        "TFLOP/s per device": [three_digits(one.flops_per_s_per_device / 1e12) for one in estimates],
        "MFU": [percent(one.mfu) for one in estimates],
        "memory": [gibibytes(one.memory_bytes) for one in answers],
        **{name: [str(getattr(one, name)) for one in layouts] for name in _EVERY_DEGREE},
        "micro-batch": [f"{one.micro_batch} × {one.micro_batches}" for one in layouts],
        "schedule": [
            f"{one.schedule} × {one.virtual_stages}" if one.virtual_stages > 1 else one.schedule
            for one in layouts
        ],
        "layers": [counts_text(one.layer_counts) for one in estimates],
        "recompute": [one.recompute for one in layouts],
        "ZeRO": [str(one.zero) for one in layouts],
        "seq.": ["yes" if one.sequence_parallel else "no" for one in layouts],
        "doubtful": [
            percent(share) if (share := one.doubtful_share) >= LEAST_SHARE else "" for one in estimates
        ],
    }


def _limit(result: SearchResult) -> str:
    memory, reserved = result.question.gpu_memory_bytes, result.question.reserved_memory_bytes
    if memory is None:
        return "memory not limited"
    return f"devices of {gibibytes(memory)}" + (f", {gibibytes(reserved)} of it reserved" if reserved else "")


def _searched(result: SearchResult) -> str:
    counts = result.counts
    looked = f"{counts.evaluated:,} evaluated"
    if result.question.timeline == "simulate":
        looked += f" ({counts.simulated:,} simulated, {counts.pruned:,} pruned by a lower bound)"
    return f"{counts.layouts:,} layouts: {looked}, {counts.out_of_memory:,} out of memory; {result.seconds:.1f} s"
