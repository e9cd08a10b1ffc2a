"""A compared step kept as a measured one: in a runs file, which `validate add` takes, or in a database."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from kernelcast.collector.ingest import ingest_traces
from kernelcast.collector.ingest.open_traces import is_database, trace_files
from kernelcast.runtime import Estimate, load_model
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.output_file import write_bytes
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.request.models import built_in_names
from kernelcast.runtime.small_file import toml_document
from kernelcast.store import Database, MeasuredStep
from kernelcast.validate.calibration_steps import PROFILED
from kernelcast.validate.compare.compared_step import ComparedStep
from kernelcast.validate.run_steps import layout_columns, store_predictions

_NAME = "compared"


def runs_toml(compared: ComparedStep, *, site: str, **about: str) -> str:
    """The step as a runs file (docs/validation.md, Runs files): the shortest time, as it counts there, and the mean.

    `about` are texts of the file: source, device and fabric.
    """
    estimate = compared.estimate
    hardware = compared.traced.hardware if compared.traced else "; ".join(estimate.provenance.compute)
    values: dict[str, Any] = {"site": site, "hardware": hardware or "not recorded"}
    values |= {name: value for name, value in about.items() if value}
    model = estimate.model
    is_built_in = model.name in built_in_names() and model == load_model(
        model.name, sequence_length=model.sequence_length
    )
    if not is_built_in:
        values[f"models.{_NAME}"] = {name: value for name, value in asdict(model).items() if name != "name"}
    run = {
        "model": model.name if is_built_in else _NAME,
        "sequence_length": model.sequence_length,
        **_layout(estimate),
        **values_of(estimate, "cluster.gpus_per_node", "bucket_entries"),
        "measured_s": min(compared.steps_s),
        "mean_s": fmean(compared.steps_s),
    }
    return toml_document({**values, "runs": [run]})


def keep_in_file(compared: ComparedStep, path: Path, **about: str) -> None:
    """Write `runs_toml` to a file; DataError where it cannot be written."""
    write_bytes(path, runs_toml(compared, **about).encode(), str(path))


def keep_in_database(compared: ComparedStep, traces: Sequence[Path], database_path: Path) -> str:
    """Add traces, measured step and prediction to a database, which is created if missing; returns the step's id.

    UsageError if the step has no trace, or `traces` are another database.
    """
    traced, estimate = compared.traced, compared.estimate
    if traced is None:
        raise UsageError(
            "--db stores steps with their traces, found no traces; expected --keep FILE for a runs file"
        )
    if not is_database(traces[0]):
        ingest_traces(
            trace_files(traces),
            database_path,
            gpus_per_node=min(estimate.cluster.gpus_per_node, estimate.parallelism.world_size),
        )
    elif traces[0].resolve() != database_path.resolve():
        raise UsageError(f"--db is {database_path}, expected {traces[0]}, which holds the traces")
    with Database.open(database_path) as database:
        if traced.run_id not in {run.id for run in database.run_list()}:
            raise UsageError(
                f"{database_path}: holds these traces in other runs, expected a database without them"
            )
        step = MeasuredStep.from_repetitions(
            run_id=traced.run_id,
            repetitions_s=compared.steps_s,
            model=asdict(estimate.model),
            **layout_columns(estimate.parallelism),
            dtype=estimate.provenance.dtype,
            options=_layout(estimate, is_whole=True)
            | values_of(estimate, "cluster.gpus_per_node", "bucket_entries")
            | {PROFILED: True},
            components_s={f"part {row.name}": row.measured_s for row in compared.parts if row.measured_s},
        )
        found = database.add(step)
        store_predictions(database, step, [estimate])
    return found


def _layout(estimate: Estimate, *, is_whole: bool = False) -> dict[str, Any]:
    """The layout's fields that differ from their defaults, and those that every run gives; or all of them."""
    needed = ("pp", "tp", "dp", "micro_batch", "micro_batches")
    values = {name: getattr(estimate.parallelism, name, None) for name in LAYOUT}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and (is_whole or name in needed or value != LAYOUT[name].default)
    }
