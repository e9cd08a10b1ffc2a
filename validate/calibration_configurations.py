"""Configurations of measured steps: steps with equal ones have equal predictions; labels that distinguish them."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.step.partition import layers_of_chunks
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
        """The configuration of `run`; without a cluster, with the nodes that `Estimator.predict` takes.

        Raises:
            UsageError: more chunks than the model's layers can be spread over.
        """
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
    """Runs with unique labels: equal ones get the fields that differ, and repetitions of one configuration a number.

    Raises:
        UsageError: as `Configuration.of`.
    """
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
