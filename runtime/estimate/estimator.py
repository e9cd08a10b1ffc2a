"""From bundle, model and layout to an `Estimate`: a batch of one of the engine that `search` runs in bulk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from kernelcast.runtime.answers.asking import OperatorTimes, Question
from kernelcast.runtime.answers.fabric_choice import FabricChoice, find_fabric
from kernelcast.runtime.answers.predictor import ANSWER_BYTES, Predictor
from kernelcast.runtime.answers.uncertainty import (
    StepErrors,
    around,
    devices_of,
    draws_for,
    interval,
    is_carried,
    shipped_step_errors,
    step_kind,
    unexplained,
)
from kernelcast.runtime.answers.warnings import (
    AnswerWarning,
    concurrency_warning,
    devices_per_node_warnings,
    devices_warning,
    offload_warning,
    optimizer_warning,
    stack_load_warning,
)
from kernelcast.runtime.bundle.calibration import TIMELINES
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.byte_cache import Remembered
from kernelcast.runtime.catalogue import load_bundle, source_meant
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.components import bubble_share, components_of, first_alone, stages_of
from kernelcast.runtime.estimate.defaults import host_link_bytes_per_s
from kernelcast.runtime.estimate.device_memory import device_memory
from kernelcast.runtime.estimate.doubts import provenance_of
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.step_request import StepRequest
from kernelcast.runtime.estimate.utilisation import peak_of, peak_of_step
from kernelcast.runtime.memory.stages import on_cpu
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES, MEMORY, OPTIONS, TimelineKind
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.decomposition import Decomposition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernelcast.runtime.estimate.engine import Engine
    from kernelcast.runtime.stack import Stack

_US_PER_S = 1e6
REMEMBERED_BYTES = 128 << 20
"""Size of the estimates that an `Estimator` caches, and of its regressors' answers."""
_LEAST_BYTES, _QUESTION_BYTES, _CHUNK_BYTES, _NUMBER_BYTES = 1 << 14, 1024, 512, 40
"""Upper bounds of an estimate's size: of its texts and itself, for each question with its answer and doubts, for each
chunk, for each number in the request."""


class TooManyChunks(UsageError):
    """The layout cuts the model into more chunks than allowed (`Estimator.limited`)."""


