"""From bundle, model and layout to an `Estimate`: take the step apart, ask every regressor once, add up."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Self, get_args

from kernelcast.runtime.answers.concurrency import (
    ConcurrencyWarning,
    concurrency_warning,
    processes_on_a_node,
)
from kernelcast.runtime.answers.left_out import lacking, left_out_warnings
from kernelcast.runtime.answers.operator_times import Question, ask, total_us
from kernelcast.runtime.answers.predictor import MAX_REMEMBERED, Predictor
from kernelcast.runtime.answers.uncertainty import drawn_times, draws_for, interval, unexplained
from kernelcast.runtime.bundle.calibration import CalibrationUse
from kernelcast.runtime.bundle.file import Bundle, Key, is_collective, read_bundle
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.estimate.estimate import Components, Estimate, Memory, Provenance, StageEstimate
from kernelcast.runtime.memory import device_kind, stage_memory
from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE, Durations
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES, Cluster, Parallelism
from kernelcast.runtime.request.model import MAX_SIZE, ModelConfig, require_choice, require_integer
from kernelcast.runtime.step.decomposition import Decomposition, decompose
from kernelcast.runtime.step.stage_times import Times
from kernelcast.runtime.step.step_times import StepTimes, step_times
from kernelcast.runtime.step.timeline_kinds import TimelineKind, check_simulated, pipeline_times

_US_PER_S = 1e6
_MAX_REMEMBERED = 256
"""Estimates that an `Estimator` keeps; one asked again is answered from memory."""

_MAX_MEMORY_BYTES = 1 << 60
_MP_SYNCS = ("mp_all_reduce", "mp_all_gather", "mp_reduce_scatter")


class Estimator:
    """Predicts training steps from one bundle. Safe to use from several threads; keeps no file open.

    It remembers `remembered` estimates, and about `remembered_answers` answers of each regressor. A bundle's
    calibration is applied to questions with the timeline that it was fitted for, unless `calibrated` is False.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        remembered: int = _MAX_REMEMBERED,
        remembered_answers: int = MAX_REMEMBERED,
        calibrated: bool = True,
    ) -> None:
        self.bundle = bundle
        self.predictor = Predictor(bundle, remembered=remembered_answers, calibrated=calibrated)
        self._most_remembered = remembered
        self._provenance = {kind: _provenance(bundle, kind, calibrated) for kind in get_args(TimelineKind)}
        self._levels = bundle.levels
        self._left_out = lacking(bundle.entries)
        self._lock = threading.Lock()
        self._remembered: OrderedDict[tuple[object, ...], Estimate] = OrderedDict()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, calibrated: bool = True) -> Self:
        """Read and verify a `.kcast` file; without `calibrated`, its calibration is not applied.

        Raises:
            DataError: it is missing, damaged, or of another version.
        """
        return cls(read_bundle(path), calibrated=calibrated)

    def predict(
        self,
        *,
        model: ModelConfig,
        parallelism: Parallelism,
        cluster: Cluster | None = None,
        bucket_entries: int = DEFAULT_BUCKET_ENTRIES,
        timeline: TimelineKind = "simulate",
        interval: bool = True,
        gpu_memory_bytes: int | None = None,
    ) -> Estimate:
        """Time of one training step of `model`, laid out as `parallelism` on `cluster` (docs/method.md, A step).

        Without `cluster`, the devices per node are those of the bundle's fabric; a bundle without one puts
        the whole job on one node. `bucket_entries` is the framework's bucket for gradient and parameter
        collectives. `timeline` is an exact simulation of the schedule, or the closed form (the paper's eq. 7
        for 1F1B). `interval=False` leaves out the step's interval, which saves time. `gpu_memory_bytes` is the
        memory of a device, without it that of the bundle's. The same question again is answered from memory.

        Raises:
            UsageError: the model cannot be laid out so, an argument is not allowed, or the bundle knows
                several fabrics and `cluster` is not given.
            DataError: the bundle lacks an operator that the model needs, or one of its models answers
                nonsense.
        """
        # Before anything is looked up: 1.0 and True are equal to 1.
        _check_types(model, parallelism, cluster)
        require_integer("bucket_entries", bucket_entries, low=1, high=MAX_SIZE)
        require_choice("timeline", timeline, get_args(TimelineKind))
        if gpu_memory_bytes is not None:
            require_integer("gpu_memory_bytes", gpu_memory_bytes, low=1, high=_MAX_MEMORY_BYTES)
        asked = (model, parallelism, cluster, bucket_entries, timeline, interval, gpu_memory_bytes)
        with self._lock:
            known = self._remembered.get(asked)
            if known is not None:
                self._remembered.move_to_end(asked)
                return known
        estimate = self._predict(*asked)
        with self._lock:
            self._remembered[asked] = estimate
            if len(self._remembered) > self._most_remembered:
                self._remembered.popitem(last=False)
        return estimate

    def _predict(
        self,
        model: ModelConfig,
        parallelism: Parallelism,
        cluster: Cluster | None,
        bucket_entries: int,
        timeline: TimelineKind,
        with_interval: bool,
        gpu_memory_bytes: int | None,
    ) -> Estimate:
        if timeline == "simulate":
            check_simulated(parallelism)
        used, source = (cluster, "asked") if cluster is not None else self._default_cluster(parallelism)
        parts = decompose(
            model=model,
            parallelism=parallelism,
            cluster=used,
            bucket_entries=bucket_entries,
            left_out=self._left_out,
        )
        calibration = self.predictor.calibration_for(timeline)
        needed_by = f"model {model.name}"
        processes = processes_on_a_node(parallelism, used)
        times = ask(
            self.predictor.at(processes), parts.distinct_calls(), needed_by=needed_by, calibration=calibration
        )
        # Configuration 0 is the estimate, the others are its random draws.
        draws = draws_for(timeline, parallelism.chunks) if with_interval else 0
        times_us = drawn_times(times, draws, calibration)
        step = step_times(parts, times_us)
        pipeline = pipeline_times(timeline, parallelism, step)
        steps_s = pipeline.step_us / _US_PER_S
        step_time_s = float(steps_s[0])
        return Estimate(
            step_time_s=step_time_s,
            interval_s=interval(step_time_s, steps_s[1:] * unexplained(calibration, draws))
            if with_interval
            else None,
            timeline=timeline,
            bubble_share=_bubble_share(step, parallelism.micro_batches, float(pipeline.pipeline_us[0])),
            tokens_per_s=parallelism.samples_per_update * model.sequence_length / step_time_s,
            components=components_of(parts, step, times_us),
            stages=tuple(_stages(parts, step)),
            memory=_memory(self.bundle, model, parallelism, gpu_memory_bytes),
            warnings=(
                *self._concurrency(processes),
                *times.warnings,
                *left_out_warnings(model, parallelism, self._left_out),
            ),
            model=model,
            parallelism=parallelism,
            cluster=used,
            cluster_source=source,
            processes_per_node=processes,
            answered_with=self._answered_with(processes, times.sources.values()),
            bucket_entries=bucket_entries,
            provenance=self._provenance[timeline],
            parts=parts,
            answers=times.answers,
            durations=_first(step.durations),
        )

    def _concurrency(self, processes: int) -> tuple[ConcurrencyWarning, ...]:
        found = concurrency_warning(self.bundle.manifest.compute, self._levels, processes)
        return () if found is None else (found,)

    def _answered_with(self, processes: int, sources: Iterable[Key]) -> tuple[int, ...]:
        """Levels of the regressors that answered, rising; a bundle of one level has no choice."""
        if len(self._levels) < 2:
            return self._levels
        entries = self.predictor.at(processes).bundle.entries
        answered = {key: entries[key].processes_per_node for key in set(sources)}
        return tuple(sorted({level for key, level in answered.items() if not is_collective(key[0])}))

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


