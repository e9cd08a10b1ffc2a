"""Memory of the devices of every stage: the parts added up."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import numpy as np

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.memory.contents import Contents, Kept
from kernelcast.runtime.memory.in_flight import FULL, SELECTIVE, Floats, Load, Rows, loads
from kernelcast.runtime.memory.states import (
    Precision,
    States,
    as_masters,
    frozen_states,
    model_states,
    precision_of,
    with_optimizer,
)
from kernelcast.runtime.memory.working import copies_bytes, largest_of, working_bytes, workspace_bytes
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import chunks_of, kinds_of
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.runtime.step.op import Number
from kernelcast.runtime.step.parameters import HeldParameters

_LAYERS_ON_THEIR_WAY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one device of a pipeline stage, at its fullest moment.

    - `weights_bytes`, `gradients_bytes`, `optimizer_bytes`: the model states under ZeRO;
    - `activations_bytes`: what autograd keeps for the micro-batches in flight;
    - `logits_bytes`: logits and other tensors that the loss keeps, on the last stage;
    - `working_bytes`: activation gradients in use, recomputed activations, whole weights and gradients of the
      blocks that ZeRO works on, tables;
    - `workspace_bytes`: of matrix products, whatever is trained;
    - `fragments_bytes`: freed in blocks that are smaller than what is allocated later: not in the total, but in what
      torch counts as reserved;
    - `host_bytes`: states of the optimizer and activations in the host's memory instead.
    """

    stage: int
    layers: int
    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    working_bytes: int
    workspace_bytes: int
    fragments_bytes: int
    host_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of the device's."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.working_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True)
