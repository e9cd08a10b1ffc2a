"""An estimate as readable text, for a terminal or a file."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from kernelcast.cli.tables import seconds, seconds_precisely, text_table
from kernelcast.runtime import Estimate
from kernelcast.runtime.answers.fabric_notes import FabricUse
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.estimate.known_shares import origins
from kernelcast.runtime.views.formatting import amount, gibibytes, measured, percent, rate
from kernelcast.runtime.views.step_breakdown import operator_totals

TOP_OPERATORS = 12


def render(estimate: Estimate, *, facts: Sequence[str] = (), sections_after: Sequence[str] = ()) -> str:
    """Headline with further `facts`, further sections, components, stages, memory, the longest operators, warnings."""
    sections = [
        "\n".join((headline(estimate), *facts)),
        *sections_after,
        "Components\n" + _components(estimate),
        "Stages, per micro-batch (forward, backward) and per update\n" + _stages(estimate),
        f"Memory per device, {_room(estimate)}\n" + _memory(estimate),
        "Operators that take most of a step, summed over the stages\n" + _operators(estimate),
    ]
    if warnings := warning_lines(estimate.doubts):
        sections.append("\n".join(f"warning: {line}" for line in warnings))
    return "\n\n".join(sections)


def headline(estimate: Estimate) -> str:
    """The step time, and what it was asked for."""
    layout, model, source = estimate.parallelism, estimate.model, estimate.provenance
    layers = ", ".join(map(str, estimate.layer_counts))
    hardware = "; ".join((*source.compute, *source.fabric)) or "not recorded"
    lines = [
        f"step {seconds_precisely(estimate.step_time_s)}, {rate(estimate.tokens_per_s)} tokens/s",
        "",
    ]
    calibration = source.calibration
    if estimate.interval_s is not None:
        low_s, high_s = estimate.interval_s
        calibrated = calibration is not None and calibration.applied
        corrected = "the stack's factors leave" if source.stack is not None else "the calibration leaves"
        known = source.stack is not None or calibrated
        model_error = f"{corrected} open" if known else "sums get wrong"
        lines.append(
            f"interval  {seconds_precisely(low_s)} to {seconds_precisely(high_s)} "
            f"(90 %: the operators' errors, and what {model_error})"
        )
    return "\n".join(
        (
            *lines,
            f"compute   {_utilisation(estimate)}",
            *_energy(estimate),
            f"timeline  {estimate.timeline}, {layout.schedule}; stages wait {estimate.bubble_share:.1%} "
            "of the pipeline's time",
            f"model     {model.name}: {model.layers} layers, hidden {model.hidden_size}, "
            f"sequence {model.sequence_length}, vocabulary {estimate.padded_vocabulary_size} (padded)",
            f"layout    {layout.degrees} = {layout.world_size} device(s), "
            f"{estimate.cluster.gpus_per_node} per node ({estimate.cluster_source}); "
            f"micro-batch {layout.micro_batch} × {layout.micro_batches}, recompute {layout.recompute}, "
            f"ZeRO {layout.zero}{', sequence parallel' if layout.sequence_parallel else ''}"
            f"{f', {layout.virtual_stages} chunks per stage' if layout.virtual_stages > 1 else ''}",
            f"layers    {layers}",
            f"bundle    {source.bundle} ({source.statistic} times, {source.dtype}, {measured(source.created_at)})",
            f"hardware  {hardware}",
            *(f"data      {text}" for text in source.data),
            *_known(estimate),
            *([] if source.collectives is None else [f"fabric    {_fabric(source.collectives)}"]),
            *([] if source.stack is None else [f"stack     {source.stack.summary}"]),
            *([] if calibration is None else [f"calibration  {calibration.summary}"]),
        )
    )


def _energy(estimate: Estimate) -> list[str]:
    """Energy of a step, where the device's power was measured."""
    energy = estimate.energy
    if energy is None:
        return []
    return [
        f"energy    {energy.step_kwh:.3g} kWh per step, {energy.mean_power_w:.0f} W per device in the mean "
        "(devices alone; power as in measured matrix products)"
    ]


