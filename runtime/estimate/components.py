"""Components, stages and the pipeline's idle share of a priced step."""

from collections.abc import Callable, Iterable

from kernelcast.runtime.estimate.configurations import Configurations
from kernelcast.runtime.estimate.estimate import Components, StageEstimate
from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE, SAVED, Durations
from kernelcast.runtime.pipeline.schedules import saved_in_pairs_us
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.op import COMPUTED_ONCE, Call

_US_PER_S = 1e6
HOST = "host"
"""Time of an update outside its ops: the part that the host computes, and kernels that it launches too late."""


def components_of(parts: Decomposition, step: Configurations, time_us: Callable[[Call], float]) -> Components:
    """The paper's components of configuration 0; `time_us` gives the time of one call."""
    update_us = step.durations.update_us[0]
    blocks = (parts.first, parts.layers[0])
    passes = (own for one in blocks for own in (one.passes.forward, one.passes.backward))
    # One of each collective of the tensor-parallel group, at the size of a layer where it has one.
    syncs = {call.operator: call for own in passes for call in own.calls if call.role == "tensor"}
    return Components(
        layer_forward_s=_seconds(step.layer_forward_us[0]),
        layer_backward_s=_seconds(step.layer_backward_us[0]),
        stage_forward_max_s=_seconds(step.forward_us[0].max()),
        stage_backward_max_s=_seconds(step.backward_us[0].max()),
        dp_all_reduce_s=_seconds(step.durations.all_reduce_us[0, 0]),
        dp_all_gather_s=_seconds(step.gather_us[0, update_us.argmax()]),
        max_update_s=_seconds(update_us.max()),
        tp_all_reduce_s=_seconds(sum(map(time_us, syncs.values()))),
        pp_p2p_s=_seconds(sum(map(time_us, parts.send))),
        expert_exchange_s=_exchange_s(parts, ("expert", "expert_tensor"), time_us),
        context_exchange_s=_exchange_s(parts, ("context",), time_us),
    )


def stages_of(
    parts: Decomposition, step: Configurations, time_us: Callable[[Call], float]
) -> Iterable[StageEstimate]:
    """Every stage: parameters, layers, and times in configuration 0; `time_us` gives the time of one call."""
    forward_us, backward_us = step.forward_us[0], step.backward_us[0]
    computed_us = step.durations.update_us[0] - step.gather_us[0]
    known = {
        stage: (parts.parameters(stage), _update_ops_s(parts, stage, time_us))
        for stage in dict.fromkeys(parts.stages)
    }
    for index, stage in enumerate(parts.stages):
        parameters, ops_s = known[stage]
        yield StageEstimate(
            index=index,
            layers=stage.layers,
            parameters=parameters,
            forward_s=_seconds(forward_us[index]),
            backward_s=_seconds(backward_us[index]),
            all_reduce_s=_seconds(step.durations.all_reduce_us[0, index]),
            update_ops_s=_with_host(ops_s, _seconds(computed_us[index])),
            all_gather_s=_seconds(step.gather_us[0, index]),
        )


def _update_ops_s(
    parts: Decomposition, stage: StageKind, time_us: Callable[[Call], float]
) -> dict[str, float]:
    """Seconds of the ops that a kind of stage computes once per update, by name."""
    found: dict[str, float] = {}
    for name, call in parts.of_update(stage):
        if name in COMPUTED_ONCE:
            found[str(name)] = found.get(str(name), 0.0) + _seconds(call.count * time_us(call))
    return found


def _with_host(ops_s: dict[str, float], computed_s: float) -> dict[str, float]:
    """Seconds of ops, and what is left of all `computed_s`: the host's."""
    host_s = computed_s - sum(ops_s.values())
    return ops_s | ({HOST: host_s} if host_s > 1e-9 * computed_s else {})


def bubble_share(step: Configurations, pipeline_us: float) -> float:
    """The share of the pipeline's time in which the average stage does not compute; sends do not count as compute."""
    times = step.durations
    stage_us = step.per_stage(times.forward_us + times.backward_us + times.weight_us)[0]
    m = int(step.micro_batches[0])
    structure = step.structure
    stage_us = stage_us - saved_in_pairs_us(times, structure.schedule, m, structure.virtual_stages)[0] / m
    if pipeline_us <= 0:  # updates so long that passes vanish next to them
        return 0.0
    return max(0.0, 1 - m * float(stage_us.mean()) / pipeline_us)


def first_alone(durations: Durations) -> Durations:
    """Configuration 0, read-only, and free of the others."""
    arrays = {
        name: array[:1].copy()
        for name in (*PER_CHUNK, *PER_STAGE, *SAVED)
        if (array := getattr(durations, name)) is not None
    }
    for array in arrays.values():
        array.flags.writeable = False
    overlap = None if durations.overlap is None else durations.overlap.take(slice(0, 1))
    return Durations(**arrays, overlap=overlap)


def _exchange_s(parts: Decomposition, roles: tuple[str, ...], time_us: Callable[[Call], float]) -> float:
    """Collectives in some roles of a layer's forward pass, for the kind of layer with the most; a ring's included."""
    longest_us = 0.0
    for layer in parts.layers:
        own = (call for call in layer.passes.forward.collectives if call.role in roles)
        longest_us = max(longest_us, sum(call.count * time_us(call) for call in own))
    return _seconds(longest_us)


def _seconds(time_us: float) -> float:
    return float(time_us) / _US_PER_S
