"""What stages give to torch's schedules, which need processes: chunks, sizes, micro-batches, losses."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.training import passes
from kernelcast.collector.training.job import TrainingJob
from kernelcast.runtime import ModelConfig, Parallelism

MODEL = ModelConfig(
    name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=4, vocabulary_size=200
)
INTERLEAVED: dict[str, Any] = {"schedule": "interleaved", "virtual_stages": 2}
SPLIT: dict[str, Any] = {"cp": 2, "context_exchange": "all_to_all"}
IDS, HIDDEN, LOGITS = ("int64 1x16 0",), ("bfloat16 1x16x32 1",), ("bfloat16 1x16x256 1",)
PART = ("int64 1x8 0", "bfloat16 1x8x32 1", "bfloat16 1x8x128 1")


def told(tensors: tuple[torch.Tensor, ...]) -> tuple[str, ...]:
    [one] = tensors
    assert one.device.type == "meta"
    return (f"{str(one.dtype)[6:]} {'x'.join(map(str, one.shape))} {one.requires_grad:d}",)


@pytest.mark.parametrize(
    ("options", "stage", "kind", "stages"),
    [
        ({"pp": 2}, 0, "Schedule1F1B", [("chunk 0", 0, 2, IDS, HIDDEN)]),
        ({"pp": 2}, 1, "Schedule1F1B", [("chunk 0", 1, 2, HIDDEN, LOGITS)]),
        ({"pp": 4, "schedule": "gpipe"}, 2, "ScheduleGPipe", [("chunk 0", 2, 4, HIDDEN, HIDDEN)]),
        ({"pp": 2, **INTERLEAVED}, 0, "ScheduleInterleaved1F1B",
         [("chunk 0", 0, 4, IDS, HIDDEN), ("chunk 1", 2, 4, HIDDEN, HIDDEN)]),
        ({"pp": 2, **INTERLEAVED}, 1, "ScheduleInterleaved1F1B",
         [("chunk 0", 1, 4, HIDDEN, HIDDEN), ("chunk 1", 3, 4, HIDDEN, LOGITS)]),
        ({"pp": 2, "tp": 2, **SPLIT}, 0, "Schedule1F1B", [("chunk 0", 0, 2, PART[:1], PART[1:2])]),
        ({"pp": 2, "tp": 2, **SPLIT}, 1, "Schedule1F1B", [("chunk 0", 1, 2, PART[1:2], PART[2:])]),
    ],
)  # fmt: skip
def test_what_a_schedule_gets(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], stage: int, kind: str, stages: list[Any]
) -> None:
    said: list[Any] = []

    class Schedule:
        def __init__(
            self, name: str, given: Any, micro_batches: int, *, loss_fn: Any, scale_grads: bool
        ) -> None:
            said.append((name, given if isinstance(given, list) else [given], micro_batches, scale_grads))
            self.loss_fn = loss_fn

        def step(self, *given: Any, target: Any = None, losses: Any = None, return_outputs: bool) -> None:
            said.append((given, target, return_outputs))
            if losses is not None:
                losses += [self.loss_fn(torch.tensor(2.0 + n, requires_grad=True), target) for n in range(3)]

    def made(
        chunk: Any, index: int, count: int, device: Any, *, input_args: Any, output_args: Any, group: Any
    ) -> Any:
        assert (device, group) == ("a device", "a group")
        return chunk.name, index, count, told(input_args), told(output_args)

    monkeypatch.setattr(passes, "_MarkedStage", made)
    for name in ("Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B"):
        monkeypatch.setattr(passes, name, partial(Schedule, name))
    layout = Parallelism(**{"tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 6, **options})
    chunks: list[Any] = [
        SimpleNamespace(name=f"chunk {n}", loss=lambda output, targets, n=n: output * (10 * n + 1))
        for n in range(layout.virtual_stages)
    ]
    step = passes.pipeline(
        chunks, TrainingJob(model=MODEL, parallelism=layout), stage=stage, group="a group",  # type: ignore[arg-type]
        device="a device", dtype=torch.bfloat16, loss_factor=0.5,  # type: ignore[arg-type]
    )  # fmt: skip
    loss = step("tokens", "targets")  # type: ignore[arg-type]
    is_last = stage == layout.pp - 1
    tokens = ("tokens",) if stage == 0 else ()
    assert said == [(kind, stages, 6, False), (tokens, "targets" if is_last else None, False)]
    # Of the last chunk, each half of it.
    assert loss == ((2 + 3 + 4) * (10 * len(chunks) - 9) / 2 if is_last else 0)
