"""`kernelcast predict`: the time of a training step from a bundle, a model and a layout."""

import json
import re
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.estimate_files import EstimateFiles
from kernelcast.cli.estimate_text import headline, render
from kernelcast.cli.explain import explain, render_explanations
from kernelcast.cli.sizes import parse_size
from kernelcast.runtime import Cluster, Estimator, Parallelism, UsageError, load_model
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES, Recompute, Schedule
from kernelcast.runtime.request.models import BUILT_IN
from kernelcast.runtime.step.timeline_kinds import TimelineKind

_COUNTS = re.compile(r"\d{1,9}(,\d{1,9})*")


@click.command("predict")
@click.option("--bundle", required=True, metavar="FILE", help="Bundle of regressors (.kcast).")
@click.option(
    "--model",
    "model_name",
    required=True,
    metavar="NAME|FILE",
    help=f"Model: a name ({', '.join(BUILT_IN)}), a .toml or .json file, or a Hugging Face config.json.",
)
@click.option("--sequence-length", type=int, help="Tokens of a sequence.  [default: the model's]")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--tp", type=int, default=1, show_default=True, help="Model (tensor) parallel degree.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data parallel degree.")
@click.option("--micro-batch", type=int, required=True, help="Samples per micro-batch.")
@click.option("--micro-batches", type=int, help="Micro-batches per update (or --global-batch).")
@click.option("--global-batch", type=int, help="Samples per update; gives the micro-batches.")
@click.option("--gpus-per-node", type=int, help="Devices per node.  [default: the bundle's, else one node]")
@click.option(
    "--schedule",
    type=click.Choice(["gpipe", "1f1b", "interleaved", "zero_bubble"]),
    default="1f1b",
    show_default=True,
    help="Order of forward and backward passes (zero_bubble is ZB-H1).",
)
@click.option(
    "--virtual-stages",
    type=int,
    default=1,
    show_default=True,
    help="Chunks per stage of an interleaved schedule.",
)
@click.option(
    "--stages", metavar="N,N,…", help="Encoders of each stage (or chunk) by hand.  [default: spread evenly]"
)
@click.option(
    "--zero", type=int, default=1, show_default=True, help="What data parallelism shards: ZeRO 0 to 3 (FSDP)."
)
@click.option("--sequence-parallel", is_flag=True, help="Cut norms and residuals along the sequence.")
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
    help="Activation recomputation.",
)
@click.option(
    "--bucket-entries",
    type=int,
    default=DEFAULT_BUCKET_ENTRIES,
    show_default=True,
    help="Entries of the framework's bucket for gradient and parameter collectives.",
)
@click.option(
    "--timeline",
    type=click.Choice(["simulate", "closed-form"]),
    default="simulate",
    show_default=True,
    help="Exact simulation of the schedule, or the paper's eq. 7.",
)
@click.option(
    "--gpu-memory", metavar="SIZE", help="Memory of a device, 80GB or 40GiB.  [default: the bundle's]"
)
@click.option("--no-calibration", is_flag=True, help="Leave out the bundle's correction by measured steps.")
@click.option("--explain", "explained", metavar="OPERATOR", help="Say how an operator's times came about.")
@click.option("--db", "database", metavar="FILE", help="Database for --explain: shows the nearest samples.")
@click.option("--trace", metavar="FILE", help="Write the simulated step as a Chrome trace (ui.perfetto.dev).")
@click.option("--html", metavar="FILE", help="Write a page: timeline, shares, memory, operators.")
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON (kernelcast.estimate/1).")
def predict(
    *,
    bundle: str,
    model_name: str,
    sequence_length: int | None,
    pp: int,
    tp: int,
    dp: int,
    micro_batch: int,
    micro_batches: int | None,
    global_batch: int | None,
    gpus_per_node: int | None,
    schedule: Schedule,
    virtual_stages: int,
    stages: str | None,
    zero: int,
    sequence_parallel: bool,
    recompute: Recompute,
    bucket_entries: int,
    timeline: TimelineKind,
    gpu_memory: str | None,
    no_calibration: bool,
    explained: str | None,
    database: str | None,
    trace: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Predict the time of one training step.

    \b
    kernelcast predict --bundle here.kcast --model gpt.toml --pp 2 --micro-batch 4 --micro-batches 8
    """
    # Checked before the bundle is read: what was asked for is the cheaper thing to get wrong.
    fields = {
        "pp": pp,
        "tp": tp,
        "dp": dp,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "schedule": schedule,
        "virtual_stages": virtual_stages,
        "zero": zero,
        "sequence_parallel": sequence_parallel,
        "layer_counts": None if stages is None else _counts(stages),
    }
    layout = _layout(micro_batches, global_batch, fields)
    cluster = None if gpus_per_node is None else Cluster(gpus_per_node=gpus_per_node)
    memory_bytes = None if gpu_memory is None else parse_size(gpu_memory, name="gpu_memory")
    if database is not None and explained is None:
        raise UsageError("--db is given without --explain, expected both")
    files = EstimateFiles(trace=trace, html=html)
    model = load_model(model_name)
    if sequence_length is not None:
        model = model.with_sequence_length(sequence_length)
    estimator = Estimator.load(bundle, calibrated=not no_calibration)
    estimate = estimator.predict(
        model=model,
        parallelism=layout,
        cluster=cluster,
        bucket_entries=bucket_entries,
        timeline=timeline,
        gpu_memory_bytes=memory_bytes,
    )
    files.write(estimate)
    explanations = (
        ()
        if explained is None
        else explain(estimate, estimator.bundle, explained, None if database is None else Path(database))
    )
    if as_json:
        values = estimate.to_dict()
        if explained is not None:
            values["explanations"] = [explanation.to_dict() for explanation in explanations]
        click.echo(json.dumps(values, indent=2))
    elif explained is not None:
        click.echo(headline(estimate) + "\n\n" + render_explanations(explanations))
    else:
        click.echo(render(estimate))


def _layout(micro_batches: int | None, global_batch: int | None, fields: dict[str, Any]) -> Parallelism:
    if micro_batches is not None and global_batch is None:
        return Parallelism(micro_batches=micro_batches, **fields)
    if global_batch is not None and micro_batches is None:
        return Parallelism.from_global_batch(global_batch=global_batch, **fields)
    given = "neither" if micro_batches is None else "both"
    raise UsageError(f"{given} of --micro-batches and --global-batch given, expected one of them")


def _counts(text: str) -> tuple[int, ...]:
    if not _COUNTS.fullmatch(text):
        raise UsageError(f"stages is {text!r:.80}, expected numbers separated by commas, such as 11,12,12,9")
    return tuple(int(part) for part in text.split(","))
