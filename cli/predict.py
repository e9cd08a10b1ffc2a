"""`kernelcast predict`: the time of a training step from a bundle, a model and a layout."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.estimate_files import EstimateFiles
from kernelcast.cli.estimate_text import headline
from kernelcast.cli.explain import explain, render_explanations
from kernelcast.cli.frameworks import (
    as_option,
    check_alone,
    layout_option,
    model_of,
    print_layout,
    read_fields,
)
from kernelcast.cli.intent_options import hardware_names, take_wish, wish_options
from kernelcast.cli.intent_text import render_answer, render_comparison
from kernelcast.cli.options import (
    bundle_option,
    chosen_bundle,
    field_options,
    given_words,
    memory_options,
    model_option,
    no_calibration_option,
    take_memory,
    warnings_option,
)
from kernelcast.cli.terminal import command_line, is_quiet, print_json, print_next, typed_again, warning
from kernelcast.runtime import Estimate, Estimator, UsageError
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.estimate.estimate import ESTIMATE_FORMAT
from kernelcast.runtime.estimate.stated_software import other_software, software_warning
from kernelcast.runtime.intent.answer import answer
from kernelcast.runtime.intent.comparison import compare
from kernelcast.runtime.intent.open_request import read_open_request
from kernelcast.runtime.intent.wish import Wish
from kernelcast.runtime.request.fields import REQUEST, SAMPLES
from kernelcast.runtime.stack import find_stack


@click.command("predict")
@bundle_option
@model_option
@field_options(*REQUEST.values(), old={"layer_counts": "--stages"})
@layout_option
@wish_options
@memory_options()
@no_calibration_option
@click.option(
    "--explain",
    "explained",
    metavar="OPERATOR",
    shell_complete=completion.role_names,
    help="Explain an operator's times; or a role's, such as qkv.",
)
@click.option("--db", "database", metavar="FILE", help="Database for --explain: shows the nearest samples.")
@click.option("--trace", metavar="FILE", help="Write the simulated step as a Chrome trace (ui.perfetto.dev).")
@click.option("--html", metavar="FILE", help="Write a page: timeline, shares, memory, operators.")
@click.option(
    "--software", metavar="NAMES", help="What the job runs with: warns of what no measurement names."
)
@as_option
@warnings_option
@click.option("--json", "as_json", is_flag=True, help=f"Print the estimate as JSON ({ESTIMATE_FORMAT}).")
def predict(
    *,
    bundle: str | None,
    hardware: str | None,
    model_name: str,
    layout: str | None,
    no_calibration: bool,
    explained: str | None,
    database: str | None,
    trace: str | None,
    html: str | None,
    software: str | None,
    framework: str | None,
    lists_warnings: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Predict the time of one training step.

    With --gpus, --days or --largest, what is not given of the layout is searched; with --layout, --gpus is what
    the file does not tell. --hardware takes several names with --gpus, separated by commas, and compares them.

    \b
    kernelcast predict --bundle here.kcast --model gpt.toml --pp 2 --micro-batch 4 --micro-batches 8
    kernelcast predict --hardware a100-sxm --model llama-2-7b --tp 4 --dp 16 --micro-batch 1 --global-batch 256
    kernelcast predict --hardware a100-sxm --model llama-3-8b --gpus 64 --global-batch 512 --tokens 1T
    kernelcast predict --hardware a100-sxm --model llama-2-7b --layout train.sh --gpus 64
    """
    names = hardware_names(hardware)
    wish = take_wish(fields)
    paths = {one: chosen_bundle(bundle, one) for one in names or (None,)}
    # Checked before the bundle is read: what was asked for is the cheaper thing to get wrong.
    memory = take_memory(fields)
    given = {name: value for name, value in fields.items() if value is not None} | memory
    check_alone(framework, as_json=as_json, explain=explained)
    found_model, file = model_of(model_name, layout, fields["sequence_length"])
    model = found_model.model
    if file is not None:
        if wish.days is not None or wish.largest is not None:
            raise UsageError(
                "--layout is given with --days or --largest, expected not: it leaves nothing open"
            )
        # The file gives the whole layout: devices complete it, and nothing is searched.
        given, wish = read_fields(file, model, given, wish.gpus), replace(wish, gpus=None)
    wish.check(given, names)
    fabric = find_fabric(given["fabric"]) if "fabric" in given else None
    stack = find_stack(given.pop("stack")) if "stack" in given else None
    given = given if stack is None else stack.fill(given)
    if database is not None and explained is None:
        raise UsageError("--db is given without --explain, expected both")
    if len(names) > 1 and (trace or html or explained or framework):
        raise UsageError("several hardware is given with --trace, --html, --explain or --as, expected one")
    files = EstimateFiles(trace=trace, html=html)
    estimators = {
        one: Estimator.load(path, calibrated=not no_calibration, stack=stack) for one, path in paths.items()
    }
    if len(names) > 1:
        values_of = {**given, "gpus": wish.gpus}
        requests = {
            name: read_open_request(values_of, model=model, estimator=estimators[name], fabric=fabric)
            for name in names
        }
        comparison = compare(requests, wish)
        if as_json:
            print_json(comparison.to_dict())
        else:
            click.echo(render_comparison(comparison, is_brief=is_quiet()))
            print_next(_alone(comparison.compared[0].hardware, wish))
        return
    [(name, estimator)] = estimators.items()
    found = answer(estimator, wish, given, model=model, fabric=fabric, price_per_gpu_hour=wish.price(name))
    estimate = found.estimate
    others = () if software is None else other_software(software, estimate.provenance)
    files.write(estimate)
    explanations = (
        ()
        if explained is None
        else explain(estimate, estimator.bundle, explained, None if database is None else Path(database))
    )
    if framework is not None:
        print_layout(framework, estimate)
    elif as_json:
        values = found_model.with_notes(found.to_dict())
        if software is not None:
            values["other_software"] = list(others)
        if explained is not None:
            values["explanations"] = [explanation.to_dict() for explanation in explanations]
        print_json(values)
    elif explained is not None:
        click.echo(headline(estimate) + "\n\n" + render_explanations(explanations))
    else:
        click.echo(render_answer(found, is_brief=is_quiet(), lists_warnings=lists_warnings))
        if (line := software_warning(others, estimate.provenance)) and not is_quiet():
            click.echo(warning(line))
        if estimate.memory.fits is False:
            print_next(_search(estimate))
        else:
            draws = () if html else ((typed_again("--html", "step.html"), "draws the step"),)
            print_next(*draws, (typed_again("--explain", "gemm"), "where an operator's time comes from"))


def _alone(hardware: str, wish: Wish) -> tuple[str, str]:
    price = wish.price(hardware)
    more = ["--hardware", hardware, *(["--price", f"{price:g}"] if price is not None else [])]
    without = ("--hardware", "--rank-by", "--price")
    return typed_again(*more, without=without), "its parts, memory and warnings"


def _search(estimate: Estimate) -> tuple[str, str]:
    layout = estimate.parallelism
    batch = prod(getattr(layout, name) for name in SAMPLES)
    words = given_words(
        "bundle", "hardware", "model_name", "sequence_length", "gpus_per_node", "fabric", "stack"
    )
    command = command_line("search", *words, "--gpus", layout.world_size, "--global-batch", batch)
    return command, "layouts that fit"
