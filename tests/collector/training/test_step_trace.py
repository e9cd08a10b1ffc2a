"""Kernels of a real traced step: each belongs to the operator that ran it, forward, backward and recomputed."""

from collections import Counter

import pytest
import torch

from kernelcast.collector.measuring.harness import profiled
from kernelcast.collector.training.marks import BACKWARD, FORWARD, LOSS, STEP, marked, marks_shown
from kernelcast.collector.training.model import Chunk, Shard
from kernelcast.collector.training.rank_trace import rank_trace
from kernelcast.collector.training.step_trace import TracedWork, attribute_step
from kernelcast.runtime import ModelConfig

ENCODERS = 2


def traced(norm: str, recompute: str) -> tuple[TracedWork, dict[str, list[object]]]:
    model = ModelConfig(
        name="tiny",
        hidden_size=32,
        sequence_length=16,
        attention_heads=4,
        encoders=ENCODERS,
        vocabulary_size=100,
        norm=norm,  # type: ignore[arg-type]
    )
    chunk = Chunk(
        model,
        first_encoder=0,
        encoders=ENCODERS,
        vocabulary_size=128,
        is_first=True,
        is_last=True,
        shard=Shard(),
        recompute=recompute,  # type: ignore[arg-type]
    )
    for parameter in chunk.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(100, (2, 16))

    def step() -> None:
        with marked(STEP):
            with marked(FORWARD):
                logits = chunk(ids)
            with marked(LOSS):
                loss = chunk.loss(logits, ids)
            with marked(BACKWARD):
                loss.backward()  # type: ignore[no-untyped-call]

    step()
    with marks_shown():
        trace = profiled(torch.device("cpu"), step)
    return attribute_step(trace), rank_trace(trace, stage=0)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_every_operator_is_found_in_its_direction(norm: str, recompute: str) -> None:
    work, said = traced(norm, recompute)
    pieces = [piece for piece in work.pieces if piece.owner.known]
    calls = {(p.owner.name, p.owner.direction, p.owner.call) for p in pieces}
    found = Counter((name, direction) for name, direction, _ in calls)
    again = {
        "none": set(),
        "selective": {"flash_attention"},
        "full": {"flash_attention", "qkv_linear", "rope"},
    }[recompute]
    for name, count in {
        "qkv_linear": 2,
        "flash_attention": 2,
        "rope": 2,
        "gelu": 2,
        "logits_linear": 1,
    }.items():
        twice = 2 if name in again else 1
        if not (name == "gelu" and recompute == "full"):
            assert found[name, "forward"] == twice * count, name
        assert found[name, "backward"] == count, name
    assert found["embedding", "backward"] == found["cross_entropy", "backward"] == 1
    # The stream's two gradients meet once per residual addition, whatever the norm is made of.
    adds = [p for p in pieces if p.owner.name == "residual_add" and p.owner.direction == "backward"]
    assert len({p.owner.call for p in adds}) == 2 * 2 * ENCODERS  # passed on, and met by the other gradient
    assert len(said["encoder_forward"]) == len(said["encoder_backward"]) == ENCODERS


def test_pieces_do_not_overlap_and_fill_the_step() -> None:
    work, said = traced("layer_norm", "none")
    (step,) = work.steps
    for before, after in zip(work.pieces, work.pieces[1:], strict=False):
        assert before.end_us <= after.start_us + 1e-6
    inside = [p for p in work.pieces if step.start_us <= p.start_us <= step.end_us]
    idle = said["idle"]
    total = sum(p.time_us for p in inside) + idle["passes"][0] + idle["between"][0]  # type: ignore[index, operator, call-overload]
    assert total == pytest.approx(step.duration_us, rel=1e-6)
    assert sum(p.time_us for p in inside if p.owner.known) > 0.5 * sum(p.time_us for p in inside)
