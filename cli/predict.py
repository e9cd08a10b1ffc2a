"""`kernelcast predict`: the time of a training step from a bundle, a model and a layout."""

import json
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.estimate_files import EstimateFiles
from kernelcast.cli.estimate_text import headline, render
from kernelcast.cli.explain import explain, render_explanations
from kernelcast.cli.frameworks import (
    as_option,
    check_alone,
    layout_option,
    open_layout,
    print_layout,
    read_fields,
)
from kernelcast.cli.options import (
    bundle_option,
    chosen_bundle,
    field_options,
    model_option,
    no_calibration_option,
)
from kernelcast.cli.sizes import parse_size
from kernelcast.runtime import Estimator, UsageError, load_model
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.estimate.estimate import ESTIMATE_FORMAT
from kernelcast.runtime.request.fields import REQUEST
from kernelcast.runtime.request.reading import read_request


@click.command("predict")
@bundle_option
@model_option
@field_options(*REQUEST.values(), old={"layer_counts": "--stages"})
@layout_option
@click.option(
    "--gpus", type=click.IntRange(min=1), help="Devices, with --layout where the file does not tell them."
)
@click.option(
    "--gpu-memory", metavar="SIZE", help="Memory of a device, 80GB or 40GiB.  [default: the bundle's]"
)
@no_calibration_option
@click.option(
    "--explain",
    "explained",
    metavar="OPERATOR",
    help="Explain an operator's times; or a role's, such as qkv.",
)
@click.option("--db", "database", metavar="FILE", help="Database for --explain: shows the nearest samples.")
@click.option("--trace", metavar="FILE", help="Write the simulated step as a Chrome trace (ui.perfetto.dev).")
@click.option("--html", metavar="FILE", help="Write a page: timeline, shares, memory, operators.")
@as_option
@click.option("--json", "as_json", is_flag=True, help=f"Print the estimate as JSON ({ESTIMATE_FORMAT}).")
def predict(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    layout: str | None,
    gpus: int | None,
    gpu_memory: str | None,
    no_calibration: bool,
    explained: str | None,
    database: str | None,
    trace: str | None,
    html: str | None,
    framework: str | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Predict the time of one training step.

    \b
    kernelcast predict --bundle here.kcast --model gpt.toml --pp 2 --micro-batch 4 --micro-batches 8
    kernelcast predict --hardware a100-sxm --model llama-2-7b --tp 4 --dp 16 --micro-batch 1 --global-batch 256
    kernelcast predict --hardware a100-sxm --model llama-2-7b --layout train.sh --gpus 64
    """
    path = chosen_bundle(bundle, hardware)
    # Checked before the bundle is read: what was asked for is the cheaper thing to get wrong.
    given = {name: value for name, value in fields.items() if value is not None}
    if gpu_memory is not None:
        given["gpu_memory_bytes"] = parse_size(gpu_memory, name="gpu_memory")
    check_alone(framework, as_json=as_json, explain=explained)
    if layout is None and gpus is not None:
        raise UsageError("--gpus is given without --layout, expected both")
    sequence_length = fields["sequence_length"]
    if layout is not None:
        file = open_layout(layout)
        sequence_length = sequence_length or file.sequence_length()
    model = load_model(model_name, sequence_length=sequence_length)
    if layout is not None:
        given = read_fields(file, model, given, gpus)
    asked = read_request(given)
    fabric = find_fabric(given["fabric"]) if "fabric" in given else None
    if database is not None and explained is None:
        raise UsageError("--db is given without --explain, expected both")
    files = EstimateFiles(trace=trace, html=html)
    estimator = Estimator.load(path, calibrated=not no_calibration)
    estimate = estimator.predict(model=model, fabric=fabric, **asked)
    files.write(estimate)
    explanations = (
        ()
        if explained is None
        else explain(estimate, estimator.bundle, explained, None if database is None else Path(database))
    )
    if framework is not None:
        print_layout(framework, estimate)
    elif as_json:
        values = estimate.to_dict()
        if explained is not None:
            values["explanations"] = [explanation.to_dict() for explanation in explanations]
        click.echo(json.dumps(values, indent=2))
    elif explained is not None:
        click.echo(headline(estimate) + "\n\n" + render_explanations(explanations))
    else:
        click.echo(render(estimate))
