"""From bundle, model and layout to an `Estimate`: take the step apart, ask every regressor once, add up."""

import os
from collections.abc import Iterable, Mapping
from typing import Self

from kernelcast.runtime.bundle import Bundle, Key, read_bundle
from kernelcast.runtime.decomposition import (
    BACKWARD_PARTS,
    FORWARD_PARTS,
    Component,
    Decomposition,
    OperatorCall,
    Stage,
    decompose,
)
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate import Components, Estimate, OperatorRow, Provenance, StageEstimate
from kernelcast.runtime.model import ModelConfig
from kernelcast.runtime.parallelism import DEFAULT_BUCKET_ENTRIES, Cluster, Parallelism
from kernelcast.runtime.predictor import Predictor, RangeWarning
from kernelcast.runtime.pipeline.closed_form import StageTimes, closed_form

_US_PER_S = 1e6
_Times = Mapping[tuple[Key, tuple[int, ...]], float]


class Estimator:
    """Predicts training steps from one bundle. Safe to use from several threads; keeps no file open."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.predictor = Predictor(bundle)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and verify a `.kcast` file.

        Raises:
            DataError: it is missing, damaged, or of another version.
        """
        return cls(read_bundle(path))

    def predict(
        self,
        *,
        model: ModelConfig,
        parallelism: Parallelism,
        cluster: Cluster | None = None,
        bucket_entries: int = DEFAULT_BUCKET_ENTRIES,
    ) -> Estimate:
        """Time of one training step of `model`, laid out as `parallelism` on `cluster` (docs/method.md, A step).

        Without `cluster`, the devices per node are those of the bundle's fabric; a bundle without one puts
        the whole job on one node. `bucket_entries` is the framework's bucket for gradient and parameter
        collectives.

        Raises:
            UsageError: the model cannot be laid out so, or the bundle knows several fabrics and `cluster`
                is not given.
            DataError: the bundle lacks an operator that the model needs, or one of its models answers
                nonsense.
        """
        used, source = (cluster, "asked") if cluster is not None else self._default_cluster(parallelism)
        parts = decompose(model=model, parallelism=parallelism, cluster=used, bucket_entries=bucket_entries)
        times_us, warnings = self._ask(parts, model)
        stages = [_stage_times(stage.calls, times_us) for stage in parts.stages]
        timeline = closed_form(stages, parallelism.micro_batches)
        step_time_s = timeline.step_us / _US_PER_S
        tokens = parallelism.samples_per_update * model.sequence_length
        return Estimate(
            step_time_s=step_time_s,
            tokens_per_s=tokens / step_time_s,
            components=Components(
                encoder_forward_s=_total(parts.encoder, times_us, (Component.ENCODER_FORWARD,)) / _US_PER_S,
                encoder_backward_s=_total(parts.encoder, times_us, (Component.ENCODER_BACKWARD,)) / _US_PER_S,
                stage_forward_max_s=timeline.max_forward_us / _US_PER_S,
                stage_backward_max_s=timeline.max_backward_us / _US_PER_S,
                dp_all_reduce_s=timeline.all_reduce_us / _US_PER_S,
                dp_all_gather_s=stages[timeline.slowest_update_stage].all_gather_us / _US_PER_S,
                max_update_s=timeline.max_update_us / _US_PER_S,
                mp_all_reduce_s=_one_call("mp_all_reduce", parts, times_us) / _US_PER_S,
                pp_p2p_s=_one_call("pp_p2p", parts, times_us) / _US_PER_S,
            ),
            stages=tuple(_stage_estimate(*pair) for pair in zip(parts.stages, stages, strict=True)),
            operators=tuple(_rows(parts, times_us)),
            warnings=warnings,
            model=model,
            parallelism=parallelism,
            cluster=used,
            cluster_source=source,
            bucket_entries=bucket_entries,
            padded_vocabulary_size=parts.vocabulary_size,
            provenance=_provenance(self.bundle),
        )

    def _default_cluster(self, parallelism: Parallelism) -> tuple[Cluster, str]:
        sizes = sorted({fabric.gpus_per_node for fabric in self.bundle.manifest.fabric})
        if len(sizes) > 1:
            known = ", ".join(map(str, sizes))
            raise UsageError(
                f"gpus_per_node is not given, and bundle {self.bundle.path} was measured on nodes of {known}"
            )
        if sizes:
            return Cluster(gpus_per_node=sizes[0]), "bundle"
        return Cluster(gpus_per_node=parallelism.world_size), "one node"

    def _ask(self, parts: Decomposition, model: ModelConfig) -> tuple[_Times, tuple[RangeWarning, ...]]:
        """Time of every distinct call, each regressor asked once, and what was asked out of range."""
        asked: dict[Key, dict[tuple[int, ...], None]] = {}
        for stage in parts.stages:
            for call in stage.calls:
                asked.setdefault((call.operator, call.direction), {})[call.vector] = None
        for operator, direction in asked:
            if (operator, direction) not in self.bundle.entries:
                raise DataError(
                    f"bundle {self.bundle.path} has no regressor for {operator} ({direction}), "
                    f"which model {model.name} needs"
                )
        times_us: dict[tuple[Key, tuple[int, ...]], float] = {}
        warnings: list[RangeWarning] = []
        for key, vectors in asked.items():
            answers = self.predictor.times_us(*key, list(vectors))
            times_us |= {(key, vector): answers[vector] for vector in vectors}
            warnings += self.predictor.range_warnings(*key, list(vectors))
        return times_us, tuple(warnings)


