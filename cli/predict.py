"""`kernelcast predict`: the time of a training step from a bundle, a model and a layout."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import completion, option
from kernelcast.cli.estimate_text import headline
from kernelcast.cli.fields import (
    check_effect,
    chosen_bundle,
    field_options,
    given_fields,
    given_words,
    hardware_names,
    memory_options,
    take_wish,
    wish_options,
)
from kernelcast.cli.frameworks import (
    as_option,
    check_alone,
    choose_for,
    layout_option,
    model_of,
    print_layout,
    read_fields,
    render_sources,
)
from kernelcast.cli.intent_text import render_answer, render_comparison
from kernelcast.cli.terminal import Shown, command_line, is_quiet, print_next, say, typed_again, warning
from kernelcast.runtime import Estimate, Estimator, UsageError
from kernelcast.runtime.answers.fabric_choice import FabricChoice, find_fabric
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.dataclass import fields as dataclass_fields
from kernelcast.runtime.estimate.doubts import other_software, software_warning
from kernelcast.runtime.intent.answer import IntentAnswer, answer
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.json_text import plain
from kernelcast.runtime.request.fields import REQUEST, SAMPLES
from kernelcast.runtime.request.model import FoundModel

if TYPE_CHECKING:
    from collections.abc import Collection

    from kernelcast.runtime.frameworks.layout_files import Source
    from kernelcast.runtime.memory.snapshot import Snapshot
    from kernelcast.runtime.stack import Stack


@click.command("predict")
@option.bundle
@option.choice(
    ("commons",),
    "--from",
    "origin",
    "Look up the names given to --hardware, --fabric and --stack in the sources of kernelcast commons.",
)
@option.model_or_layout
@field_options(*REQUEST.values())
@layout_option
@wish_options
@memory_options()
@option.no_calibration
@option.text(
    "--explain",
    "explained",
    "Explain the times of an operator or role (gemm, qkv), the memory of each op (memory), or how lines of --layout "
    "were read (layout).",
    metavar="OPERATOR",
    shell_complete=completion.role_names,
)
@option.text("--db", "database", "Database to find the nearest samples in, for --explain.", metavar="FILE")
@option.text(
    "--memory-snapshot",
    "Compare with a snapshot of torch's allocator (JSON, no pickle), or the memory lines of a log of Megatron-Bridge "
    "or Megatron-LM.",
    metavar="FILE",
)
@option.text("--trace", "Write the simulated step as a Chrome trace (ui.perfetto.dev).", metavar="FILE")
@option.text("--html", "Write a page: timeline, shares, memory, operators.", metavar="FILE")
@option.text(
    "--software",
    "Software that the job uses; warns about software that the measurements did not use.",
    metavar="NAMES",
)
@option.flag("--suggest", "suggests", "List single changes that make the layout faster and fit into memory.")
@as_option
@option.warnings
@option.json
def predict(
    *,
    bundle: str | None,
    hardware: str | None,
    origin: str | None,
    model_name: str | None,
    layout: str | None,
    no_calibration: bool,
    **fields: Any,
) -> Shown:
    """Predict the time of one training step.

    With --gpus, --days or --largest, layout options that are not given are searched. With --layout, --gpus fills in
    the degree that the file leaves open. With --gpus, --hardware takes several names, separated by commas, and compares
    them.

    \b
    kernelcast predict --bundle here.kcast --model gpt.toml --pp 2 --micro-batch 4 --micro-batches 8
    kernelcast predict --hardware a100-sxm --model llama-2-7b --tp 4 --dp 16 --micro-batch 1 --global-batch 256
    kernelcast predict --hardware a100-sxm --model llama-3-8b --gpus 64 --global-batch 512 --tokens 1T
    kernelcast predict --hardware a100-sxm --model llama-2-7b --layout train.sh --gpus 64
    """
    # Checked before the bundle is read: wrong use is cheaper to find.
    shared = list[str]()
    if origin is not None:
        from kernelcast.cli.commons_bundle import from_commons

        bundle, hardware, shared = from_commons(hardware, bundle, fields)
    names = hardware_names(hardware)
    check_alone("as_json", "explained")
    paths = {one: chosen_bundle(bundle, one) for one in names or (None,)}
    further = _Further.take(fields)
    request = _Request.read(names, model_name, layout, further.printed_as, fields)
    further.check(names, layout)
    snapshot = further.read_snapshot()
    load = partial(Estimator.load, calibrated=not no_calibration, stack=request.stack)
    estimators = {one: load(path) for one, path in paths.items()}
    if len(names) > 1:
        return _compared(request, {name: estimators[name] for name in names})
    [(name, estimator)] = estimators.items()
    found = request.answer(name, estimator)
    check_effect(fields, found.estimate.parallelism, is_searched=request.wish.is_open)
    if further.suggests:
        from kernelcast.runtime.estimate.fitting_changes import faster_changes

        faster = faster_changes(estimator, found.estimate, framework=found.framework, fabric=request.fabric)
        found = replace(found, faster=faster)
    _write_files(found, further.trace, further.html)
    values, texts = further.explain(estimator, found.estimate, snapshot)
    if further.explained == "layout":
        texts = [render_sources(request.sources, layout or "")]
    answered = _Answered(
        request=request, further=further, found=found, shared=shared, explained=values, texts=texts
    )
    return Shown(answered.document, answered.show)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Further:
    """Requested outputs beyond the prediction, by option names."""

    explained: str | None
    database: str | None
    memory_snapshot: str | None
    trace: str | None
    html: str | None
    software: str | None
    suggests: bool
    printed_as: str | None
    lists_warnings: bool

    @classmethod
    def take(cls, options: dict[str, Any]) -> _Further:
        """Take these options out of all options of the command."""
        return cls(**{one.name: options.pop(one.name) for one in dataclass_fields(cls)})

    def check(self, names: Collection[str], layout: str | None) -> None:
        """Check that options go together, and that files can be written; else UsageError."""
        if self.database is not None and self.explained is None:
            raise UsageError("--db is given without --explain, expected both")
        if self.database is not None and self.explained in ("memory", "layout"):
            raise UsageError(f"--db is given with --explain {self.explained}, expected an operator's name")
        if self.explained == "layout" and layout is None:
            raise UsageError("--explain layout is given without --layout, expected both")
        of_one = {
            "--trace": self.trace, "--html": self.html, "--explain": self.explained, "--as": self.printed_as,
            "--memory-snapshot": self.memory_snapshot, "--suggest": self.suggests, "--software": self.software,
        }  # fmt: skip
        given = [name for name, value in of_one.items() if value]
        if len(names) > 1 and given:
            raise UsageError(f"--hardware names {len(names)} devices with {given[0]}, expected one")
        files = {name: Path(path) for name, path in (("--trace", self.trace), ("--html", self.html)) if path}
        if files:
            from kernelcast.runtime.output_file import check_target

            for name, path in files.items():
                check_target(path, name)
        if len({path.resolve() for path in files.values()}) < len(files):
            raise UsageError("--trace and --html are the same file, expected two")

    def read_snapshot(self) -> Snapshot | None:
        if self.memory_snapshot is None:
            return None
        from kernelcast.runtime.memory.snapshot import read_snapshot

        return read_snapshot(Path(self.memory_snapshot))

    def explain(
        self, estimator: Estimator, estimate: Estimate, snapshot: Snapshot | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The requested explanation (operator or role, memory by op) or snapshot, for JSON and as texts."""
        values: dict[str, Any] = {}
        texts: list[str] = []
        if snapshot is None and self.explained in (None, "layout"):
            return values, texts
        from kernelcast.cli import explain

        if self.explained == "memory":
            from kernelcast.runtime.memory.breakdown import memory_breakdown

            by_op = memory_breakdown(estimate.model, estimate.parallelism, **estimate.memory.options)
            values["memory_breakdown"] = by_op
            texts.append(explain.render_breakdown(by_op, estimate.memory))
        elif self.explained not in (None, "layout"):
            path = None if self.database is None else Path(self.database)
            found = explain.explain(estimate, estimator.bundle, self.explained or "", path)
            values["explanations"] = found
            texts += [explain.render_explanations(found)] if snapshot is None else []
        if snapshot is not None:
            values["memory_snapshot"] = snapshot
            texts.append(explain.render_snapshot(snapshot, estimate.memory))
        return values, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """The answer for one device, with the requested extras; `texts` are shown in its place."""

    request: _Request
    further: _Further
    found: IntentAnswer
    shared: list[str]
    explained: dict[str, Any]
    texts: list[str]

    @property
    def others(self) -> tuple[str, ...] | None:
        """Software of the job that no measurement includes."""
        software = self.further.software
        return None if software is None else other_software(software, self.found.estimate.provenance)

    def document(self) -> dict[str, Any]:
        values = self.request.model.with_notes(self.found.to_dict())
        more = {
            "other_software": self.others,
            "layout_sources": [one._asdict() for one in self.request.sources] or None,
            "commons": self.shared or None,
            **self.explained,
        }
        return values | {name: plain(one) for name, one in more.items() if one is not None}

    def show(self) -> None:
        estimate, printed_as = self.found.estimate, self.further.printed_as
        if printed_as is not None:
            print_layout(printed_as, estimate)
        elif self.texts:
            click.echo("\n\n".join((headline(estimate), *self.texts)))
        else:
            click.echo(render_answer(self.found, lists_warnings=self.further.lists_warnings))
            for line in self.shared:
                say(f"from the commons: {line}")
            if (line := software_warning(self.others or (), estimate.provenance)) and not is_quiet():
                click.echo(warning(line))
            _print_next(estimate, has_page=self.further.html is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request: the model, the fields given, the wish for those left open, and what a layout's file says where."""

    model: FoundModel
    given: dict[str, Any]
    wish: Wish
    fabric: FabricChoice | None
    stack: Stack | None
    sources: tuple[Source, ...]

    @classmethod
    def read(
        cls,
        names: tuple[str, ...],
        model_name: str | None,
        layout: str | None,
        printed_as: str | None,
        fields: dict[str, Any],
    ) -> _Request:
        """The request that a command's options make; UsageError or DataError for a wrong field, model or file."""
        wish = take_wish(fields)
        given = given_fields(fields)
        model, file = model_of(model_name, layout, fields["sequence_length"])
        sources: tuple[Source, ...] = ()
        if file is not None:
            if wish.days is not None or wish.largest is not None:
                raise UsageError(
                    "--layout is given with --days or --largest, expected only one: --layout leaves nothing to search"
                )
            # The file gives the whole layout: devices complete it, and nothing is searched.
            given, sources = read_fields(file, model.model, given, wish.gpus)
            wish = replace(wish, gpus=None)
        wish.check(given, names)
        fabric = find_fabric(given["fabric"]) if "fabric" in given else None
        chosen = choose_for(given, printed_as, hardware=names, is_open=wish.is_open, file=file)
        return cls(
            model=model, given=chosen.values, wish=wish, fabric=fabric, stack=chosen.stack, sources=sources
        )

    def answer(self, hardware: str | None, estimator: Estimator) -> IntentAnswer:
        price, model = self.wish.price(hardware), self.model.model
        return answer(
            estimator, self.wish, self.given, model=model, fabric=self.fabric, price_per_gpu_hour=price
        )


def _compared(request: _Request, estimators: dict[str, Estimator]) -> Shown:
    from kernelcast.runtime.intent.best import read_open_request
    from kernelcast.runtime.intent.comparison import compare

    values = {**request.given, "gpus": request.wish.gpus}
    requests = {
        name: read_open_request(values, model=request.model.model, estimator=estimator, fabric=request.fabric)
        for name, estimator in estimators.items()
    }
    comparison = compare(requests, request.wish)

    def show() -> None:
        click.echo(render_comparison(comparison))
        best = comparison.compared[0].hardware
        price = request.wish.price(best)
        more = ["--hardware", best, *(["--price", f"{price:g}"] if price is not None else [])]
        again = typed_again(*more, without=("--hardware", "--rank-by", "--price"))
        print_next((again, "its components, memory and warnings"))

    return Shown(comparison.to_dict(), show)


def _write_files(found: IntentAnswer, trace: str | None, html: str | None) -> None:
    """Write the requested files and name them on standard error: standard output may be JSON."""
    # Imported only here: predictions without files do not wait for it.
    if trace:
        from kernelcast.runtime.views.chrome_trace import write_chrome_trace

        write_chrome_trace(found.estimate, Path(trace))
        click.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)
    if html:
        from kernelcast.runtime.views.estimate_page import write_page

        write_page(found.estimate, Path(html), found.training)
        click.echo(f"wrote {html}", err=True)


def _print_next(estimate: Estimate, *, has_page: bool) -> None:
    if estimate.memory.fits is False:
        batch = prod(getattr(estimate.parallelism, name) for name in SAMPLES)
        words = given_words(
            "bundle", "hardware", "model_name", "sequence_length", "gpus_per_node", "fabric", "stack"
        )
        devices = ("--gpus", estimate.parallelism.world_size, "--global-batch", batch)
        print_next((command_line("search", *words, *devices), "layouts that fit"))
        return
    draws = () if has_page else ((typed_again("--html", "step.html"), "draw the step"),)
    print_next(*draws, (typed_again("--explain", "gemm"), "explain an operator's time"))
