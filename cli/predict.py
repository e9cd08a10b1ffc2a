"""`kernelcast predict`: the time of a training step from a bundle, a model file and a layout."""

import json

import click

from kernelcast.cli.tables import seconds, seconds_precisely, text_table
from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.decomposition import Component
from kernelcast.runtime.parallelism import DEFAULT_BUCKET_ENTRIES

TOP_OPERATORS = 12
SHOWN_WARNINGS = 8

_ONCE_PER_UPDATE = (Component.ALL_REDUCE, Component.OPTIMIZER, Component.ALL_GATHER)


@click.command("predict")
@click.option("--bundle", required=True, metavar="FILE", help="Bundle of regressors (.kcast).")
@click.option("--model", "model_file", required=True, metavar="FILE", help="Model file (.toml or .json).")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--mp", type=int, default=1, show_default=True, help="Model (tensor) parallel degree.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data parallel degree.")
@click.option("--micro-batch", type=int, required=True, help="Samples per micro-batch.")
@click.option("--micro-batches", type=int, required=True, help="Micro-batches per update.")
@click.option("--gpus-per-node", type=int, help="Devices per node.  [default: the bundle's, else one node]")
@click.option(
    "--recompute",
    type=click.Choice(["none", "full"]),
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
@click.option("--json", "as_json", is_flag=True, help="Print the estimate as JSON (kernelcast.estimate/1).")
def predict(
    *,
    bundle: str,
    model_file: str,
    pp: int,
    mp: int,
    dp: int,
    micro_batch: int,
    micro_batches: int,
    gpus_per_node: int | None,
    recompute: str,
    bucket_entries: int,
    as_json: bool,
) -> None:
    """Predict the time of one training step.

    Example: kernelcast predict --bundle here.kcast --model gpt.toml --pp 2 --micro-batch 4 --micro-batches 8
    """
    # Checked before the bundle is read: what was asked for is the cheaper thing to get wrong.
    layout = Parallelism(
        pp=pp,
        mp=mp,
        dp=dp,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        recompute="full" if recompute == "full" else "none",
    )
    cluster = None if gpus_per_node is None else Cluster(gpus_per_node=gpus_per_node)
    model = ModelConfig.from_file(model_file)
    estimate = Estimator.load(bundle).predict(
        model=model, parallelism=layout, cluster=cluster, bucket_entries=bucket_entries
    )
    click.echo(json.dumps(estimate.to_dict(), indent=2) if as_json else render(estimate))


def render(estimate: Estimate) -> str:
    """An estimate as readable text: headline, layout, components, stages, the longest operators, warnings."""
    sections = [
        _headline(estimate),
        "Components\n" + _components(estimate),
        "Stages, per micro-batch (forward, backward) and per update\n" + _stages(estimate),
        "Operators that take most of a step, summed over the stages\n" + _operators(estimate),
    ]
    if estimate.warnings:
        sections.append(_warnings(estimate))
    return "\n\n".join(sections)


def _headline(estimate: Estimate) -> str:
    layout, model, source = estimate.parallelism, estimate.model, estimate.provenance
    encoders = ", ".join(map(str, estimate.encoder_counts))
    hardware = "; ".join((*source.compute, *source.fabric)) or "not recorded"
    return "\n".join(
        (
            f"step {seconds_precisely(estimate.step_time_s)}, {estimate.tokens_per_s:,.0f} tokens/s",
            "",
            f"model     {model.name}: {model.encoders} encoders, hidden {model.hidden_size}, "
            f"sequence {model.sequence_length}, vocabulary {estimate.padded_vocabulary_size} (padded)",
            f"layout    pp {layout.pp} × mp {layout.mp} × dp {layout.dp} = {layout.world_size} device(s), "
            f"{estimate.cluster.gpus_per_node} per node ({estimate.cluster_source}); "
            f"micro-batch {layout.micro_batch} × {layout.micro_batches}, recompute {layout.recompute}",
            f"encoders  {encoders}",
            f"bundle    {source.bundle} ({source.statistic} times, {source.dtype}, {source.created_at})",
            f"hardware  {hardware}",
        )
    )


def _components(estimate: Estimate) -> str:
    rows = [[name, seconds(value)] for name, value in estimate.components.to_dict().items()]
    return text_table(("component", "time"), rows, indent="  ")


def _stages(estimate: Estimate) -> str:
    rows = [
        [
            str(stage.index),
            str(stage.encoders),
            f"{stage.parameters:,}",
            seconds(stage.forward_s),
            seconds(stage.backward_s),
            seconds(stage.all_reduce_s),
            seconds(stage.update_s),
        ]
        for stage in estimate.stages
    ]
    headers = ("stage", "encoders", "parameters", "forward", "backward", "all-reduce", "update")
    return text_table(headers, rows, indent="  ")


def _operators(estimate: Estimate) -> str:
    # One update runs every micro-batch once, so a row that is per micro-batch counts that often.
    totals: dict[tuple[str, str], tuple[float, int]] = {}
    for row in estimate.operators:
        repeats = 1 if row.component in _ONCE_PER_UPDATE else estimate.parallelism.micro_batches
        total_s, calls = totals.get((row.operator, row.direction.value), (0.0, 0))
        totals[row.operator, row.direction.value] = (
            total_s + repeats * row.total_s,
            calls + repeats * row.count,
        )
    everything_s = sum(total_s for total_s, _ in totals.values())
    ranked = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    rows = [
        [
            operator,
            direction,
            f"{calls:,}",
            seconds(total_s / calls),
            seconds(total_s),
            f"{total_s / everything_s:.1%}",
        ]
        for (operator, direction), (total_s, calls) in ranked[:TOP_OPERATORS]
    ]
    headers = ("operator", "direction", "calls", "mean time", "device time", "share")
    return text_table(headers, rows, indent="  ")


def _warnings(estimate: Estimate) -> str:
    lines = [f"warning: {warning}" for warning in estimate.warnings[:SHOWN_WARNINGS]]
    hidden = len(estimate.warnings) - len(lines)
    if hidden:
        lines.append(f"warning: {hidden} more operator(s) asked outside the training range (--json has all)")
    return "\n".join(lines)