class Estimator:
    """Predicts training steps from one bundle; safe to use from several threads, keeps no file open. Caches take up to
    `remembered_bytes` each. A `stack` (docs/stacks.md) takes the place of the bundle's calibration, which `calibrated`
    can switch off.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        remembered_bytes: int = REMEMBERED_BYTES,
        calibrated: bool = True,
        stack: Stack | None = None,
    ) -> None:
        self.bundle = bundle
        self.stack, self._is_carried = stack, is_carried(stack, bundle)
        # No source is a CPU.
        self.step_errors = StepErrors() if on_cpu(bundle.manifest.compute) else shipped_step_errors()
        self._devices = devices_of(bundle)
        answers = remembered_bytes // ANSWER_BYTES
        self.predictor = Predictor(bundle, remembered=answers, calibrated=calibrated, stack=stack)
        self._remembered_bytes = remembered_bytes
        self._most_chunks: int | None = None
        self._provenance = {kind: provenance_of(bundle, kind, calibrated, stack) for kind in TIMELINES}
        self._peak = peak_of(bundle)
        self._levels = bundle.levels
        self._remembered = Remembered[tuple[object, ...], Estimate](remembered_bytes)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, calibrated: bool = True, stack: Stack | str | None = None
    ) -> Self:
        """Read and verify a `.kcast` file, or take hardware that ships: `h100-sxm`, or `hardware:h100-sxm`.

        A text without folder and without `.kcast` is hardware unless a file has that name. `stack` may be the name of
        one that ships, or the path of its file. Without `calibrated`, a bundle's calibration is not applied. UsageError
        where the hardware or the stack is unknown; DataError where the file is missing, damaged, or of another version.

        >>> Estimator.load("h100-sxm", stack="fsdp-composer").stack.name
        'fsdp-composer'
        """
        if isinstance(stack, str):
            from kernelcast.runtime.stack import find_stack

            stack = find_stack(stack)
        return cls(load_bundle(source_meant(path)), calibrated=calibrated, stack=stack)

    def limited(self, most_chunks: int) -> Self:
        """The same, caches shared, where `predict` raises TooManyChunks for a layout of more than `most_chunks`."""
        other = copy(self)
        other._most_chunks = most_chunks
        return other

    def with_stack(self, stack: Stack | None) -> Self:
        """The same bundle with another stack; shares the loaded regressors and their answers."""
        other = self._other()
        other.stack, other._is_carried = stack, is_carried(stack, self.bundle)
        other.predictor = self.predictor.with_stack(stack)
        calibrated = self.predictor.calibrated
        other._provenance = {kind: provenance_of(self.bundle, kind, calibrated, stack) for kind in TIMELINES}
        return other

    def leaving_out(self, publisher: str, model: str = "") -> Self:
        """The same, with intervals that leave out the steps that `publisher` measured, or measured of one model."""
        other = self._other()
        other.step_errors = self.step_errors.without(publisher, model)
        return other

    def _other(self) -> Self:
        other = copy(self)
        other._remembered = Remembered(self._remembered_bytes)
        return other

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
        reserved_memory_bytes: int | None = None,
        fabric: FabricChoice | str | None = None,
    ) -> Estimate:
        """Time of one training step of `model`, laid out as `parallelism` on `cluster` (docs/method.md, A step).

        Without `cluster`, `fabric` gives the devices per node, else the bundle's fabric; without any, the whole job is
        on one node. `fabric` answers the collectives instead of the bundle's (docs/fabrics.md); a text is the name of a
        shipped fabric, or the path of its file. `bucket_entries` is the framework's bucket for gradient and parameter
        collectives. `timeline` is an exact simulation of the schedule, or the closed form (the paper's eq. 7 for 1F1B).
        `interval=False` leaves out the step's interval, which saves time. `gpu_memory_bytes` is the memory of a device
        (the bundle's by default), and `reserved_memory_bytes` the part of it that training cannot use (docs/memory.md).
        Repeated questions are answered from a cache. UsageError where the model cannot be laid out so, an argument is
        not allowed, or the bundle knows several fabrics and `cluster` is not given; DataError where the bundle lacks an
        operator that the model needs, cannot answer for the requested attention kernel, or one of its models
        answers nonsense.
        """
        # Before anything is looked up: 1.0 and True are equal to 1.
        _check_types(model, parallelism, cluster)
        OPTIONS["bucket_entries"].check(bucket_entries)
        OPTIONS["timeline"].check(timeline)
        memory = (gpu_memory_bytes, reserved_memory_bytes)
        for field, value in zip(MEMORY.values(), memory, strict=True):
            if value is not None:
                field.check(value)
        over = find_fabric(fabric) if isinstance(fabric, str) else fabric
        arguments = (model, parallelism, cluster, bucket_entries, timeline, over)
        question = (arguments, interval, memory)
        known = self._remembered.get(question)
        if known is not None:
            return known
        self._check_chunks(parallelism)
        estimate = self._predict(StepRequest.of(self.predictor, *arguments), interval, memory)
        self._remembered.put(question, estimate, _bytes_of(estimate))
        return estimate

    def step_time_s(
        self,
        *,
        model: ModelConfig,
        parallelism: Parallelism,
        cluster: Cluster | None = None,
        bucket_entries: int = DEFAULT_BUCKET_ENTRIES,
        timeline: TimelineKind = "simulate",
        fabric: FabricChoice | None = None,
    ) -> float:
        """The step time of `predict` alone, in half the time; errors as there."""
        self._check_chunks(parallelism)
        arguments = (model, parallelism, cluster, bucket_entries, timeline, fabric)
        return StepRequest.of(self.predictor, *arguments).step_time_s()

    def _check_chunks(self, parallelism: Parallelism) -> None:
        if self._most_chunks is not None and parallelism.chunks > self._most_chunks:
            raise TooManyChunks(
                f"pp · virtual_stages is {parallelism.chunks}, expected at most {self._most_chunks}"
            )

    def _predict(
        self, request: StepRequest, with_interval: bool, memory: tuple[int | None, int | None]
    ) -> Estimate:
        model, layout, parts, timeline = (
            request.model,
            request.parallelism,
            request.decomposed(),
            request.timeline,
        )
        # Configuration 0 is the estimate, the others are its random draws.
        draws = draws_for(timeline, layout.chunks) if with_interval else 0
        answers = request.times(draws=draws, with_warnings=True)
        engine = request.engine_of(answers, draws=draws, parts=parts)
        step = request.configuration(engine, answers)
        found_us = step.times(timeline)
        steps_s = self._scattered(request, engine, found_us.step_us / _US_PER_S)
        step_time_s = float(steps_s[0])
        found, time_us = answers.asked, answers.asked.time_us
        return Estimate(
            step_time_s=step_time_s,
            interval_s=interval(step_time_s, steps_s[1:]) if with_interval else None,
            timeline=timeline,
            bubble_share=bubble_share(step, float(found_us.pipeline_us[0])),
            tokens_per_s=layout.samples_per_update * layout.sample_length(model) / step_time_s,
            components=components_of(parts, step, time_us),
            stages=tuple(stages_of(parts, step, time_us)),
            memory=device_memory(self.bundle, model, layout, *memory, request.cluster),
            concerned=MappingProxyType(self._concerned(request, found, parts)),
            model=model,
            parallelism=layout,
            cluster=request.cluster,
            cluster_source=request.cluster_source,
            processes_per_node=request.processes,
            answered_with=self._answered_with(request.processes, found.sources.values()),
            bucket_entries=request.bucket_entries,
            peak=peak_of_step(self._peak, parts),
            provenance=replace(
                self._provenance[timeline],
                collectives=None if request.over is None else request.over.use,
                data=self._data(found.sources.values()),
            ),
            parts=parts,
            answers=MappingProxyType(found.answers),
            durations=first_alone(step.durations),
        )

    def _scattered(
        self, request: StepRequest, engine: Engine, steps_s: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The step's time and its draws, float64 [1 + draws], these with the errors of measured steps."""
        draws = len(steps_s) - 1
        if not draws:
            return steps_s
        step_s, timeline = float(steps_s[0]), request.timeline
        errors = self.step_errors.of(timeline)
        kind = step_kind(request.model, request.parallelism)
        spread = unexplained(request.factors, draws, errors, kind, self._devices, is_carried=self._is_carried)
        if self.stack is not None:
            spread = spread * request.exposed_draws(
                self.stack, engine, step_us=step_s * _US_PER_S, draws=draws
            )
        scattered = around(step_s, steps_s[1:], request.factors, errors) * spread
        return np.concatenate([steps_s[:1], scattered])

    def _concerned(
        self, step: StepRequest, answered: OperatorTimes, parts: Decomposition
    ) -> dict[AnswerWarning, frozenset[Question]]:
        """Warnings of the step, each with the questions that it concerns."""
        collectives = frozenset(one for one in answered.answers if OPERATORS[one[0][0]].is_collective)
        computing = frozenset(answered.answers) - collectives
        updates = frozenset(one for one in answered.answers if one[0][0] == "adam")
        layout, processes = step.parallelism, step.processes
        entries = self.predictor.at(processes).bundle.entries
        of_step = (
            *((one, collectives) for one in self._devices_per_node(step)),
            (devices_warning(layout.world_size), frozenset(answered.answers)),
            (optimizer_warning(layout), updates),
            (offload_warning(layout, host_link_bytes_per_s(self.bundle)), updates),
            (concurrency_warning(self.bundle.manifest.compute, self._levels, processes), computing),
            (stack_load_warning(self.stack, answered.sources.values(), entries), computing),
        )
        found = {warning: questions for warning, questions in of_step if warning is not None}
        for warning, questions in answered.concerned.items():
            # A sum that answers for its parts changes nothing unless a schedule splits them.
            if parts.is_split or not warning.is_part:
                found[warning] = frozenset(questions)
        return found

    def _data(self, sources: Iterable[Key]) -> tuple[str, ...]:
        """Sources of the measurements that answered, where the bundle states them, the most frequent first."""
        entries = self.bundle.entries
        stated = Counter(text for key in sources if key in entries and (text := entries[key].data))
        return tuple(text for text, _ in stated.most_common())

    def _answered_with(self, processes: int, sources: Iterable[Key]) -> tuple[int, ...]:
        """Levels of the regressors that answered, ascending; for a bundle with a single level that level."""
        if len(self._levels) < 2:
            return self._levels
        entries = self.predictor.at(processes).bundle.entries
        # Collectives may be answered by another fabric.
        answered = {key: entries[key].processes_per_node for key in set(sources) if key in entries}
        return tuple(
            sorted({level for key, level in answered.items() if not OPERATORS[key[0]].is_collective})
        )

    def _devices_per_node(self, request: StepRequest) -> tuple[AnswerWarning, ...]:
        """Warnings where the bundle's nodes, or the fabric's, have another number of devices than those used."""
        known = [one.gpus_per_node for one in self.bundle.manifest.fabric]
        over = request.over
        fabric = None if over is None or not over.is_asked else (over.name, over.devices_per_node)
        used, source = request.cluster.gpus_per_node, request.cluster_source
        return devices_per_node_warnings(used, source, bundle=known, fabric=fabric)


def _bytes_of(estimate: Estimate) -> int:
    """Approximate size of what an estimate does not share; an exact count would take as long as the estimate."""
    given = estimate.parallelism.expert_tokens or ()
    kept = _QUESTION_BYTES * len(estimate.answers) + _CHUNK_BYTES * estimate.parallelism.chunks
    return _LEAST_BYTES + kept + _NUMBER_BYTES * len(given)


def _check_types(model: object, parallelism: object, cluster: object) -> None:
    expected = (
        ("model", model, ModelConfig),
        ("parallelism", parallelism, Parallelism),
        ("cluster", cluster, Cluster),
    )
    for name, value, kind in expected:
        if not isinstance(value, kind) and not (name == "cluster" and value is None):
            raise UsageError(field=name, found=value, expected=f"a {kind.__name__}")
