"""Which measured steps are of one configuration: those that a bundle predicts alike."""

from dataclasses import dataclass, replace

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.step.partition import encoders_of_chunks
from kernelcast.validate.runs import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a step was predicted from, with nothing left to be derived.

    `gpus_per_node` is no more than the job has devices; None where the bundle was measured on several kinds of nodes
    and the step does not say its own.
    """

    model: ModelConfig
    parallelism: Parallelism
    gpus_per_node: int | None
    bucket_entries: int

    @classmethod
    def of(cls, run: MeasuredRun, manifest: Manifest) -> "Configuration":
        """That of `run`; where it does not say its nodes, they are what `Estimator.predict` takes.

        Raises:
            UsageError: more chunks than the model's encoders can be spread over.
        """
        layout = run.parallelism
        sizes = {fabric.gpus_per_node for fabric in manifest.fabric} or {layout.world_size}
        if run.cluster is not None:
            sizes = {run.cluster.gpus_per_node}
        return cls(
            model=run.model,
            parallelism=replace(layout, encoder_counts=encoders_of_chunks(run.model.encoders, layout)),
            gpus_per_node=min(*sizes, layout.world_size) if len(sizes) == 1 else None,
            bucket_entries=run.bucket_entries,
        )
