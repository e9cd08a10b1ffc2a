"""An estimate as text, for a terminal or a file."""

from collections.abc import Sequence
from itertools import groupby

from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import RED, Facts, facts, heading, is_quiet, styled, title, warning, wrapped
from kernelcast.runtime import Estimate
from kernelcast.runtime.answers.asking import KERNEL
from kernelcast.runtime.answers.fabric_choice import FabricUse
from kernelcast.runtime.bundle.regressor_entry import STATISTICS
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.doubts import origins, warning_lines
from kernelcast.runtime.request.fields import AS_MEASURED
from kernelcast.runtime.step.chunks import counts_text
from kernelcast.runtime.views.formatting import (
    amount,
    between,
    gibibytes,
    measured,
    percent,
    rate,
    seconds,
    sizes_text,
    table_texts,
)
from kernelcast.runtime.views.step_breakdown import operator_rows

TOP_OPERATORS = 12


def render(
    estimate: Estimate,
    *,
    at_front: Facts | None = None,
    further: Facts | None = None,
    sections_after: Sequence[str] = (),
    sections_asked: Sequence[str] = (),
    lists_warnings: bool = False,
) -> str:
    """Headline and facts; without --quiet also components, stages, memory, the longest operators and warnings.

    Facts `at_front` follow the step's own, `further` facts follow the timeline; `sections_after` and,
    with --quiet too, `sections_asked` follow the facts.
    """
    if is_quiet():
        return "\n\n".join((headline(estimate, at_front=at_front, is_brief=True), *sections_asked))
    operators = text_table(*table_texts(operator_rows(estimate)[:TOP_OPERATORS]), indent="  ")
    sections = [
        headline(estimate, at_front=at_front, further=further),
        *sections_after,
        *sections_asked,
        title("Components", _components(estimate)),
        title("Stages, per micro-batch (forward, backward) and per update", _stages(estimate)),
        title(f"Memory per device, {_room(estimate)}", _memory(estimate)),
        title("Longest operators, summed over the stages", operators),
    ]
    if lines := warnings_text(estimate, each=lists_warnings):
        sections.append(lines)
    return "\n\n".join(sections)


def warnings_text(estimate: Estimate, *, each: bool = False) -> str:
    """Warnings by cause, one line each; with `each`, every warning below its cause."""
    if not each:
        return "\n".join(map(warning, warning_lines(estimate.doubts, hint="--warnings lists them")))
    lines = []
    for doubt in estimate.doubts:
        share = "" if doubt.share is None else f", {percent(doubt.share)} of the step"
        lines.append(warning(f"{doubt.cause.in_words} ({len(doubt.warnings)}{share})"))
        lines += [wrapped(str(one), begin="  ", indent="    ") for one in doubt.warnings]
    return "\n".join(lines)


def headline(
    estimate: Estimate,
    *,
    at_front: Facts | None = None,
    further: Facts | None = None,
    is_brief: bool = False,
) -> str:
    """Step time, grade, layout, memory, model, hardware and sources; unless `is_brief` also layers and timeline."""
    layout, model, source = estimate.parallelism, estimate.model, estimate.provenance
    used, calibration = source.collectives, source.calibration
    mfu = "" if estimate.mfu is None else f", MFU {percent(estimate.mfu)}"
    rows: Facts = {
        "grade": None if estimate.grade is None else str(estimate.grade),
        "layout": f"{layout.degrees} = {layout.world_size} device(s); "
        f"micro-batch {layout.micro_batch} × {layout.micro_batches}, recompute {layout.recompute}, "
        f"ZeRO {layout.zero}{', sequence parallel' if layout.sequence_parallel else ''}"
        f"{f', {layout.virtual_stages} chunks per stage' if layout.virtual_stages > 1 else ''}",
        "interval": _interval(estimate),
        "steps": _spread(estimate),
        "compute": _utilisation(estimate),
        "memory": _fullest(estimate),
        **(at_front or {}),
        "model": f"{model.name}: {model.layers} layers, hidden {model.hidden_size}, "
        f"sequence {model.sequence_length}, vocabulary {estimate.padded_vocabulary_size} (padded)",
    }
    if not is_brief:
        waiting = f"bubble {percent(estimate.bubble_share)} of the pipeline's time"
        rows["layers"] = counts_text(estimate.layer_counts)
        rows["timeline"] = f"{estimate.timeline}, {layout.schedule}; {waiting}"
    rows |= further or {}
    rows |= {
        "energy": _energy(estimate),
        "hardware": f"{layout.world_size:,} × {'; '.join(source.compute) or 'not recorded'}, "
        f"{estimate.per_node_text}",
        "fabric": ("; ".join(source.fabric) or "not recorded") if used is None else _fabric(used),
        "stack": None if source.stack is None else str(source.stack),
        "calibration": None if calibration is None else calibration.summary,
        "attention": _attention(estimate),
        "known": _known(estimate),
        "bundle": f"{source.bundle} ({STATISTICS[source.statistic]}, {source.dtype}, {measured(source.created_at)})",
        "data": () if is_brief else source.data,
    }
    # Fine-tuning counts in sequences, of one sample or of several that are packed.
    per_s = estimate.tokens_per_s / model.sequence_length
    is_tuning = layout.lora_rank or layout.sequences_per_sample > 1
    samples = f", {rate(per_s)} sequences/s" if is_tuning else ""
    first = f"step {seconds(estimate.step_time_s)}, {rate(estimate.tokens_per_s)} tokens/s{samples}{mfu}"
    return f"{heading(first)}\n\n{facts(rows)}"


