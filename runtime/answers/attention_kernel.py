"""Times of fused attention for another kernel than the one that was measured, by published ratios of both."""

import math
import re

from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.answers.warnings import AnswerWarning, Cause
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import SoftwareFingerprint
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.attention_kernels import (
    FUSED,
    TimeRatio,
    highest_flops_per_s,
    kernels_on,
    time_ratio,
)
from kernelcast.runtime.hardware.devices import Device, device_named
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Vector
from kernelcast.runtime.request.fields import AS_MEASURED

KERNEL = "attention_kernel"
"""Kind of the warning about another kernel than the measured one."""
_LENGTH, _HEAD_SIZE = map(list(OPERATORS[FUSED].features).index, ("l", "head_size"))
_US_PER_S = 1e6
_PACKAGE = "flash-attn="
_OF_PACKAGE = {"1": "flash-1", "2": "flash-2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """Fused attention is answered for the kernel `asked`, on a device of `architecture`, from what `manifest` holds."""

    asked: str
    architecture: str
    manifest: Manifest

    def ratio(self, key: Key, vector: Vector, entry: RegressorEntry) -> TimeRatio | None:
        """What multiplies the time of `key`, answered by the regressor of `entry` for `vector`; None: nothing does."""
        if entry.operator != FUSED:
            return None
        measured = measured_kernel(entry, self.manifest)
        if measured == self.asked:
            return None
        size, length = vector[_HEAD_SIZE], vector[_LENGTH]
        return time_ratio(self.architecture, key[1], size, length, of=self.asked, over=measured)

    def least_us(self, key: Key, vector: Vector) -> float:
        """The shortest time of `key` for its own `vector`: no kernel that is final exceeds its published rates."""
        operator, direction = key
        held = highest_flops_per_s(self.architecture, direction, vector[-1], self.asked)
        return 0.0 if held is None else OPERATORS[operator].flops(direction, vector) / held * _US_PER_S

    def warning(self, key: Key, ratio: TimeRatio, entry: RegressorEntry) -> AnswerWarning:
        """What an answer says of a ratio that was applied.

        Of its values, `factor` multiplies the times, and published ratios are within `log_half_width` of its logarithm.
        """
        (_, direction), measured = key, measured_kernel(entry, self.manifest)
        return AnswerWarning(
            cause=Cause.SUBSTITUTED,
            topic=f"kernel of {FUSED}",
            severity=abs(math.log(ratio.factor)),
            message=f"{FUSED} ({direction}): measured with {measured}, answered for {self.asked} by "
            f"{ratio.factor:.2f} times the time, as published ({ratio.source})",
            brief=f"{self.asked} by {ratio.factor:.2f} × {measured} ({direction})",
            values={
                "kind": KERNEL,
                "operator": FUSED,
                "direction": direction.value,
                "asked": self.asked,
                "measured": measured,
                **values_of(ratio, "factor", "log_half_width", "source"),
            },
        )


def kernel_change(asked: str, bundle: Bundle, factors: Factors | None = None) -> KernelChange | None:
    """What answers for another kernel than the measured one; None where that is not asked.

    `factors` are those that the answers are multiplied by.

    Raises:
        DataError: the kernel does not run on the bundle's device, which kernel was measured is not stated, no ratio of
            both is published, or a stack's factor of attention already holds another kernel.
    """
    if asked == AS_MEASURED:
        return None
    device = _device(bundle)
    problem = _problem_of_stack(factors) or _problem(asked, bundle, device)
    if problem or device is None:
        others = () if _problem_of_stack(factors) else answerable_kernels(bundle)
        *first, last = (AS_MEASURED, *others)
        expected = f"{', '.join(first)} or {last}" if first else last
        raise DataError(field="attention_kernel", found=asked, expected=f"{expected}: {problem}")
    return KernelChange(asked=asked, architecture=device.architecture, manifest=bundle.manifest)


def answerable_kernels(bundle: Bundle) -> tuple[str, ...]:
    """Kernels that a bundle's attention can be asked for, the measured one among them."""
    device = _device(bundle)
    if device is None:
        return ()
    return tuple(one for one in kernels_on(device.architecture) if not _problem(one, bundle, device))


def measured_kernel(entry: RegressorEntry, manifest: Manifest) -> str:
    """The kernel that a regressor's rows are of: as the entry states, else the software; empty where neither does."""
    if entry.kernel is not None:
        return entry.kernel
    found = {_kernel_of(one) for one in manifest.software}
    return found.pop() if len(found) == 1 else ""


def _kernel_of(software: SoftwareFingerprint) -> str:
    """What the collector calls: flash-attn where it is installed, else torch's, from 2.2 on FlashAttention 2."""
    for one in software.environment:
        if one.startswith(_PACKAGE):
            return _OF_PACKAGE.get(one.removeprefix(_PACKAGE).partition(".")[0], "")
    torch = re.match(r"(\d+)\.(\d+)", software.torch)
    return "flash-2" if software.cuda and torch and tuple(map(int, torch.groups())) >= (2, 2) else ""


def _problem(asked: str, bundle: Bundle, device: Device | None) -> str:
    """Why a kernel cannot be answered for, in words; empty where it can."""
    if device is None:
        return "the bundle was not measured on one device of the table of peaks"
    if asked not in kernels_on(device.architecture):
        return f"{asked} does not run on {device.architecture} ({device.title})"
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        source = source_of((FUSED, direction), bundle.entries)
        if source is None:
            continue
        measured = measured_kernel(bundle.entries[source.answered_by], bundle.manifest)
        if not measured:
            return f"which kernel attention ({direction}) was measured with is not stated"
        if time_ratio(device.architecture, direction, 1, of=asked, over=measured) is None:
            return f"no ratio to the measured {measured} is published for {device.architecture} ({direction})"
    return ""


def _problem_of_stack(factors: Factors | None) -> str:
    """Why a stack's answers cannot be asked for another kernel: its factor was fitted to steps with one of its own."""
    if factors is None:
        return ""
    from kernelcast.runtime.stack import Stack

    if not isinstance(factors, Stack) or not factors.runs or "attention" in factors.fixed:
        return ""
    if "attention_kernel" in factors.options:
        return ""
    ran = factors.kernel or "a kernel that is not stated"
    return (
        f"the factor of attention of stack {factors.name} was fitted to steps with {ran}; "
        "leave out the stack, or the kernel"
    )


def _device(bundle: Bundle) -> Device | None:
    names = {one.device_name for one in bundle.manifest.compute if one.kind != "cpu"}
    return device_named(names.pop()) if len(names) == 1 else None