def _known(estimate: Estimate) -> list[str]:
    """How the operators are known, where not all of them were measured."""
    known, others = estimate.known, ", ".join(origins(estimate.concerned))
    if known.measured == 1:
        return []
    carried = f"transferred{f' from {others}' if others else ''}"
    return [
        f"known     {percent(known.measured)} of the operators' time measured on this device, "
        f"{percent(known.transferred)} {carried}, {percent(known.assumed)} assumed"
    ]


def _utilisation(estimate: Estimate) -> str:
    """What the model computes per second and device, against the device's peak."""
    rate_text, peak = f"{amount(estimate.flops_per_s_per_device, 'FLOP/s')} per device", estimate.peak
    if peak is None or estimate.mfu is None:
        return f"{rate_text}; the peak of the device is not known"
    recomputes = estimate.parallelism.recompute != "none"
    return (
        f"{rate_text}, MFU {percent(estimate.mfu)}{f', HFU {percent(estimate.hfu)}' if recomputes else ''} "
        f"of {amount(peak.flops_per_s, 'FLOP/s')} ({peak.device}, {peak.dtype})"
    )


def _fabric(used: FabricUse) -> str:
    how = "described" if used.kind == "described" else f"measured rows of bundle {used.digest[:12]}"
    return f"{used.description} ({how})"


def _components(estimate: Estimate) -> str:
    rows = [[name, seconds(value)] for name, value in estimate.components.to_dict().items()]
    return text_table(("component", "time"), rows, indent="  ")


def _stages(estimate: Estimate) -> str:
    rows = [
        [
            str(stage.layers),
            f"{stage.parameters:,}",
            seconds(stage.forward_s),
            seconds(stage.backward_s),
            seconds(stage.all_reduce_s),
            seconds(stage.update_s),
        ]
        for stage in estimate.stages
    ]
    headers = ("stage", "layers", "parameters", "forward", "backward", "all-reduce", "update")
    return text_table(headers, list(_together(rows)), indent="  ")


def _room(estimate: Estimate) -> str:
    memory = estimate.memory
    if memory.gpu_memory_bytes is None:
        return "a device's size is not known (--gpu-memory)"
    verdict = "fits" if memory.fits else "does NOT fit"
    reserved = f", {_size(memory.reserved_bytes)} of it reserved" if memory.reserved_bytes else ""
    return f"{verdict} into {_size(memory.gpu_memory_bytes)} ({memory.source}){reserved}"


def _memory(estimate: Estimate) -> str:
    memory = estimate.memory
    verdicts = {True: ["yes"], False: ["NO"], None: []}
    has_host = any(stage.host_bytes for stage in memory.stages)
    rows = [
        [
            _size(stage.weights_bytes),
            _size(stage.gradients_bytes),
            _size(stage.optimizer_bytes),
            _size(stage.activations_bytes),
            _size(stage.logits_bytes),
            _size(stage.working_bytes),
            _size(stage.total_bytes),
            *([_size(stage.host_bytes)] if has_host else []),
            *verdicts[memory.fits_stage(stage)],
        ]
        for stage in memory.stages
    ]
    headers = ["stage", "weights", "gradients", "optimizer", "activations", "logits", "working", "total"]
    if has_host:
        headers.append("on the host")
    if memory.fits is not None:
        headers.append("fits")
    return text_table(headers, list(_together(rows)), indent="  ")


def _size(size_bytes: int) -> str:
    """In GiB or MiB, as fingerprints and pages show it; a dash for zero."""
    return gibibytes(size_bytes) if size_bytes else "-"


def _together(rows: list[list[str]]) -> Iterator[list[str]]:
    """Rows of stages with the stage in front; equal neighbours share a row."""
    for values, stages in groupby(range(len(rows)), key=lambda index: rows[index]):
        first, *others = stages
        yield [f"{first}-{others[-1]}" if others else str(first), *values]


def _operators(estimate: Estimate) -> str:
    totals = operator_totals(estimate)
    whole_s = sum(total.time_s for total in totals)
    rows = [
        [
            total.operator,
            total.role,
            total.direction,
            f"{total.calls:,}",
            seconds(total.time_s / total.calls),
            seconds(total.time_s),
            f"{total.time_s / whole_s:.1%}",
        ]
        for total in totals[:TOP_OPERATORS]
    ]
    headers = ("operator", "role", "direction", "calls", "mean time", "device time", "share")
    return text_table(headers, rows, indent="  ")