def _call_us(call: OperatorCall, times_us: _Times) -> float:
    return times_us[(call.operator, call.direction), call.vector]


def _total(calls: Iterable[OperatorCall], times_us: _Times, components: tuple[Component, ...]) -> float:
    return sum((call.count * _call_us(call, times_us) for call in calls if call.component in components), 0.0)


def _stage_times(calls: tuple[OperatorCall, ...], times_us: _Times) -> StageTimes:
    return StageTimes(
        forward_us=_total(calls, times_us, FORWARD_PARTS),
        backward_us=_total(calls, times_us, BACKWARD_PARTS),
        all_reduce_us=_total(calls, times_us, (Component.ALL_REDUCE,)),
        optimizer_us=_total(calls, times_us, (Component.OPTIMIZER,)),
        all_gather_us=_total(calls, times_us, (Component.ALL_GATHER,)),
    )


def _one_call(operator: str, parts: Decomposition, times_us: _Times) -> float:
    # The first stage has a tensor-parallel all-reduce and a send whenever the layout has any.
    calls = (call for call in parts.stages[0].calls if call.operator == operator)
    return next((_call_us(call, times_us) for call in calls), 0.0)


def _stage_estimate(stage: Stage, times: StageTimes) -> StageEstimate:
    return StageEstimate(
        index=stage.index,
        encoders=stage.encoders,
        parameters=stage.parameters,
        forward_s=times.forward_us / _US_PER_S,
        backward_s=times.backward_us / _US_PER_S,
        all_reduce_s=times.all_reduce_us / _US_PER_S,
        optimizer_s=times.optimizer_us / _US_PER_S,
        all_gather_s=times.all_gather_us / _US_PER_S,
    )


def _rows(parts: Decomposition, times_us: _Times) -> Iterable[OperatorRow]:
    for stage in parts.stages:
        for call in stage.calls:
            time_us = _call_us(call, times_us)
            yield OperatorRow(
                stage=stage.index,
                component=call.component,
                operator=call.operator,
                direction=call.direction,
                vector=call.vector,
                count=call.count,
                time_us=time_us,
                total_s=call.count * time_us / _US_PER_S,
            )


def _provenance(bundle: Bundle) -> Provenance:
    manifest = bundle.manifest
    return Provenance(
        bundle=str(bundle.path),
        bundle_digest=bundle.digest,
        dataset_digest=manifest.dataset_digest,
        kernelcast_version=manifest.kernelcast_version,
        created_at=manifest.created_at,
        dtype=manifest.dtype,
        statistic=manifest.statistic,
        compute=tuple(fingerprint.description for fingerprint in manifest.compute),
        fabric=tuple(fingerprint.description for fingerprint in manifest.fabric),
        software=tuple(fingerprint.description for fingerprint in manifest.software),
    )
