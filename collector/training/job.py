"""A model in a layout that is trained for real, and the limits of what can be trained here."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.errors import UsageError, either, shown
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import layers_of_chunks
from kernelcast.runtime.step.sizes import padded_vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One configuration, which can be trained here (else a UsageError).

    Gradients are summed in buckets of `bucket_entries` after the last backward pass.
    """

    model: ModelConfig
    parallelism: Parallelism
    bucket_entries: int = DEFAULT_BUCKET_ENTRIES
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_trainable(self.model)
        self.parallelism.check(self.model)
        layers_of_chunks(self.model.layers, self.parallelism)
        _require_layout(self.model, self.parallelism)

    @property
    def label(self) -> str:
        """`pp-tp-dp`, with further degrees where they are not 1: `1-1-2-ep2`."""
        layout = self.parallelism
        further = (f"-{name}{getattr(layout, name)}" for name in ("cp", "ep") if getattr(layout, name) > 1)
        return f"{layout.pp}-{layout.tp}-{layout.dp}{''.join(further)}"

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Layers of every chunk of the model."""
        return layers_of_chunks(self.model.layers, self.parallelism)

    @property
    def vocabulary_size(self) -> int:
        """Padded rows of the whole vocabulary."""
        layout = self.parallelism
        return int(padded_vocabulary(self.model.vocabulary_size, layout.tp, layout.vocabulary_multiple))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEffort:
    """How much is measured: `rounds` turns of every job, each with `steps` timed steps."""

    rounds: int = 2
    warm_up_steps: int = 2
    steps: int = 10
    traced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """Everything the worker processes need; `timeout_s` is the limit of one turn."""

    jobs: tuple[TrainingJob, ...]
    effort: TrainingEffort
    seed: int
    device: str
    threads: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one job: seconds of each step, µs of the reference product before it, and the ranks' traces.

    `job` and `round` count from 0; only the last round has `traces` (see rank_trace).
    """

    job: int
    round: int
    steps_s: tuple[float, ...]
    reference_us: tuple[float, ...]
    traces: tuple[dict[str, Any], ...] = field(default=(), repr=False)


_TRAINED: Mapping[str, Mapping[str, Sequence[Any]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_SCHEDULES = tuple(name for name, kind in SCHEDULE_KINDS.items() if not kind.splits)


def _require(of: ModelConfig | Parallelism, name: str, *trained: Any, where: str = "") -> None:
    if (found := getattr(of, name)) not in trained:
        place = f"model {of.name}: " if isinstance(of, ModelConfig) else ""
        values = either(map(_plain, trained))
        raise UsageError(f"{place}{name} is {_plain(found)}, real steps train {values} only{where}")


def _plain(value: Any) -> str:
    """A value as files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_trainable(model: ModelConfig) -> None:
    """Refuse a model that the model definition does not cover: a UsageError names field, value and values trained."""
    for name, trained in _TRAINED["model"].items():
        _require(model, name, *trained)
    if model.rotary and model.head_size % 2:
        raise UsageError(
            f"model {model.name}: head_size is {model.head_size}, rotary position embedding needs an even number"
        )
    if model.sliding_window:
        _require(model, "attention", "flash", where=" with sliding_window")
    for name, trained in _TRAINED["model_with_experts"].items() if model.experts else ():
        _require(model, name, *trained, where=" with experts")


def _require_layout(model: ModelConfig, layout: Parallelism) -> None:
    _require(layout, "schedule", *_SCHEDULES)
    for name, trained in _TRAINED["layout"].items():
        _require(layout, name, *trained)
    if layout.cp > 1:
        _require(layout, "context_exchange", "all_to_all", where=f" (cp {layout.cp})")
    if model.experts:  # only with data parallelism, where each device of the experts has its own tokens
        for name in ("cp", "expert_tp"):
            _require(layout, name, 1, where=f" with the experts of model {model.name}")
        if layout.ep > 1:
            _require(layout, "zero", 0, where=f" with ep {layout.ep}: devices hold different experts")
    if layout.schedule == "1f1b" and layout.micro_batches < layout.pp:
        raise UsageError(
            f"micro_batches is {layout.micro_batches}, real steps over {layout.pp} pipeline stages "
            f"need {layout.pp} or more (1F1B)"
        )
    # The first stage has the embedding, the last one the loss; the other stages have only layers.
    counts = layout.layer_counts or ()
    for stage in range(1, layout.pp - 1):
        if counts and not any(counts[stage :: layout.pp]):
            raise UsageError(
                f"layer_counts is {shown(counts)}, which leaves stage {stage} (from 0) empty; "
                "real steps need a layer on every stage between the first and the last"
            )
