"""Lower bounds of operator times in a step: the hardware's peaks, and the FLOP/s that it sustains under load."""

import math

from kernelcast.runtime.answers.asking import OperatorTimes, Question
from kernelcast.runtime.answers.predictor import Answer
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.hardware.collectives import Setting, least_us
from kernelcast.runtime.hardware.device_links import node_of
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
from kernelcast.runtime.hardware.limits import limits
from kernelcast.runtime.hardware.roofline import LAUNCH_FLOOR_US
from kernelcast.runtime.hardware.sustained import clock_scale, sustained_flops_per_s
from kernelcast.runtime.operators import OPERATORS

_US_PER_S = 1e6


def cap_by_device(bundle: Bundle, found: OperatorTimes, power_limit_w: float = 0.0) -> None:
    """Raise answers to what the bundle's device allows, where it is known: its peaks, and its sustained FLOP/s.

    Sustained FLOP/s were measured elsewhere: times that this device itself took under sustained load stay as they are,
    unless the step's devices have another power limit. That lowers the clock of every operator that computing limits,
    not only of those that draw more: it is kept as a mean over many operators. The answer of a substitute takes at
    least the launches of the operator's own kernels.
    """
    device = device_named(name) if (name := _device_name(bundle)) else None
    trained_in = bundle.manifest.dtype
    if device is None or trained_in not in ELEMENT_BYTES:
        return
    slower = 1 / clock_scale(device, power_limit_w)
    held_in = {one: sustained_flops_per_s(device, one, power_limit_w) for one in ELEMENT_BYTES}
    for one, answer in found.answers.items():
        (operator, direction), vector, _ = one
        row = OPERATORS[operator]
        if row.is_collective or math.isnan(answer[0]):
            continue
        dtype = row.dtype_in(trained_in)
        held = held_in[dtype]
        known = limits(row, direction, vector, dtype=dtype, element_bytes=ELEMENT_BYTES[dtype], device=device)
        least_us = max((limit.least_us for limit in known), default=0.0)
        source = found.sources.get(one, (operator, direction))
        if source[0] != operator:
            least_us = max(least_us, row.kernels.get(direction, 1) * LAUNCH_FLOOR_US)
        entry = bundle.entries.get(source)
        own = entry is not None and entry.load.is_sustained and not power_limit_w
        if held is not None and not own:
            flops = sum(limit.amount for limit in known if limit.unit == "FLOP")
            least_us = max(least_us, flops / held * _US_PER_S)
        if slower != 1 and known and max(known, key=lambda limit: limit.least_us).unit == "FLOP":
            time_us, low_us, high_us = answer
            answer = (slower * time_us, slower * low_us, slower * high_us)
        found.answers[one] = at_least(answer, least_us)


def cap_by_links(bundle: Bundle, found: OperatorTimes) -> None:
    """Raise answers inside a node to what the links of the bundle's device allow, where the device is known."""
    name = _device_name(bundle)
    element_bytes = ELEMENT_BYTES.get(bundle.manifest.dtype)
    by_node: dict[tuple[str, int], list[Question]] = {}
    for one in found.answers:
        (operator, _), vector, _ = one
        if OPERATORS[operator].is_collective and vector[1] == 1 and vector[2] > 1:
            by_node.setdefault((operator, int(vector[2])), []).append(one)
    for (operator, devices), questions in by_node.items():
        node = node_of(name, devices) if name else None
        if node is None or element_bytes is None:
            return
        sizes = [element_bytes * one[1][0] for one in questions]
        least_of = least_us(operator, sizes, Setting(fabric=node, nodes=1, gpus_per_node=devices))
        for one, least in zip(questions, least_of.tolist(), strict=True):
            found.answers[one] = at_least(found.answers[one], least)


def at_least(answer: Answer, least_us: float) -> Answer:
    """An answer whose time and interval are not below `least_us`; one that is not known stays so."""
    if math.isnan(answer[0]):
        return answer
    time_us, low_us, high_us = (max(one, least_us) for one in answer)
    return time_us, low_us, high_us


def _device_name(bundle: Bundle) -> str:
    """The one GPU that the bundle was measured on; empty for none or several kinds."""
    names = {one.device_name for one in bundle.manifest.compute if one.kind != "cpu"}
    return names.pop() if len(names) == 1 else ""
