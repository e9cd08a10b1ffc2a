"""`kernelcast search`: the fastest layouts of a model on so many devices."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, get_args

import click

from kernelcast.cli.options import F
from kernelcast.cli.sizes import in_gib, parse_size
from kernelcast.cli.tables import seconds_precisely, text_table
from kernelcast.runtime import DataError, Estimator, UsageError
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.search import Answer, NumberSet, Question, SearchResult, Space, search
from kernelcast.runtime.search.defaults import usual_gpu_memory_bytes, usual_gpus_per_node
from kernelcast.runtime.search.layouts import RECOMPUTE, SCHEDULES
from kernelcast.runtime.search.question import RankBy
from kernelcast.runtime.search.sweep import Report
from kernelcast.runtime.views.formatting import rate

SHOWN_WARNINGS = 8
_LONG_S = 3.0

_SEQUENCE = {"off": (False,), "on": (True,), "both": (False, True)}


def _limit(option: str, help_text: str) -> Callable[[F], F]:
    return click.option(f"--{option}", metavar="NUMBERS", help=help_text)


def _choices(option: str, allowed: tuple[Any, ...], help_text: str) -> Callable[[F], F]:
    everything = ",".join(map(str, allowed))
    return click.option(f"--{option}", metavar="LIST", default=everything, show_default=True, help=help_text)


@click.command("search")
@click.option("--bundle", required=True, metavar="FILE", help="Bundle of regressors (.kcast).")
@click.option(
    "--model", "model_name", required=True, metavar="MODEL", help="A built-in model's name, or a model file."
)
@click.option("--sequence-length", type=int, help="Tokens of a sequence.  [default: the model's]")
@click.option("--gpus", required=True, metavar="LIST", help="Devices, all of which are used: 64, or 64,128.")
@click.option("--global-batch", type=int, required=True, help="Samples per update.")
@click.option("--gpus-per-node", type=int, help="Devices per node.  [default: the bundle's, else one node]")
@click.option(
    "--gpu-memory", metavar="SIZE", help="Memory of a device: 80GB, 40GiB, any.  [default: the bundle's]"
)
@click.option(
    "--timeline",
    type=click.Choice(["simulate", "closed-form"]),
    default="simulate",
    show_default=True,
    help="Exact simulation of the schedule, or the paper's eq. 7.",
)
@click.option(
    "--rank-by",
    type=click.Choice(list(get_args(RankBy))),
    default="step-time",
    show_default=True,
    help="Time of a step, or tokens per second and device.",
)
@_limit("pp", "Pipeline stages that are allowed: numbers and ranges, 1,2,4-8.  [default: any]")
@_limit("tp", "Tensor parallel degrees.  [default: within a node]")
@_limit("dp", "Data parallel degrees.  [default: any]")
@_limit("micro-batch", "Samples per micro-batch.  [default: any]")
@_limit("micro-batches", "Micro-batches per update.  [default: any]")
@_limit("virtual-stages", "Chunks per device, interleaved.  [default: 2-8]")
@_choices("schedules", SCHEDULES, "Pipeline schedules.")
@_choices("recompute", RECOMPUTE, "Activation recomputation.")
@_choices("zero", (0, 1, 2, 3), "ZeRO stages.")
@click.option(
    "--sequence-parallel",
    type=click.Choice(list(_SEQUENCE)),
    default="both",
    show_default=True,
    help="Sequence parallelism.",
)
@click.option(
    "--bucket-entries",
    type=int,
    default=DEFAULT_BUCKET_ENTRIES,
    show_default=True,
    help="Entries of the framework's bucket for gradient and parameter collectives.",
)
@click.option("--no-calibration", is_flag=True, help="Leave out the bundle's correction by measured steps.")
@click.option("--top", type=int, default=10, show_default=True, help="How many of the best to show.")
@click.option("--pareto", is_flag=True, help="Show also the Pareto front of time against memory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (kernelcast.search/1).")
@click.option("--dask", "scheduler", metavar="ADDRESS", help="Share the work over a Dask cluster's workers.")
def search_(
    *,
    bundle: str,
    model_name: str,
    sequence_length: int | None,
    gpus: str,
    global_batch: int,
    gpus_per_node: int | None,
    gpu_memory: str | None,
    no_calibration: bool,
    pareto: bool,
    as_json: bool,
    scheduler: str | None,
    sequence_parallel: str,
    **options: Any,
) -> None:
    """Find the fastest layouts: every valid one is evaluated, those that do not fit into memory are left out.

    \b
    kernelcast search --bundle here.kcast --model llama-2-7b --gpus 64 --global-batch 512
    """
    sizes = _numbers("gpus", gpus)
    memory_bytes = None if gpu_memory in (None, "any") else parse_size(gpu_memory, name="gpu_memory")
    limits = {
        name: NumberSet.parse(options[name], name=name)
        for name in ("pp", "tp", "dp", "micro_batch", "micro_batches", "virtual_stages")
        if options[name] is not None
    }
    model = load_model(model_name, sequence_length=sequence_length)
    estimator = Estimator.load(bundle, calibrated=not no_calibration)
    if gpus_per_node is None:
        gpus_per_node = usual_gpus_per_node(estimator.bundle, sizes)
    if gpu_memory is None:
        memory_bytes = usual_gpu_memory_bytes(estimator.bundle)
    question = Question(
        space=Space(
            model=model,
            gpus=sizes,
            global_batch=global_batch,
            gpus_per_node=gpus_per_node,
            schedules=_listed(options["schedules"]),
            recompute=_listed(options["recompute"]),
            zero=_numbers("zero", options["zero"]),
            sequence_parallel=_SEQUENCE[sequence_parallel],
            **limits,
        ),
        timeline=options["timeline"],
        rank_by=options["rank_by"],
        gpu_memory_bytes=memory_bytes,
        top=options["top"],
        bucket_entries=options["bucket_entries"],
    )
    with ExitStack() as stack:
        report = _late_progress(stack)
        if scheduler is None:
            result = search(estimator, question, report=report)
        else:
            result = _on_dask(scheduler, bundle, estimator, question, report)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    if result.best is None:
        raise DataError(result.why_nothing())
    if not as_json:
        click.echo(render(result, pareto=pareto))


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


def _on_dask(
    scheduler: str, bundle: str, estimator: Estimator, question: Question, report: Report
) -> SearchResult:
    try:
        from kernelcast.cli.search_dask import search_on_dask
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kernelcast"):
            raise
        raise UsageError(
            f"--dask needs the package {error.name}, which is not installed; "
            "expected: pip install 'kernelcast[dask]'"
        ) from error
    return search_on_dask(scheduler, bundle, estimator, question, report=report)


def _listed(text: str) -> tuple[Any, ...]:
    return tuple(part.strip() for part in text.split(","))


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is {text!r:.80}, expected whole numbers separated by commas") from None


def render(result: SearchResult, *, pareto: bool) -> str:
    """A result as readable text: the best layouts, the front if asked for, what was looked at, warnings."""
    best = result.best
    if best is None:
        return result.why_nothing()
    space = result.question.space
    sections = [
        f"best of {result.counts.layouts:,} layouts of {space.model.name}, {space.global_batch} samples per update: "
        f"step {seconds_precisely(best.step_time_s)}, {rate(best.tokens_per_s_per_gpu)} tokens/s per device",
        text_table(_HEADERS, _rows(result.top)),
    ]
    if pareto:
        sections.append("Pareto front of time and memory\n" + text_table(_HEADERS, _rows(result.front)))
    return "\n\n".join([*sections, "\n".join(_notes(result))])


_HEADERS = (
    "", "step", "tokens/s/device", "GiB", "pp", "tp", "dp", "micro-batch", "schedule", "recompute", "ZeRO", "seq.",
    "warnings",
)  # fmt: skip


def _rows(answers: tuple[Answer, ...]) -> list[list[str]]:
    rows = []
    for rank, answer in enumerate(answers, start=1):
        one = answer.parallelism
        rows.append(
            [
                str(rank),
                seconds_precisely(answer.step_time_s),
                rate(answer.tokens_per_s_per_gpu),
                in_gib(answer.memory_bytes),
                str(one.pp),
                str(one.tp),
                str(one.dp),
                f"{one.micro_batch} × {one.micro_batches}",
                f"{one.schedule} × {one.virtual_stages}" if one.virtual_stages > 1 else one.schedule,
                one.recompute,
                str(one.zero),
                "yes" if one.sequence_parallel else "no",
                str(len(answer.estimate.warnings) or ""),
            ]
        )
    return rows


def _notes(result: SearchResult) -> list[str]:
    counts, question = result.counts, result.question
    memory = question.gpu_memory_bytes
    limit = "memory not limited" if memory is None else f"devices of {in_gib(memory)} GiB"
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
    if calibration is not None:
        notes.append(f"calibration: {calibration.summary}")
    warnings = () if best is None else best.estimate.warnings
    notes += [f"warning: best layout: {warning}" for warning in warnings[:SHOWN_WARNINGS]]
    if len(warnings) > SHOWN_WARNINGS:
        notes.append(f"warning: {len(warnings) - SHOWN_WARNINGS} more (--json has all)")
    return notes
