"""Real training on a CPU, recorded by torch.profiler, with one thing changed in it that a clock measures.

Four small models: a GPT, an encoder, a mixture of experts and a residual network. The clock knows nothing of the trace:
it reads the time around the changed part, in the forward and the backward pass, in the recorded steps themselves.
"""

import json
import time
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

D, HEADS, LENGTH, VOCABULARY, LAYERS = 128, 4, 256, 500, 2
WARM, ACTIVE = 2, 12  # steps of either model


class Clock:
    """Seconds that the changed part takes, by step."""

    def __init__(self) -> None:
        self.steps = [0.0]
        self._begun: dict[nn.Module, float] = {}

    @contextmanager
    def span(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.steps[-1] += time.perf_counter() - start

    def watch(self, model: nn.Module, kind: type[nn.Module]) -> None:
        """Count the forward and backward passes of all modules of a kind."""
        for module in model.modules():
            if isinstance(module, kind):
                module.register_forward_pre_hook(self._begin)
                module.register_forward_hook(self._end)
                module.register_full_backward_pre_hook(self._begin)
                module.register_full_backward_hook(self._end)

    def _begin(self, module: nn.Module, *_: Any) -> None:
        self._begun[module] = time.perf_counter()

    def _end(self, module: nn.Module, *_: Any) -> None:
        self.steps[-1] += time.perf_counter() - self._begun[module]

    @property
    def mean_ms(self) -> float:
        """Of the steps that count in the trace: the first recorded one does not."""
        counted = self.steps[WARM + 1 : WARM + ACTIVE]
        return 1e3 * sum(counted) / len(counted)


class Norm(nn.LayerNorm):
    """Of the last dimension; unfused in six calls."""

    fused = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + self.eps) * self.weight
            + self.bias
        )


class Gelu(nn.Module):
    """Unfused in the calls of its formula."""

    fused = True

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x) if self.fused else 0.5 * x * (1 + torch.erf(x * 2**-0.5))


class Attention(nn.Module):
    """Of [b, length, D], `times` times."""

    times, fused = 1, True

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        b, length, d = x.shape
        for _ in range(self.times):
            q, k, v = self.qkv(x).view(b, length, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
            if self.fused:
                found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            else:
                scores = (q @ k.transpose(-2, -1)) * (d // HEADS) ** -0.5
                mask = torch.ones(length, length, dtype=torch.bool).triu(1)
                found = (
                    torch.softmax(scores.masked_fill(mask, float("-inf")) if self.causal else scores, -1) @ v
                )
            x = self.out(found.transpose(1, 2).reshape(b, length, d))
        return x


class Experts(nn.Module):
    """Each token goes to the best `best` of four experts, in `chunks` of the sequence."""

    best, chunks = 1, 1

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 4 * D), Gelu(), nn.Linear(4 * D, D)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._routed(part) for part in x.flatten(0, 1).chunk(self.chunks)]).view_as(x)

    def _routed(self, tokens: Tensor) -> Tensor:
        weights, chosen = torch.softmax(self.router(tokens), -1).topk(self.best, -1)
        found = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            found = found.index_add(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return found


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, *, causal: bool, experts: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.attention = Norm(D), Norm(D), Attention(causal=causal)
        self.mlp = Experts() if experts else nn.Sequential(nn.Linear(D, 4 * D), Gelu(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    """Token ids [b, length] to logits [b, length, vocabulary]; `again` runs a layer again in its backward pass."""

    def __init__(self, *, causal: bool = True, experts: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, D)
        self.blocks = nn.ModuleList(Block(causal=causal, experts=experts) for _ in range(LAYERS))
        self.norm, self.head = Norm(D), nn.Linear(D, VOCABULARY, bias=False)
        self.again: Callable[[nn.Module, Tensor], Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = (
                block(x)
                if self.again is None
                else checkpoint(partial(self.again, block), x, use_reentrant=False)
            )
        return self.head(self.norm(x))


class Residual(nn.Module):
    """Two convolutions with their norms, `times` times."""

    times = 1

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
            for _ in range(2)
        ))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = x + self.layers(x)
        return x


def resnet() -> nn.Module:
    """Images [b, 3, 64, 64] to logits [b, 10]."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), Residual(32), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
        Residual(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random samples; `packings` times something is packed for each."""

    def __init__(self, *, images: bool, packings: int) -> None:
        self.images, self.packings = images, packings

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        for _ in range(self.packings):
            zlib.compress(bytes(range(256)) * 400, 9)
        if self.images:
            return torch.randn(3, 64, 64), torch.tensor(index % 10)
        tokens = torch.randint(VOCABULARY, (LENGTH + 1,))
        return tokens[:-1], tokens[1:]


@dataclass
class Training:
    """How a model is trained; the clock counts the part that is named in `timed`."""

    model: nn.Module
    clock: Clock
    images: bool = False
    samples: int = 4
    packings: int = 0
    fused: bool = True
    timed: str = ""  # loading, passes or update
    between: Callable[[nn.Module], None] | None = None

    def steps(self) -> Iterator[None]:
        """Train a step each time."""
        for module in self.model.modules():
            _annotate(module)
        optimizer = torch.optim.AdamW(self.model.parameters(), fused=self.fused, foreach=False)
        loader = DataLoader(Samples(images=self.images, packings=self.packings), batch_size=self.samples)
        batches = iter(loader)
        while True:
            with self._clock("loading"):
                given, wanted = next(batches)
            with self._clock("passes"):
                found = self.model(given)
                functional.cross_entropy(found.flatten(0, -2), wanted.flatten()).backward()
            if self.between is not None:
                with self.clock.span():
                    self.between(self.model)
            with self._clock("update"):
                optimizer.step()
            optimizer.zero_grad()
            self.clock.steps.append(0.0)
            yield

    def _clock(self, part: str) -> AbstractContextManager[None]:
        return self.clock.span() if part == self.timed else nullcontext()


def record(folder: Path, *trainings: Training, active: int = ACTIVE, quiet: bool = False) -> list[Path]:
    """Train models `active` steps by turns, so that other work on the machine slows all alike; the trace of each.

    One recording is divided by steps: the steps of the other models are taken out, with their time. `quiet` traces
    have one step (`_quiet`).
    """
    torch.manual_seed(0)
    count, steps = len(trainings), [training.steps() for training in trainings]
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=0, warmup=WARM * count, active=active * count, repeat=1),
    ) as profiler:  # fmt: skip
        for number in range((WARM + active) * count):
            next(steps[number % count])
            profiler.step()
    whole = folder / "whole.json"
    profiler.export_chrome_trace(str(whole))
    document = json.loads(whole.read_text())
    events = [
        event for event in document.pop("traceEvents") if event["ph"] == "X" and event["cat"] != "Trace"
    ]
    marks = sorted((event["ts"], int(event["name"].partition("#")[2])) for event in events
                   if event["name"].startswith("ProfilerStep#"))  # fmt: skip
    starts_us = [start_us for start_us, _ in marks]
    write = _quiet if quiet else _own
    return [write(folder / f"{own}.json", document, events, starts_us, own, count) for own in range(count)]


