"""Measured steps of a database that a bundle can be calibrated with: of its hardware, software and element type."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernelcast.runtime import Cluster, DataError, ModelConfig, Parallelism
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT, Manifest
from kernelcast.runtime.errors import error_context
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES, LAYOUT
from kernelcast.runtime.step.chunks import layers_of_chunks
from kernelcast.store import Database, MeasuredStep, Run, Status
from kernelcast.validate.runs import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All inputs of a prediction, defaults filled in.

    `gpus_per_node` is at most the job's number of devices; None where the bundle was measured on several kinds of nodes
    and the step does not name its own.
    """

    model: ModelConfig
    parallelism: Parallelism
    gpus_per_node: int | None
    bucket_entries: int

    @classmethod
    def of(cls, run: MeasuredRun, manifest: Manifest) -> "Configuration":
        """The configuration of `run`; without a cluster, with the nodes that `Estimator.predict` takes."""
        layout = run.parallelism
        sizes = {fabric.gpus_per_node for fabric in manifest.fabric} or {layout.world_size}
        if run.cluster is not None:
            sizes = {run.cluster.gpus_per_node}
        return cls(
            model=run.model,
            # The layer counts decide, whatever split gave them.
            parallelism=replace(
                layout,
                layer_counts=layers_of_chunks(run.model.layers, layout),
                layer_split=LAYOUT["layer_split"].default,
            ),
            gpus_per_node=min(*sizes, layout.world_size) if len(sizes) == 1 else None,
            bucket_entries=run.bucket_entries,
        )


def distinctly_labelled(runs: Iterable[MeasuredRun], manifest: Manifest) -> tuple[MeasuredRun, ...]:
    """Runs with unique labels: equal ones get the fields that differ, repetitions a number; as `Configuration.of`."""
    listed = list(runs)
    labels = [run.label for run in listed]
    details = [_details(Configuration.of(run, manifest)) for run in listed]
    for column in zip(*details, strict=True):
        of_label: dict[str, set[str]] = {}
        for label, detail in zip(labels, column, strict=True):
            of_label.setdefault(label, set()).add(detail)
        labels = [
            f"{label}, {detail}" if len(of_label[label]) > 1 else label
            for label, detail in zip(labels, column, strict=True)
        ]
    counts, numbers = Counter(labels), Counter[str]()
    for index, label in enumerate(labels):
        if counts[label] > 1:
            numbers[label] += 1
            labels[index] = f"{label}, no. {numbers[label]}"
    return tuple(replace(run, label=label) for run, label in zip(listed, labels, strict=True))


def _details(configuration: Configuration) -> list[str]:
    """All fields in which configurations can differ, as text; micro-batches × micro-batch first."""
    layout = configuration.parallelism
    fields = {
        **asdict(layout),
        "gpus_per_node": configuration.gpus_per_node,
        "bucket_entries": configuration.bucket_entries,
        **asdict(configuration.model),
    }
    return [
        f"{layout.micro_batches} × {layout.micro_batch}",
        *(f"{name} {one if isinstance(one, str) else json.dumps(one)}" for name, one in fields.items()),
    ]


_LAYOUT = tuple(f.name for f in fields(Parallelism))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRuns:
    """Steps of a database, the fastest of each configuration; `digest` is the SHA-256 of the ids of all that were read.

    `left_out` counts the other steps by reason, such as "1 failed, 3 of other hardware"; empty without any.
    """

    runs: tuple[MeasuredRun, ...]
    digest: str
    measured_at: str
    left_out: str


def stored_runs(path: Path, manifest: Manifest) -> StoredRuns:
    """The steps that were measured on the hardware and with the software of `manifest`, in its element type.

    Of each configuration (as the bundle predicts it) the smallest minimum counts, as the paper compares them. A bundle
    that records no hardware, or no version of torch, takes steps of any.

    Raises:
        DataError: the database cannot be read, or holds no such step; a step's model or layout is not one of this
            version's.
    """
    with Database.open(path, read_only=True) as database:
        runs = {run.id: run for run in database.run_list()}
        steps = database.records(MeasuredStep)
    reasons = [_why_left_out(step, runs.get(step.run_id), manifest) for step in steps]
    found = [step for step, reason in zip(steps, reasons, strict=True) if not reason]
    counts = Counter(filter(None, reasons))
    left_out = ", ".join(f"{counts[one]} {one}" for one in sorted(counts))
    if not found:
        raise DataError(
            f"database {path}: no measured step of the bundle's hardware and software in {manifest.dtype}, "
            f"expected some (kernelcast validate run){left_out and f'; left out: {left_out}'}"
        )
    fastest: dict[Configuration, MeasuredRun] = {}
    for step in found:
        with error_context(f"database {path}: step {step.id[:12]}", kind=DataError):
            run = _run(step)
            key = Configuration.of(run, manifest)
        if key not in fastest or run.measured_s < fastest[key].measured_s:
            fastest[key] = run
    return StoredRuns(
        runs=distinctly_labelled(fastest.values(), manifest),
        digest=hashlib.sha256("\n".join(sorted(step.id for step in found)).encode()).hexdigest(),
        measured_at=max((step.measured_at for step in found if step.measured_at), default=UNKNOWN_MOMENT),
        left_out=left_out,
    )


PROFILED = "profiled"
"""The option of a step that was timed in its trace, which makes it longer: it is compared, not calibrated with."""


def _why_left_out(step: MeasuredStep, run: Run | None, manifest: Manifest) -> str:
    """Why a step cannot be compared with the bundle; empty where it can."""
    hardware = {fingerprint.digest for fingerprint in manifest.compute}
    software = {fingerprint.digest for fingerprint in manifest.software if fingerprint.torch}
    if step.status is not Status.OK:
        return "failed"
    if step.options.get(PROFILED):
        return "under a profiler"
    if step.dtype != manifest.dtype:
        return "of another element type"
    if run is None:
        return "of no run in it"
    if hardware and run.compute_id not in hardware:
        return "of other hardware"
    return "of other software" if software and run.software_id not in software else ""


def _run(step: MeasuredStep) -> MeasuredRun:
    options: dict[str, Any] = dict(step.options)
    layout: dict[str, Any] = {name: options[name] for name in _LAYOUT if name in options}
    if isinstance(layout.get("layer_counts"), list):
        layout["layer_counts"] = tuple(layout["layer_counts"])
    # Steps without layer counts were stored by versions with only one split.
    layout.setdefault("layer_split", "paper")
    layout.setdefault("recompute", "full" if step.recomputation else "none")
    layout |= values_of(step, "pp", "tp", "dp", "micro_batch", "micro_batches")
    if step.schedule:
        layout["schedule"] = step.schedule.lower()
    model = ModelConfig.from_document(dict(step.model), where="model", name=str(step.model.get("name", "")))
    parallelism = Parallelism(**layout)
    parallelism.check(model)
    nodes = options.get("gpus_per_node")
    return MeasuredRun(
        label=f"{model.name} ({step.pp}-{step.tp}-{step.dp})",
        model=model,
        parallelism=parallelism,
        cluster=None if nodes is None else Cluster(gpus_per_node=nodes),
        measured_s=step.min_s or 0.0,
        bucket_entries=options.get("bucket_entries", DEFAULT_BUCKET_ENTRIES),
    )
