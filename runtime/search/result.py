"""The answer of a search, with a documented JSON form."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast.runtime.data_frame import data_frame
from kernelcast.runtime.dataclass import asdict, dataclass
from kernelcast.runtime.errors import shown_size
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.fitting_changes import FittingChange
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES, SEARCHED
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.search.partial_result import Counts
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.refusals import Refusals
from kernelcast.runtime.step.chunks import counts_text
from kernelcast.runtime.step.layouts import Layouts

if TYPE_CHECKING:
    from pandas import DataFrame

SEARCH_FORMAT = "kernelcast.search/2"
_SHOWN_CHANGES = 3
_LONG_S = 1_000.0
"""Longer steps are shown in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One layout, and its estimate by `predict`."""

    parallelism: Parallelism
    estimate: Estimate

    @property
    def step_time_s(self) -> float:
        return self.estimate.step_time_s

    @property
    def memory_bytes(self) -> int:
        """Memory needed on its fullest device."""
        return self.estimate.memory.largest_bytes

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and device."""
        return self.estimate.tokens_per_s / self.parallelism.world_size

    def to_dict(self, *, tokens: int | None = None, **data: float) -> dict[str, Any]:
        """Plain values; with `tokens` also the days of training on them; `data` as `training` has."""
        return {
            "parallelism": plain_layout(self.parallelism),
            **plain_values(self, "step_time_s", "estimate.interval_s", "estimate.tokens_per_s"),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_device": self.estimate.flops_per_s_per_device / 1e12,
            **values_of(self, "estimate.mfu", "memory_bytes"),
            **({} if tokens is None else training(self.estimate, tokens, **data).to_dict()),
            **self.estimate.warning_values(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The layout that needs the least memory on its fullest device.

    `changes`: single changes with which it fits (`fitting_changes`), the fastest first; only where nothing fits.
    """

    parallelism: Parallelism
    memory_bytes: int
    changes: tuple[FittingChange, ...] = ()

    @property
    def what_fits(self) -> str:
        """The fastest changes and their step times in words; "" if there are none."""
        named = []
        for one in self.changes[:_SHOWN_CHANGES]:
            step_text = f"{one.step_time_s:{',.0f' if one.step_time_s >= _LONG_S else '.4g'}} s a step"
            named.append(f"{one.fields_text} ({', '.join(filter(None, (one.devices_text, step_text)))})")
        return f"; it fits with {' or with '.join(named)}" if named else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "parallelism": plain_layout(self.parallelism),
            **plain_values(self, "memory_bytes", "changes"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best layouts, best first, and the Pareto front of their score against memory per device.

    `problems` names every operator that the bundle cannot answer; `unanswered` counts the layouts that need one.
    `smallest` is None if no layout is valid.
    """

    question: Question
    counts: Counts
    refusals: Refusals
    problems: tuple[str, ...]
    top: tuple[Answer, ...]
    front: tuple[Answer, ...]
    smallest: Smallest | None
    seconds: float

    @property
    def best(self) -> Answer | None:
        """The first of `top`."""
        return self.top[0] if self.top else None

    def why_nothing(self) -> str:
        """Why there is no layout, in one line; "" if there is one."""
        if self.top:
            return ""
        counts, question = self.counts, self.question
        devices = " or ".join(map(str, question.space.gpus))
        if counts.unanswered:
            return f"every layout needs operators that the bundle cannot answer: {'; '.join(self.problems)}"
        if self.smallest is not None and question.free_bytes is not None:
            of = question.reserved_memory_bytes
            reserved = (
                f" (of {shown_size(question.gpu_memory_bytes or 0)}, {shown_size(of)} reserved)" if of else ""
            )
            nccl = ""
            if question.has_nccl:
                buffers = sum(communicator_bytes(Layouts.of(self.smallest.parallelism)).values())
                nccl = f" and {shown_size(int(np.sum(buffers)))} for NCCL"
            if question.spread is not None:
                reserved += f" with a probability of {question.fit_probability:g}"
            return (
                f"none of {counts.layouts:,} layouts on {devices} device(s) fits into "
                f"{shown_size(question.free_bytes)}{reserved}: the smallest needs "
                f"{shown_size(self.smallest.memory_bytes)}{nccl} ({layout_text(self.smallest.parallelism)})"
                f"{self.smallest.what_fits}"
            )
        examples = "; ".join(refusal.example for refusal in self.refusals.by_field.values())
        limits = [
            f"{name} {allowed}"
            for name in (*DEGREES, *EXPERT_DEGREES, "micro_batch", "micro_batches")
            if (allowed := getattr(question.space, name)) is not None
        ]
        asked = f"{devices} device(s)" + (f" with {', '.join(limits)}" if limits else "")
        if limits or not examples:
            products = (
                f"{' · '.join(DEGREES)} is {devices}, "
                f"dp · micro_batch · micro_batches {question.space.global_batch}"
            )
            model = question.space.model
            asks_experts = any(getattr(question.space, name) is not None for name in EXPERT_DEGREES)
            no_experts = "the model has no experts" if asks_experts and not model.experts else ""
            examples = "; ".join(filter(None, (no_experts, products, examples)))
        return f"model {question.space.model.name} has no valid layout on {asked} ({examples})"

    def to_pandas(self, *, front: bool = False) -> "DataFrame":
        """The best layouts, or with `front` the Pareto front, a row each: figures, then the layout (docs/python.md).

        Raises:
            UsageError: pandas is not installed.
        """
        return data_frame(_row_values(one) for one in (self.front if front else self.top))

    def _repr_html_(self) -> str:
        """HTML that a notebook shows."""
        # Pages are made of answers; this one import goes the other way, and only where a notebook asks.
        from kernelcast.runtime.views.notebook import search_html

        return search_html(self)

    def to_dict(self, *, tokens: int | None = None, **data: float) -> dict[str, Any]:
        """Plain values for JSON, form `kernelcast.search/2` (docs/json.md); arguments of `training` add its days."""
        space = self.question.space
        return {
            "format": SEARCH_FORMAT,
            "seconds": self.seconds,
            **asdict(self.counts),
            "invalid": {
                name: values_of(refusal, "count", "example")
                for name, refusal in self.refusals.by_field.items()
            },
            "problems": list(self.problems),
            "best": None if self.best is None else self.best.to_dict(tokens=tokens, **data),
            "top": [answer.to_dict(tokens=tokens, **data) for answer in self.top],
            **plain_values(self, "best.estimate.provenance", "best.estimate.peak"),
            "front": [answer.to_dict(tokens=tokens, **data) for answer in self.front],
            **plain_values(self, "smallest"),
            "asked": {
                **plain_values(space, model="model.name", sequence_length="model.sequence_length"),
                **plain_values(space, "gpus", "global_batch", "gpus_per_node"),
                **values_of(self.question, fabric="fabric.name"),
                **values_of(self.question, "gpu_memory_bytes", "reserved_memory_bytes", "fit_probability"),
                **values_of(self.question, "timeline", "rank_by", "bucket_entries"),
                "layer_split": space.common["layer_split"],
            },
        }


def _row_values(answer: Answer) -> dict[str, Any]:
    """A row of a table: no lists within it but the stages' layers."""
    estimate, layout = answer.estimate, answer.parallelism
    low_s, high_s = estimate.interval_s or (None, None)
    return {
        "step_time_s": answer.step_time_s,
        "low_s": low_s,
        "high_s": high_s,
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": answer.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "memory_bytes": answer.memory_bytes,
        "doubtful_share": estimate.doubtful_share,
        "gpus": layout.world_size,
        **values_of(layout, *SEARCHED),
        "layer_counts": estimate.layer_counts,
    }


def plain_layout(parallelism: Parallelism) -> dict[str, Any]:
    """A layout's fields, and its devices."""
    return {**asdict(parallelism), "world_size": parallelism.world_size}


def layout_text(parallelism: Parallelism) -> str:
    """A layout in one line."""
    one = parallelism
    schedule = f"{one.schedule} × {one.virtual_stages}" if one.virtual_stages > 1 else one.schedule
    parts = [
        one.degrees,
        f"micro-batch {one.micro_batch} × {one.micro_batches}",
        schedule,
        f"recompute {one.recompute}",
        f"ZeRO {one.zero}",
    ]
    if one.layer_counts is not None:
        parts.append(f"layers {counts_text(one.layer_counts)}")
    return ", ".join([*parts, "sequence parallel"] if one.sequence_parallel else parts)