def _spread(estimate: Estimate) -> str | None:
    spread, step_s = estimate.spread, estimate.step_time_s
    if spread is None:
        return None
    low, high = (percent(one - 1) for one in spread.p99_range)
    p90, p99 = (seconds(step_s * one, like=step_s) for one in (spread.p90, spread.p99))
    of = f"spread as in {spread.publishers} publishers' runs of this size; their p99 is {low} to {high} above p50"
    return f"p50 {seconds(step_s)}, p90 {p90}, p99 {p99} ({of})"


def _attention(estimate: Estimate) -> str | None:
    """The requested attention kernel, if it is not the measured one."""
    asked = estimate.parallelism.attention_kernel
    if asked == AS_MEASURED:
        return None
    changed = [one.values for one in estimate.concerned if one.kind == KERNEL]
    times = ", ".join(
        f"{one['direction']} {one['factor']:.2f} × {one['measured']}"
        for one in sorted(changed, key=lambda one: str(one["direction"]), reverse=True)
    )
    how = f": {times} (measured), by published ratios" if times else ", as measured"
    return asked + how


def _interval(estimate: Estimate) -> str | None:
    if estimate.interval_s is None:
        return None
    source, (low_s, high_s) = estimate.provenance, estimate.interval_s
    calibrated = source.calibration is not None and source.calibration.applied
    if source.stack is not None:
        rest = "the residual of the stack"
    else:
        rest = "the residual of the calibration" if calibrated else "the error of their sum"
    between_text = between(low_s, high_s, like=estimate.step_time_s)
    return f"{between_text} (90 %: the operators' errors and {rest})"


def _fullest(estimate: Estimate) -> str:
    memory = estimate.memory
    needed, device_bytes = gibibytes(memory.largest_bytes), memory.gpu_memory_bytes
    if (interval := memory.interval_bytes) is not None:
        low, high = map(gibibytes, interval)
        needed += f" ({low.removesuffix(high[-4:])} to {high}, 90 %)"
    if device_bytes is None:
        return f"{needed} on the fullest device, whose memory size is not known (--gpu-memory)"
    taken = f" ({taken})" if (taken := sizes_text(memory.taken_bytes)) else ""
    verdict = styled(_verdict(memory), RED) if memory.fit_verdict == "does not fit" else _verdict(memory)
    if (probability := memory.fit_probability) is not None:
        verdict += f" (probability {probability:.2f})"
    return f"{needed} of {gibibytes(device_bytes)} on the fullest device{taken}: {verdict}"


def _verdict(memory: Memory) -> str:
    return str(memory.fit_verdict).replace("not", "NOT")


def _energy(estimate: Estimate) -> str | None:
    """Energy of a step, if the device's power was measured."""
    energy = estimate.energy
    if energy is None:
        return None
    return (
        f"{energy.step_kwh:.3g} kWh per step, {energy.mean_power_w:.0f} W per device on average "
        "(devices only; power as in measured GEMMs)"
    )


def _known(estimate: Estimate) -> str | None:
    """How the operators are known, if some were not measured."""
    known, others = estimate.known, ", ".join(origins(estimate.concerned))
    if known.measured == 1:
        return None
    carried = f"transferred{f' from {others}' if others else ''}"
    return (
        f"{percent(known.measured)} of the operators' time measured on this device, "
        f"{percent(known.transferred)} {carried}, {percent(known.assumed)} assumed"
    )


def _utilisation(estimate: Estimate) -> str:
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
    rows = [[name, seconds(value)] for name, value in estimate.components.to_dict().items() if value]
    return text_table(("component", "time"), rows, indent="  ")


def _stages(estimate: Estimate) -> str:
    stages = estimate.stages
    columns = {
        "layers": [str(stage.layers) for stage in stages],
        "parameters": [f"{stage.parameters:,}" for stage in stages],
        "forward": [seconds(stage.forward_s) for stage in stages],
        "backward": [seconds(stage.backward_s) for stage in stages],
        "all-reduce": [seconds(stage.all_reduce_s) for stage in stages],
        "update": [seconds(stage.update_s) for stage in stages],
    }
    optional = ("all-reduce",) if all(stage.all_reduce_s == 0 for stage in stages) else ()
    return _by_stage(columns, optional)


def _room(estimate: Estimate) -> str:
    memory = estimate.memory
    if memory.gpu_memory_bytes is None:
        return "a device's size is not known (--gpu-memory)"
    less = f" less {taken}" if (taken := sizes_text(memory.taken_bytes)) else ""
    source = memory.source.replace("asked", "given")
    return f"{_verdict(memory)} into {_size(memory.gpu_memory_bytes)} ({source}){less}"


def _memory(estimate: Estimate) -> str:
    memory = estimate.memory
    names = ["weights", "gradients", "optimizer", "activations", "logits", "working", "workspace", "total"]
    if any(stage.host_bytes for stage in memory.stages):
        names.append("host")
    columns = {
        name.replace("host", "on the host"): [
            _size(getattr(stage, f"{name}_bytes")) for stage in memory.stages
        ]
        for name in names
    }
    if memory.fits is not None:
        columns["fits"] = ["yes" if memory.fits_stage(stage) else "NO" for stage in memory.stages]
    return _by_stage(columns)


def _by_stage(columns: dict[str, list[str]], optional: Sequence[str] = ()) -> str:
    """A table by stage; equal neighbours share a row."""
    rows = list(zip(*columns.values(), strict=True))
    cells = []
    for values, stages in groupby(range(len(rows)), key=rows.__getitem__):
        first, *others = stages
        cells.append((f"{first}-{others[-1]}" if others else str(first), *values))
    return text_table(("stage", *columns), cells, indent="  ", optional=optional)


def _size(size_bytes: int) -> str:
    """A size in GiB or MiB; a dash for zero."""
    return gibibytes(size_bytes) if size_bytes else "-"
