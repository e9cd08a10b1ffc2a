"""Steps of several layouts that ran unlike their prediction, as drawn: drawn_comparisons.txt, to four digits.

WRITE_DRAWN_COMPARISONS=1 pytest THIS_FILE writes it again. What ran is what was predicted, with calls left out, longer,
renamed or cut, and with others that no prediction has.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.rank_causes import RankFinding
from kernelcast.validate.compare import compared_step
from kernelcast.validate.compare.compared_step import ComparedStep, compare_run
from kernelcast.validate.compare.rows import Row, predicted_step
from kernelcast.validate.compare.traced_steps import Gap, TracedSteps, Work

TEXT = Path(__file__).with_name("drawn_comparisons.txt")
SIZES: dict[str, Any] = {
    "hidden_size": 64, "sequence_length": 32, "attention_heads": 4, "layers": 4, "vocabulary_size": 256
}  # fmt: skip
GPT = ModelConfig(name="gpt", **SIZES, rotary=False, learned_positions=32)
LLAMA = ModelConfig(name="llama", **SIZES, kv_heads=2, norm="rms_norm", activation="swiglu", biases="none")
MIXTURE = ModelConfig(
    name="mixture", **SIZES, norm="rms_norm", activation="swiglu", biases="none", experts=4, experts_per_token=2,
    expert_size=48, shared_expert_size=32, dense_layers=1,
)  # fmt: skip
ONE: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2}
ASKED: list[tuple[ModelConfig, dict[str, Any]]] = [
    (GPT, {}), (GPT, {"pp": 2, "dp": 2}), (LLAMA, {"tp": 2, "recompute": "full"}),
    (LLAMA, {"pp": 2, "tp": 2, "micro_batches": 4}), (MIXTURE, {"dp": 2, "ep": 2}), (LLAMA, {"dp": 4, "zero": 3}),
    (GPT, {"pp": 4, "micro_batches": 4}),
]  # fmt: skip
UNKNOWN = ("aten::copy_", "aten::conv2d", "my::kernel", "")
PARTS = ("idle_host", "idle_other_stream", "idle_dependency", "idle_unknown", "memory")


def ran(estimate: Estimate, drawn: Random, wild: float) -> TracedSteps:
    """Three steps of some ranks; each call changes with the probability `wild`."""
    world = estimate.parallelism.world_size
    ranks = sorted(drawn.sample(range(world), drawn.choice([world, max(1, world // 2)])))
    slow = 1 + wild * drawn.random() if drawn.random() < 0.4 else 1.0
    work: list[Work] = []
    steps = [f"ProfilerStep#{number}" for number in range(2, 5)]
    changes = {}
    for rank in ranks:
        for step in steps:
            for call in predicted_step(estimate, (rank,)).calls:
                key = call.operator, call.pass_, call.vector
                if key not in changes:
                    changes[key] = _change(drawn, call, wild)
                work += changes[key](_as_predicted(call, rank, step, slow))
    parts: dict[int, dict[str, dict[str, float]]] = {}
    late = drawn.random() < 0.3
    for rank in ranks:
        parts[rank] = {}
        for step in steps:
            own = [one for one in work if (one.rank, one.step) == (rank, step)]
            parts[rank][step] = {
                "compute": sum(one.time_s for one in own if one.class_ == "compute"),
                "exposed_communication": sum(one.time_s for one in own if one.class_ == "communication"),
                **{
                    name: drawn.choice([0.0, 0.0, 0.0123, 0.2345 * (1 + rank)]) if late else 0.0
                    for name in PARTS
                },
            }
    gap = Gap(rank=drawn.choice(ranks), time_s=0.1567, name="aten::mm", scope=drawn.choice(["", "loss"]))
    found = RankFinding(kind="slow_device", rank=0, group_ranks="", delay_ms=321.0, line="rank 0 is late")
    link = replace(found, kind="slow_link", rank=None, group_ranks="[0, 1]", line="a link is slow")
    return TracedSteps(
        run_id="0123456789abcdef", hardware=drawn.choice(["Example GPU, 40 GiB", "another", "unknown device"]),
        world_size=drawn.choice([None, *[world] * 8, world + 1]), parts_s=parts, work=tuple(work),
        gaps=(gap,) if late else (),
        findings=tuple(one for one in (found, link) if drawn.random() < 0.15),
        loader_s={(rank, step): 0.1789 for rank in ranks for step in steps} if drawn.random() < 0.2 else {},
    )  # fmt: skip


def _as_predicted(call: Row, rank: int, step: str, slow: float) -> Work:
    once = call.pass_ == "once"
    return Work(
        rank=rank, step=step, class_="communication" if once else "compute", pass_=call.pass_,
        operator="" if once else call.operator, role=call.roles[0] if call.roles and not once else "",
        vector=() if once else call.vector, variant="", host_operator="", collective=call.operator if once else "",
        message_bytes=call.message_bytes(4) if once else None, time_s=slow * (call.predicted_s or 0.0),
        launches=call.calls,
    )  # fmt: skip


def _change(drawn: Random, call: Row, wild: float) -> Callable[[Work], list[Work]]:
    """What becomes of a call, the same on all ranks but for one that may be longer."""
    if drawn.random() > wild:
        return lambda one: [one]
    factor, elements = drawn.choice([0.3, 1.2, 2.0, 6.0]), drawn.choice([0.5, 0.95, 1.3, 2.0])
    of_rank, unknown = drawn.choice([None, 0, 1]), drawn.choice(UNKNOWN)
    shorter = tuple(max(1, round(elements * one)) for one in call.vector[:1]) + call.vector[1:]
    others = sorted(name for name in OPERATORS if OPERATORS[name].is_collective)
    other, variant = drawn.choice(others), drawn.choice(["", "flash", "cutlass"])
    longer = factor if of_rank is None else 1.0
    kinds: list[Callable[[Work], list[Work]]] = [
        lambda one: [],
        lambda one: [replace(one, variant=variant, time_s=one.time_s * (factor if one.rank == of_rank else longer))],
        lambda one: [replace(one, vector=shorter, role="") if one.operator else replace(one, collective="")],
        lambda one: [replace(one, vector=shorter, launches=2 * one.launches)] if one.operator else [one, one],
        lambda one: [replace(one, operator="", role="", vector=(), host_operator=unknown)] if one.operator
        else [replace(one, collective=other, message_bytes=4 * (one.message_bytes or 0))],
        lambda one: [one, replace(one, class_="memory", operator="", vector=(), role="", host_operator="aten::to")],
        lambda one: [replace(one, pass_="" if one.operator else "once"), one],
        lambda one: [replace(one, operator="softmax" if one.operator == "flash_attention" else one.operator)],
        lambda one: [replace(one, vector=(one.vector[0], one.vector[1], one.vector[2] // 2))]
        if one.operator == "gemm" else [replace(one, message_bytes=None)],
    ]  # fmt: skip
    return drawn.choice(kinds)


def told(found: ComparedStep) -> Iterator[str]:
    assert found.traced is not None
    yield f"{found.traced.typical}: {found.measured_s:.4g} s, {found.difference:.4g}, {found.tokens_per_s_per_gpu:.4g}"
    for kind in ("parts", "operators", "collectives"):
        for row in getattr(found, kind):
            times = [row.measured_s, row.predicted_s, row.low_s, row.high_s, row.ratio, row.launches, row.calls,
                     row.measured_bytes, row.predicted_bytes]  # fmt: skip
            said = " ".join("-" if one is None else f"{one:.4g}" for one in times)
            ranks = " ".join(f"{rank}:{time_s:.4g}" for rank, time_s in (row.by_rank_s or {}).items())
            more = [row.pass_, *row.vector, *row.variants, *(["slow"] if row.is_slow else []), ranks]
            yield f"  {row.name} {' '.join(map(str, filter(None, more)))}: {said}"
    for cause in found.causes:
        yield f"  cause: {cause.kind} {cause.excess_s:.4g} {cause.line}"
    for note in found.notes:
        yield f"  note: {note}"


def everything(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    # Seconds, so that a unit shows in any digit.
    times = {"gemm": 31e3, "flash_attention": 52e3, "grouped_gemm": 41e3, "all_reduce": 17e3, "all_gather": 27e3,
             "gelu": 9e3, "swiglu": 8e3}  # fmt: skip
    estimator, lines = Estimator.load(make_bundle(times)), []
    for number, (model, options) in enumerate(ASKED):
        layout = Parallelism(**{**ONE, **options})
        estimate = estimator.predict(model=model, parallelism=layout, cluster=Cluster(gpus_per_node=4))
        for seed in range(5):
            traced = ran(estimate, Random(f"{number} {seed}"), (0.1, 0.1, 0.25, 0.4, 0.6)[seed])
            monkeypatch.setattr(compared_step, "traced_steps", lambda database, run_id, one=traced: one)
            lines.append(f"{model.name} {options} {seed}, ranks {traced.ranks}")
            try:
                lines += told(compare_run(None, traced.run_id, estimate))  # type: ignore[arg-type]
            except DataError as error:
                lines.append(f"  {error}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_steps_that_ran_otherwise(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = everything(make_bundle, monkeypatch)
    if "WRITE_DRAWN_COMPARISONS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