def _check_types(model: object, parallelism: object, cluster: object) -> None:
    expected = (
        ("model", model, ModelConfig),
        ("parallelism", parallelism, Parallelism),
        ("cluster", cluster, Cluster),
    )
    for name, value, kind in expected:
        if not isinstance(value, kind) and not (name == "cluster" and value is None):
            raise UsageError(f"{name} is {shown(value)}, expected a {kind.__name__}")


def components_of(parts: Decomposition, step: StepTimes, times_us: Mapping[Question, Times]) -> Components:
    """The paper's components of configuration 0 of a step's times."""
    update_us = step.durations.update_us[0]
    calls = parts.first.calls + parts.layer.calls
    syncs = {call.operator: replace(call, count=1) for call in calls if call.operator in _MP_SYNCS}
    return Components(
        layer_forward_s=_seconds(step.layer.forward_us[0]),
        layer_backward_s=_seconds(step.layer.backward_us[0]),
        stage_forward_max_s=_seconds(step.forward_us[0].max()),
        stage_backward_max_s=_seconds(step.backward_us[0].max()),
        dp_all_reduce_s=_seconds(step.durations.all_reduce_us[0, 0]),
        dp_all_gather_s=_seconds(step.gather_us[0, update_us.argmax()]),
        max_update_s=_seconds(update_us.max()),
        mp_all_reduce_s=_seconds(total_us(syncs.values(), times_us)[0]),
        pp_p2p_s=_seconds(total_us(parts.send_forward, times_us)[0]),
    )