class Bytes:
    """The parts of `StageMemory` as arrays, float64 [rows], and the parameters on a device. `in_use` are the parts of
    `working`: its fullest moment, buffers, blocks that ZeRO gathers, activations on their way to the host.
    """

    parameters: Number
    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    working: Floats
    workspace: Number
    fragments: Floats
    host: Floats
    moments: tuple[Floats, ...]
    in_use: tuple[Floats, ...]

    @property
    def total(self) -> Floats:
        """All bytes."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.working + self.workspace


def on_cpu(compute: Iterable[ComputeFingerprint]) -> bool:
    """Whether all known devices are CPUs, whose memory is counted differently."""
    return {device.kind for device in compute} == {"cpu"}


def architecture_of(compute: Iterable[ComputeFingerprint]) -> str:
    """The GPU architecture of devices, as devices.toml names it; "" where they have several, or it is not known."""
    found = {known.architecture if (known := device_named(one.device_name)) else "" for one in compute}
    return found.pop() if len(found) == 1 else ""


def stage_memory(model: ModelConfig, parallelism: Parallelism, **options: Any) -> tuple[StageMemory, ...]:
    """Memory of one device of every stage; options as of `bytes_of_loads`, UsageError for an unknown `dtype`."""
    stages, found = bytes_by_stage(model, parallelism, **options)
    parameters = np.broadcast_to(found.parameters, len(stages)).tolist()
    columns = [getattr(found, name).tolist() for name in _BY_STAGE]
    return tuple(
        StageMemory(
            stage=index,
            layers=sum(load.layers),
            parameters=int(held),
            workspace_bytes=int(found.workspace),
            **{f"{name}_bytes": ceil(one) for name, one in zip(_BY_STAGE, own, strict=True)},
        )
        for index, (load, held, *own) in enumerate(zip(stages, parameters, *columns, strict=True))
    )


_BY_STAGE = (
    "weights", "gradients", "optimizer", "activations", "logits", "working", "fragments", "host"
)  # fmt: skip


def bytes_by_stage(
    model: ModelConfig, parallelism: Parallelism, **options: Any
) -> tuple[tuple[Load, ...], Bytes]:
    """The stages at their fullest, and their bytes; errors as of `stage_memory`, options as of `bytes_of_loads`."""
    parallelism.check(model)
    stages = stages_at_their_fullest(model, parallelism)
    return stages, bytes_of_loads(model, parallelism, stages, **options)


def bytes_of_loads(
    model: ModelConfig,
    parallelism: Parallelism,
    stages: tuple[Load, ...],
    *,
    dtype: str = "float16",
    is_cpu: bool = False,
    architecture: str = "",
    workspace: int | None = None,
    only: str = "",
    cluster: Cluster | None = None,
) -> Bytes:
    """The bytes of loads of a layout's stages, a row each. `dtype` is float16, bfloat16 (mixed, fp32 master weights) or
    float32. A GPU's `architecture` decides workspaces and 8-bit copies; `workspace` is CUBLAS_WORKSPACE_CONFIG's. With
    `only`, what the ops of that name take of states, activations and logits. No byte depends on the `cluster`: with the
    one of the times, layers are described once for both.
    """
    precision = precision_of(dtype, parallelism.reduce_dtype)
    own, whose = Layouts.of(parallelism), np.zeros(len(stages), dtype=np.intp)
    rows = Rows.of_loads(np.array([load.numbers for load in stages], dtype=np.float64), own.take(whose))
    alike: dict[str, Any] = {"is_cpu": is_cpu, "only": only, "cluster": cluster}
    contents = Contents.of(model, parallelism, precision.element, **alike).at(whose)
    buffers = 0 if is_cpu else workspace_bytes(model, parallelism, parallelism.tp, architecture, workspace)
    return memory_of(model, rows, contents, precision=precision, architecture=architecture, buffers=buffers)


def memory_of(
    model: ModelConfig,
    rows: Rows,
    contents: Contents,
    *,
    precision: Precision,
    architecture: str = "",
    buffers: Number = 0,
) -> Bytes:
    """Memory of one device of every row, put together from its own of `contents`: of activations what the layers in
    flight keep, on the last chunk the final norm's too, on the first the embedding's mask. `buffers` are a process's.
    """
    held = contents.parameters.of_stage(layers=rows.layers, first=rows.first, last=rows.last)
    states = _states(rows, contents, held, precision)
    saved, copied = copies_bytes(rows.layout, precision.weight, architecture)
    of_device = 1 - rows.layout.offload_optimizer
    away = [rows.layout.offload_activations * _kept_in_flight(rows, one.offloaded) for one in contents.layers]
    offloaded = _of_live_layers(rows, away)
    working = working_bytes(rows, contents)
    # One layer's are on their way while another one computes.
    on_their_way = _LAYERS_ON_THEIR_WAY * largest_of(rows, away)
    blocks = _whole_blocks(rows, contents, precision, saved if contents.sizes.is_quantised else 0.0)
    in_use = (working.peak, working.buffers, blocks, on_their_way)
    return Bytes(
        parameters=held.total,
        weights=_with_copies(states.weights, rows, contents, saved, copied),
        gradients=states.gradients,
        optimizer=of_device * states.optimizer,
        host=(1 - of_device) * states.optimizer + offloaded,
        activations=_activations(rows, contents, offloaded),
        logits=rows.last * (1 + model.extra_predictions) * _logits(rows, contents),
        working=sum(in_use, np.zeros(1)),
        workspace=buffers,
        fragments=working.fragments,
        moments=working.moments,
        in_use=in_use,
    )


def _states(rows: Rows, contents: Contents, held: HeldParameters, precision: Precision) -> States:
    """Model states of trained parameters, and weights of frozen ones and of a reference model, which ran before."""
    own = with_optimizer(precision, rows.layout.optimizer, rows.layout.optimizer_states)
    masters = None if contents.sizes.modules.separates_masters else as_masters(own)
    copy = int(contents.sizes.has_reference_weights)
    parts = [(held.dense, held.frozen, rows.shards)]
    if contents.sizes.model.experts:
        parts.append((held.experts, held.frozen_experts, rows.expert_shards))
    states = [
        model_states(trained, shards, rows.zero, own, masters)
        + frozen_states(frozen + copy * trained, shards, rows.zero, precision)
        for trained, frozen, shards in parts
    ]
    return sum(states[1:], states[0])


def _with_copies(weights: Floats, rows: Rows, contents: Contents, saved: float, copied: float) -> Floats:
    """Weights with cast ones, entries having `saved` bytes less and `copied` more; ZeRO-3 copies gathered blocks."""
    cast = [one.cast for one in contents.layers]
    of_stage = (
        sum(count * entries for count, entries in zip(rows.layers, cast, strict=True))
        + rows.last * contents.loss.cast
    )
    at_once = np.minimum(of_stage, np.where(rows.zero >= 3, 2.0 * largest_of(rows, cast), of_stage))
    found: Floats = weights + copied * at_once - saved * of_stage / np.where(rows.zero >= 3, rows.shards, 1.0)
    return found


def _of_live_layers(rows: Rows, values: Sequence[Floats]) -> Floats:
    return sum((live * own for live, own in zip(rows.live_layers, values, strict=True)), np.zeros(1))


def _activations(rows: Rows, contents: Contents, offloaded: Floats) -> Floats:
    """What the layers and both ends keep for the micro-batches in flight, without what is `offloaded`."""
    layers, loss, extra_predictions = contents.layers, contents.loss, contents.sizes.model.extra_predictions
    by_layer = [_kept_in_flight(rows, one.all_kept) for one in layers]
    activations = (
        _of_live_layers(rows, by_layer)
        - offloaded
        + _pipeline_bytes(rows, contents)
        + sum(rows.late * count * one.late for count, one in zip(rows.layers, layers, strict=True))
        + rows.first * rows.live_first * contents.embedding
        + rows.last * (rows.live_last + rows.late) * loss.kept
    )
    if extra_predictions:
        further = kinds_of(contents.sizes.model).of_layer[-1]
        in_flight = rows.live_last * by_layer[further]
        late = rows.late * layers[further].late
        activations = activations + rows.last * extra_predictions * (in_flight + late)
    return activations


def _logits(rows: Rows, contents: Contents) -> Floats:
    """Logits and log-probabilities of one output. Late weight gradients wait with the gradients of the logits."""
    loss = contents.loss
    return rows.live_last * loss.logits + rows.late * loss.late + rows.live_last * loss.log_probabilities


def offloaded_by_layers(model: ModelConfig, layouts: Layouts, *, dtype: str) -> Floats:
    """Bytes that a layer of each kind sends to the host for a micro-batch (first stage), float64 [kinds, layouts]."""
    first = [stages_at_their_fullest(model, layouts.parallelism(row))[0] for row in range(len(layouts))]
    rows = Rows.of_loads(np.array([load.numbers for load in first], dtype=np.float64), layouts)
    contents = Contents.of(model, layouts.as_one, precision_of(dtype).element, is_cpu=False)
    sent = [_kept_in_flight(rows, one.offloaded) for one in contents.layers]
    return layouts.like.offload_activations * np.stack(sent)


def stages_at_their_fullest(model: ModelConfig, layout: Parallelism) -> tuple[Load, ...]:
    """The stages of a layout, each at its fullest."""
    counts = tuple(chunk.counts for chunk in chunks_of(model, layout))
    return loads(layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches, counts)


def _kept_in_flight(rows: Rows, layer: Kept) -> Floats:
    """Bytes per layer and micro-batch in flight, by recomputation."""
    total = layer.block_input + layer.others
    partly = np.where(rows.recompute == SELECTIVE, total - layer.dropped, total)
    # A chunk's last layers may be kept whole; chunks have about as many layers each.
    some = rows.layout.recompute_layers
    kept_layers = np.maximum(0.0, rows.chunk_layers - some) if some else 0.0
    chunk_layers = np.maximum(1.0, rows.chunk_layers)
    inputs = np.ceil(chunk_layers / rows.together) / chunk_layers * layer.block_input
    fully = inputs + kept_layers / chunk_layers * layer.others
    in_flight: Floats = np.where(rows.recompute == FULL, fully, partly)
    return in_flight


def _pipeline_bytes(rows: Rows, contents: Contents) -> Floats:
    """Outputs that a stage keeps after sending (not Megatron-LM, arXiv 2205.05198, appendix B), and receive buffers."""
    modules, one = contents.sizes.modules, contents.layers[0].block_input
    if modules.frees_outputs:
        return np.zeros(1)
    held, chunk = sum(rows.layers, np.zeros(1)), np.maximum(1.0, rows.chunk_layers)
    passes = sum(rows.live_layers, np.zeros(1)) / chunk  # of a chunk, in flight
    entries = passes - rows.last * rows.live_last
    if modules.receives_all:
        chunks = np.maximum(1.0, held / chunk)
        received = rows.layout.micro_batches / rows.copies * (2 * chunks - rows.first - rows.last)
        entries = entries + received - (passes - rows.first * rows.live_first)
    found: Floats = np.maximum(0.0, entries) * one
    return found


def _whole_blocks(rows: Rows, contents: Contents, precision: Precision, saved: float) -> Floats:
    """Gradients of the largest block (from ZeRO-2 on), and weights of it and, as they arrive, of the next (ZeRO-3);
    entries of those in 4 bit have `saved` bytes less.
    """
    less = saved / precision.weight
    own = largest_of(rows, [layer.parameters - less * layer.cast for layer in contents.layers])
    end = np.maximum(rows.first, rows.last) * contents.loss.matrix
    largest = np.maximum(own, end)
    sharded = rows.shards > 1
    trained = largest
    if contents.parameters.are_frozen:
        trained = largest_of(rows, [layer.adapters for layer in contents.layers])
    gradients = np.where(sharded & (rows.zero >= 2), precision.gradient * trained, 0.0)
    two = np.where(rows.has_layers, own + largest, largest)
    return gradients + np.where(sharded & (rows.zero >= 3), precision.weight * two, 0.0)