def _own(
    path: Path, document: dict[str, Any], events: list[dict[str, Any]], starts_us: list[float], own: int, count: int
) -> Path:  # fmt: skip
    """Write every `count`-th step of a recording, one after the other, as a trace."""
    kept = []
    for event in events:
        step = bisect_right(starts_us, event["ts"]) - 1
        if step >= 0 and step % count == own:
            others_us = sum(
                end_us - start_us
                for number, (start_us, end_us) in enumerate(pairwise(starts_us[: step + 1]))
                if number % count != own
            )
            kept.append(event | {"ts": event["ts"] - others_us})
    path.write_text(json.dumps(document | {"traceEvents": kept}))
    return path


def _quiet(
    path: Path, document: dict[str, Any], events: list[dict[str, Any]], starts_us: list[float], own: int, count: int
) -> Path:  # fmt: skip
    """Write one step, twice, for every `count`-th one of a recording: from each start or end of an event to the next,
    the shortest time of all steps. So a step takes about as long on a busy machine as on an idle one.
    """
    steps = defaultdict[int, list[dict[str, Any]]](list)
    for event in events:
        step = bisect_right(starts_us, event["ts"]) - 1
        if step >= 0 and step % count == own:
            steps[step].append(event)
    alike = defaultdict[Any, list[tuple[list[dict[str, Any]], list[int]]]](list)
    for listed in steps.values():
        listed.sort(key=lambda event: (event["ts"], -event["dur"]))
        borders = []  # in ns; what ends does so before something starts, an inner event before the outer one
        for place, event in enumerate(listed):
            start_ns = round(1e3 * event["ts"])
            borders += [
                (start_ns, 1, place),
                (start_ns + max(round(1e3 * event["dur"]), 1), 0, -place),
            ]
        borders.sort()
        order = tuple(border[1:] for border in borders)
        names = tuple(event["name"].partition("#")[0] for event in listed)
        alike[order, names].append((listed, [time_ns for time_ns, _, _ in borders]))
    (order, _), found = max(alike.items(), key=lambda one: len(one[1]))
    waits_ns = np.diff([times_ns for _, times_ns in found], axis=1).min(axis=0)
    kept = [dict(event) for event in found[0][0]]
    times_us = np.cumsum([0, *waits_ns]) / 1e3
    for (is_start, place), time_us in zip(order, times_us.tolist(), strict=True):
        event = kept[abs(place)]
        event |= {"ts": time_us} if is_start else {"dur": round(time_us - event["ts"], 3)}
    again = [_again(event, float(times_us[-1])) for event in kept]
    path.write_text(json.dumps(document | {"traceEvents": kept + again}))
    return path


def _again(event: dict[str, Any], later_us: float) -> dict[str, Any]:
    """The same in a further step, under numbers of its own."""
    arguments = dict(event.get("args", {}))
    for name in {"External id", "Sequence number"} & arguments.keys():
        arguments[name] += 1_000_000
    name, mark, number = event["name"].partition("ProfilerStep#")
    name += mark + (f"{int(number) + 1}" if mark else number)
    return event | {"name": name, "ts": event["ts"] + later_us, "args": arguments}


def _annotate(module: nn.Module) -> None:
    """Mark the forward passes of a module with the name of its class."""
    forward, name = module.forward, type(module).__name__

    def marked(*given: Any) -> Any:
        with record_function(name):
            return forward(*given)

    module.forward = marked