def _stages(parts: Decomposition, step: StepTimes) -> Iterable[StageEstimate]:
    forward_us, backward_us = step.forward_us[0], step.backward_us[0]
    for stage in parts.stages:
        yield StageEstimate(
            index=stage.index,
            layers=stage.layers,
            parameters=stage.parameters,
            forward_s=_seconds(forward_us[stage.index]),
            backward_s=_seconds(backward_us[stage.index]),
            all_reduce_s=_seconds(step.durations.all_reduce_us[0, stage.index]),
            optimizer_s=_seconds(step.optimizer_us[0, stage.index]),
            all_gather_s=_seconds(step.gather_us[0, stage.index]),
        )


def _bubble_share(step: StepTimes, micro_batches: int, pipeline_us: float) -> float:
    """The part of the pipeline's time in which the average stage does not compute; sends are no computing."""
    times = step.durations
    stage_us = step.stages_us(times.forward_us + times.backward_us + times.weight_us)[0]
    if pipeline_us <= 0:  # updates so long that passes vanish beside them
        return 0.0
    return max(0.0, 1 - micro_batches * float(stage_us.mean()) / pipeline_us)


def _first(durations: Durations) -> Durations:
    """Configuration 0, read-only, and free of the others."""
    arrays = {name: getattr(durations, name)[:1].copy() for name in (*PER_CHUNK, *PER_STAGE)}
    for array in arrays.values():
        array.flags.writeable = False
    return Durations(**arrays)


def _memory(
    bundle: Bundle, model: ModelConfig, parallelism: Parallelism, gpu_memory_bytes: int | None
) -> Memory:
    """Memory in the precision that the bundle's operators were measured in."""
    # A CPU's memory is that of the whole machine, whatever shares it.
    devices = [device for device in bundle.manifest.compute if device.kind != "cpu"]
    sizes = [device.memory_gib << 30 for device in devices if device.memory_gib]
    source = "asked" if gpu_memory_bytes is not None else "bundle" if sizes else "unknown"
    return Memory(
        stages=stage_memory(
            model,
            parallelism,
            dtype=bundle.manifest.dtype,
            device_kind=device_kind(bundle.manifest.compute),
        ),
        gpu_memory_bytes=gpu_memory_bytes if gpu_memory_bytes is not None else min(sizes, default=None),
        source=source,
    )


def _seconds(time_us: float) -> float:
    return float(time_us) / _US_PER_S


def _provenance(bundle: Bundle, timeline: TimelineKind, calibrated: bool) -> Provenance:
    manifest = bundle.manifest
    calibration = manifest.calibration
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
        calibration=None
        if calibration is None
        else CalibrationUse.of(calibration, timeline=timeline, wanted=calibrated),
    )
