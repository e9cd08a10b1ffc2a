"""How well a step uses its devices: floating-point operations of the model, and the peak that they are compared with.

The convention of arXiv 2204.02311, appendix B, applied to the work of the step:

- matrix products and attention count, elementwise operators, optimizer and embedding do not;
- the forward pass is counted by the operator table: flash attention with the causal half of the scores, unfused
  attention with all of them, the vocabulary as it is padded, keys and values as often as they are computed;
- the backward pass is twice the forward pass; that of a reference model (DPO) is counted once. Activations and scores
  that are computed again count as hardware's, not as the model's;
- of a mixture of experts, the rows that tokens ask for: none is dropped, and no expert filled up;
- with frozen weights (LoRA) it is what the backward pass computes;
- with linears in 8 bit, the peak is a mean: every FLOP runs at the peak of its type.
"""

from collections.abc import Callable, Iterable

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.runtime.operators.gemm import FLOAT8
from kernelcast.runtime.request.fields import EXPERT_LOAD, LAYOUT
from kernelcast.runtime.step.decomposition import Block, Decomposition
from kernelcast.runtime.step.op import Call

_FORWARD_AND_BACKWARD = 3


def model_flops(parts: Decomposition) -> float:
    """FLOPs of the model in one step of the whole job, forward and backward, without recomputation."""
    if parts.sizes.is_frozen:
        return hardware_flops(parts.without_recomputation)
    once = _of_job(parts, lambda block: block.passes.rerun(block.passes.reference).calls)
    return _FORWARD_AND_BACKWARD * _of_job(parts, lambda block: block.passes.rerun(block.ops).calls) + once


def hardware_flops(parts: Decomposition) -> float:
    """FLOPs of matrix products and attention that the job executes in one step, recomputation included."""
    return _of_job(
        parts,
        lambda block: (*block.passes.forward.calls, *block.passes.backward.calls, *block.recomputed.calls),
    )


def peak_of(bundle: Bundle) -> Peak | None:
    """The peak of the measured devices in the bundle's element type, a CPU's as measured; None where a device is
    unknown or lacks that type, or where devices of several rates were measured.
    """
    manifest = bundle.manifest
    measured = {peak.device: peak for peak in manifest.peaks if peak.dtype == manifest.dtype}
    found = {
        _published(device, manifest.dtype) or measured.get(device.description) for device in manifest.compute
    }
    return found.pop() if len(found) == 1 else None


def peak_of_step(peak: Peak | None, parts: Decomposition) -> Peak | None:
    """The peak of a step's utilisation: with linears in 8 bit of both types by FLOPs, where the device has both."""
    of = None if peak is None else device_named(peak.device)
    faster = None if of is None else of.peak_flops_per_s(FLOAT8)
    if peak is None or faster is None or not parts.has_casts:
        return peak
    share = _of_job(
        parts, lambda block: (one for one in block.passes.forward.calls if OPERATORS[one.operator].dtype)
    )
    if not share:
        return peak
    share /= _of_job(parts, lambda block: block.passes.forward.calls)
    return replace(
        peak,
        dtype=f"{share * 100:.0f} % of FLOPs in {FLOAT8}, else {peak.dtype}",
        flops_per_s=1 / (share / faster + (1 - share) / peak.flops_per_s),
    )


def _published(fingerprint: ComputeFingerprint, dtype: str) -> Peak | None:
    device = device_named(fingerprint.device_name)
    rate = None if device is None else device.peak_flops_per_s(dtype)
    if device is None or rate is None:
        return None
    return Peak(device=device.title, dtype=dtype, flops_per_s=rate, source=device.source)


def _of_job(parts: Decomposition, calls_of: Callable[[Block], Iterable[Call]]) -> float:
    """FLOPs of some calls of every block, over all micro-batches and devices."""
    layout = parts.parallelism
    even = {name: LAYOUT[name].default for name in EXPERT_LOAD}
    if any(getattr(layout, name) != usual for name, usual in even.items()):
        # The fullest device decides the time, but the total of tokens does not depend on the balance.
        parts = replace(parts, parallelism=replace(layout, **even))
    counts = parts.kinds.counts(0, parts.model.layers)
    layers = zip(counts, parts.layers, strict=True)
    one_device = (
        _flops(calls_of(parts.first))
        + sum(count * _flops(calls_of(layer)) for count, layer in layers)
        + _flops(calls_of(parts.last))
    )
    # The stages share the layers; the devices of a stage all compute their part.
    return one_device * layout.micro_batches * (layout.world_size // layout.pp)


def _flops(calls: Iterable[Call]) -> float:
    return sum(
        one.count * row.flops(one.direction, one.shape)
        for one in calls
        if (row := OPERATORS[one.operator]).operator_class is OperatorClass.COMPUTE
    )
