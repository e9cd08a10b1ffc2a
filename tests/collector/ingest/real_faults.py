"""Faults put into real training on a CPU, and what `trace diff` finds: a table of docs/trace-figures.md.

    python -m tests.collector.ingest.real_faults

A model is trained with and without the fault, step by step by turns, so that other work on the machine slows both.
Wanted is the cause, the module or operator, and ms per step within 15 % of what a clock around the changed part says.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.docs.markdown import table
from kernelcast.store.difference_causes import DifferenceCause
from kernelcast.store.trace_difference import compare_traces
from kernelcast.store.trace_report import traced_runs
from tests.collector.ingest.real_runs import (
    Attention,
    Clock,
    Experts,
    Gelu,
    Norm,
    Residual,
    Training,
    Transformer,
    record,
    resnet,
)

WITHIN = 0.15
_NOT_PUT_IN = "device"  # other work on the machine


@dataclass(frozen=True)
class RealFault:
    """A change of a model (`change`) or of its training (`settings`); `kind` is empty where nothing changes."""

    name: str
    build: Callable[[], nn.Module]
    kind: str = ""
    part: str = ""  # the innermost module
    watched: type[nn.Module] | None = None
    change: Callable[[nn.Module, Clock], None] = lambda model, clock: None
    both: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def found(self) -> tuple[float, tuple[DifferenceCause, ...]]:
        """The change by the clock, ms per step, and the causes that are named."""
        sides = []
        for is_faulty in (False, True):
            torch.manual_seed(0)
            clock, model = Clock(), self.build()
            if is_faulty:
                self.change(model, clock)
            if self.watched is not None:
                clock.watch(getattr(model, "blocks", model), self.watched)
            sides.append(Training(model, clock, **self.both | (self.settings if is_faulty else {})))
        with TemporaryDirectory() as name:
            one, two = record(Path(name), *sides)
            with opened_traces([one]) as first, opened_traces([two]) as second:
                [one_run], [two_run] = traced_runs(first), traced_runs(second)
                causes = compare_traces(first, one_run, second, two_run).causes
        return sides[1].clock.mean_ms - sides[0].clock.mean_ms, causes

    def named(self, causes: tuple[DifferenceCause, ...]) -> DifferenceCause | None:
        """The largest cause other than work of others on the machine; modules of one class are one."""
        own = [cause for cause in causes if cause.kind != _NOT_PUT_IN]
        if not own:
            return None
        part = own[0].name.rpartition(" / ")[2]
        same = [one for one in own if (one.kind, one.name.rpartition(" / ")[2]) == (own[0].kind, part)]
        return replace(own[0], name=part, change_ms=sum(one.change_ms for one in same))

    def is_right(self, wanted_ms: float, found: DifferenceCause | None) -> bool:
        """Whether the cause has the name and the size."""
        if not self.kind or found is None:
            return not self.kind and found is None
        is_near = abs(found.change_ms - wanted_ms) <= WITHIN * abs(wanted_ms)
        return (found.kind, found.name) == (self.kind, self.part) and is_near


def _set(kind: type[nn.Module], **values: object) -> Callable[[nn.Module, Clock], None]:
    def change(model: nn.Module, clock: Clock) -> None:
        for module in getattr(model, "blocks", model).modules():
            if isinstance(module, kind):
                for name, value in values.items():
                    setattr(module, name, value)

    return change


def _again(model: nn.Module, clock: Clock) -> None:
    """Layers run again in the backward pass; the clock counts what runs a second time."""
    calls: dict[nn.Module, int] = {}

    def again(block: nn.Module, x: Tensor) -> Tensor:
        calls[block] = calls.get(block, 0) + 1
        if calls[block] % 2:
            return block(x)
        with clock.span():
            return block(x)

    model.again = again  # type: ignore[assignment]


def _python(model: nn.Module) -> None:
    """Work of Python alone, as of logging."""
    stop = time.perf_counter() + 0.02
    while time.perf_counter() < stop:
        pass


def gpt() -> nn.Module:
    return Transformer()


def encoder() -> nn.Module:
    return Transformer(causal=False)


def experts() -> nn.Module:
    return Transformer(experts=True)


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT": gpt,
    "encoder": encoder,
    "experts": experts,
    "ResNet": resnet,
}
_LOADING, _UPDATE, _PASSES = {"timed": "loading"}, {"timed": "update"}, {"timed": "passes"}
_IMAGES = {"images": True}


def faults() -> Iterator[RealFault]:
    """Every kind of fault on four models."""
    for name, build in _MODELS.items():
        yield RealFault(f"{name}: none", build, both=_IMAGES if build is resnet else {})
    yield RealFault(
        "GPT: attention twice", gpt, "more_work", "Attention", Attention, _set(Attention, times=2)
    )
    yield RealFault(
        "GPT: attention not fused", gpt, "kernels", "Attention", Attention, _set(Attention, fused=False)
    )
    yield RealFault("GPT: layers run again", gpt, "recomputation", change=_again, both={"samples": 8})
    yield RealFault("GPT: slow data loader", gpt, "data_loader", both=_LOADING, settings={"packings": 4})
    yield RealFault("GPT: Python between passes", gpt, "host", settings={"between": _python})
    yield RealFault("encoder: norms not fused", encoder, "kernels", "Norm", Norm, _set(Norm, fused=False))
    yield RealFault("encoder: GELU not fused", encoder, "kernels", "Gelu", Gelu, _set(Gelu, fused=False))
    yield RealFault("encoder: optimizer not fused", encoder, "kernels", "Optimizer.step#AdamW.step", both=_UPDATE,
                    settings={"fused": False})  # fmt: skip
    yield RealFault("encoder: half of the batch", encoder, "shapes", both=_PASSES, settings={"samples": 2})
    yield RealFault(
        "experts: two for each token", experts, "slow_kernels", "Experts", Experts, _set(Experts, best=2)
    )
    yield RealFault(
        "experts: tokens in 8 chunks", experts, "more_work", "Experts", Experts, _set(Experts, chunks=8)
    )
    yield RealFault(
        "ResNet: blocks twice", resnet, "more_work", "Residual", Residual, _set(Residual, times=2), _IMAGES
    )
    yield RealFault("ResNet: half of the batch", resnet, "shapes", both=_IMAGES | _PASSES | {"samples": 8},
                    settings={"samples": 4})  # fmt: skip
    yield RealFault(
        "ResNet: slow data loader", resnet, "data_loader", both=_IMAGES | _LOADING, settings={"packings": 4}
    )


def main(wanted: str = "") -> None:
    """Print the table of the faults whose name contains a text."""
    torch.set_num_threads(1)
    rows = []
    for fault in faults():
        if wanted not in fault.name:
            continue
        wanted_ms, causes = fault.found()
        found = fault.named(causes)
        rows.append((
            fault.name, fault.kind or "none", fault.part, f"{wanted_ms:+.1f}" if fault.kind else "",
            found.kind if found else "none", found.name if found else "", f"{found.change_ms:+.1f}" if found else "",
            "yes" if fault.is_right(wanted_ms, found) else "no",
        ))  # fmt: skip
        print(rows[-1], *(cause.line for cause in causes), sep="\n    ", file=sys.stderr)
    right = sum(row[-1] == "yes" for row in rows)
    print(*table(("fault", "cause", "part", "clock ms", "found", "part", "ms", "right"), rows), sep="\n")
    print(f"\n{right} of {len(rows)} right: cause, part, and time within {WITHIN:.0%}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
