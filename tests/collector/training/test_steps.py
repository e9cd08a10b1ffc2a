"""Real training steps in real processes: few, small ones; and jobs that fail."""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kernelcast.collector.training.job import TrainingEffort, TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult, OperatorTime
from kernelcast.collector.training.marks import called
from kernelcast.collector.training.step_trace import LOSS_SUM, TENSOR_SUM
from kernelcast.collector.training.steps import train_jobs
from kernelcast.runtime import Cluster, DataError, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.runtime.step.op import ONCE_PER_UPDATE

ALONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=3)
MODEL = ModelConfig(
    name="tiny",
    hidden_size=32,
    sequence_length=16,
    attention_heads=4,
    layers=3,
    vocabulary_size=200,
    forward_syncs=2,
    backward_syncs=2,
)
# Kernels that only operators of the prediction run.
OF_OPERATORS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot", "aten::native_layer_norm",
    "aten::rms", "aten::_fused_rms", "aten::gelu", "aten::silu", "aten::sigmoid", "aten::_softmax",
    "aten::_log_softmax", "aten::topk", "aten::embedding", "aten::index", "aten::_fused_adamw", "aten::sqrt",
    "aten::exp", "aten::tril", "gloo:",
)  # fmt: skip
SHORT = TrainingEffort(rounds=1, warm_up_steps=1, steps=3)


def results(jobs: Sequence[TrainingJob], turns: Sequence[Turn]) -> list[JobResult]:
    own = [tuple(turn for turn in turns if turn.job == number) for number in range(len(jobs))]
    return [JobResult(job=job, turns=found) for job, found in zip(jobs, own, strict=True)]


def workers() -> set[int]:
    """Processes that train here for this test, by what they were started with."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"KERNELCAST_TEST={os.getpid()}".encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit a variable by which the test finds them again."""
    monkeypatch.setenv("KERNELCAST_TEST", str(os.getpid()))


@pytest.mark.slow
def test_jobs_take_turns_and_their_operators_are_those_of_the_prediction() -> None:
    layouts = [ALONE, replace(ALONE, pp=2), replace(ALONE, tp=2), replace(ALONE, dp=2)]
    jobs = [TrainingJob(model=MODEL, parallelism=layout) for layout in layouts]
    seen: list[tuple[int, int]] = []
    turns = train_jobs(
        jobs,
        effort=TrainingEffort(rounds=2, warm_up_steps=1, steps=2),
        seed=7,
        timeout_s=3000,
        on_turn=lambda turn: seen.append((turn.round, turn.job)),
    )
    assert seen == [(turn, job) for turn in range(2) for job in range(4)]
    assert workers() == set()
    for job, measured in zip(jobs, results(jobs, turns), strict=True):
        assert len(measured.steps_s) == len(measured.reference_us) == 4
        assert 0 < min(measured.steps_s) <= max(measured.steps_s) < 600
        assert len(measured.traces) == job.parallelism.world_size
        check_operators(job, measured.operator_times())
        components = measured.components_s()
        expected = {"Encoder_Fwd", "Encoder_Bwd", "Stage_Fwd_Max", "Stage_Bwd_Max", "Max_Update"}
        layout = job.parallelism
        expected |= {"MP_Allreduce"} if layout.tp > 1 else set()
        expected |= {"DP_Allreduce", "DP_Allgather"} if layout.dp > 1 else set()
        assert expected <= set(components) <= expected | ({"PP_P2P"} if layout.pp > 1 else set())
        assert all(seconds > 0 for seconds in components.values())
        assert components["Encoder_Fwd"] < components["Stage_Fwd_Max"]
        assert components["Encoder_Bwd"] < components["Stage_Bwd_Max"]


@pytest.mark.slow
def test_what_is_computed_again_is_counted_twice() -> None:
    layouts = [replace(ALONE, recompute="full"), replace(ALONE, tp=2, recompute="full")]
    jobs = [TrainingJob(model=MODEL, parallelism=layout) for layout in layouts]
    turns = train_jobs(jobs, effort=SHORT, seed=7, timeout_s=3000)
    for job, measured in zip(jobs, results(jobs, turns), strict=True):
        check_operators(job, measured.operator_times())


@pytest.mark.slow
def test_experts_and_parts_of_sequences_are_exchanged_as_often_as_predicted() -> None:
    mixture = replace(
        MODEL, name="mixture", norm="rms_norm", activation="swiglu", biases="none", dense_layers=1,
        experts=4, experts_per_token=2, expert_size=24, shared_expert_size=16,
    )  # fmt: skip
    jobs = [
        TrainingJob(model=mixture, parallelism=replace(ALONE, dp=2, ep=2, zero=0)),
        TrainingJob(model=MODEL, parallelism=replace(ALONE, cp=2, context_exchange="all_to_all", zero=0)),
    ]
    turns = train_jobs(jobs, effort=SHORT, seed=7, timeout_s=3000)
    for job, measured in zip(jobs, results(jobs, turns), strict=True):
        check_operators(job, measured.operator_times())
        known = {o.operator: o for o in measured.operator_times() if o.known and o.direction == "once"}
        role, layers = ("expert", 2) if job.parallelism.ep > 1 else ("context", 3)
        # There and back, forward and backward, in every layer of each of three micro-batches.
        assert known[f"all_to_all/{role}"].calls == 4 * layers * 3
        assert "Encoder_Fwd" in measured.components_s()


def check_operators(job: TrainingJob, found: list[OperatorTime]) -> None:
    """Forward calls and sums have the decomposition's counts; backward only its operators."""
    parts = decompose(
        model=job.model,
        parallelism=job.parallelism,
        cluster=Cluster(gpus_per_node=job.parallelism.world_size),
        bucket_entries=job.bucket_entries,
    )
    calls: Counter[tuple[str, str]] = Counter()
    for stage in range(job.parallelism.pp):
        for component, call in parts.calls(stage):
            # A trace has a linear's two gradients as one.
            if call.direction is not Direction.WEIGHT_GRADIENT:
                repeats = 1 if component in ONCE_PER_UPDATE else job.parallelism.micro_batches
                calls[called(call.operator, call.role), call.direction.of_pass] += call.count * repeats
    known = {(o.operator, o.direction): o for o in found if o.known}
    for key, count in calls.items():
        if key[0] == "point_to_point/pipeline":
            continue
        assert key in known, (job.label, key)
        assert known[key].step_us > 0
        # Two pieces of a mask, ids before and rows after; several copies around an exchange of heads.
        if key[1] == "forward" and key[0] not in ("embedding_mask", "copy"):
            assert known[key].calls == count, (job.label, key)
    if job.parallelism.tp > 1:
        sums = (known[TENSOR_SUM, "once"], known[LOSS_SUM, "once"])
        assert sum(one.calls for one in sums) == calls[TENSOR_SUM, "once"], job.label
    # By name: a time's share is the machine's, which may stop anywhere. What is left are views, sums of copies and the
    # functions around exchanges.
    others = {o.operator for o in found if not o.known}
    assert not [name for name in others if name.startswith(OF_OPERATORS)], others


@pytest.mark.slow
def test_an_exception_is_one_line_and_leaves_nobody() -> None:
    # Heads of 7 elements cannot be rotated.
    model = replace(MODEL, head_size=7, rotary=False)
    job = TrainingJob(model=model, parallelism=replace(ALONE, pp=2))
    object.__setattr__(job.model, "rotary", True)  # past all checks
    with pytest.raises(UsageError):
        TrainingJob(model=job.model, parallelism=ALONE)
    with pytest.raises(DataError) as caught:
        train_jobs([job], effort=SHORT, seed=1, timeout_s=3000)
    message = str(caught.value)
    assert message.startswith("kernelcast.collector.training.worker: exit status 1 on 2 process(es): ")
    assert "rotary position embedding needs an even number" in message
    assert "\n" not in message
    assert workers() == set()


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_keeps_what_was_measured() -> None:
    job = TrainingJob(model=MODEL, parallelism=replace(ALONE, tp=2))
    kept: list[Turn] = []

    def kill(turn: Turn) -> None:
        kept.append(turn)
        if len(kept) == 1:
            os.kill(rank_process("1"), signal.SIGKILL)

    with pytest.raises(DataError, match=r"process 1 was ended by SIGKILL|by peer"):
        train_jobs(
            [job],
            effort=TrainingEffort(rounds=10_000, warm_up_steps=0, steps=3),
            seed=1,
            timeout_s=3000,
            on_turn=kill,
        )
    assert kept
    assert all(len(turn.steps_s) == 3 for turn in kept)
    assert workers() == set()


def rank_process(rank: str) -> int:
    for pid in workers():
        names = dict(
            entry.partition(b"=")[::2] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
        if names.get(b"RANK") == rank.encode():
            return pid
    raise AssertionError(f"no worker of rank {rank}")


@pytest.mark.slow
def test_a_timeout_ends_everybody() -> None:
    job = TrainingJob(model=MODEL, parallelism=ALONE)
    start = time.monotonic()
    with pytest.raises(DataError, match=r"training.worker: no result after 6 s on 1 process\(es\)$"):
        train_jobs([job], effort=TrainingEffort(rounds=1, steps=10**9), seed=1, timeout_s=6)
    assert time.monotonic() - start < 300  # and not for ever
    assert workers() == set()


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        ({}, {"tp": 3}, r"tp is 3, expected a divisor of attention_heads \(4\) of model tiny"),
        ({"kv_heads": 1}, {"tp": 2}, r"tp is 2, expected a divisor of kv_heads \(1\)"),
        ({}, {"pp": 3, "micro_batches": 2}, "micro_batches is 2, real steps over 3 pipeline stages need 3"),
        ({}, {"zero": 2}, "zero is 2, real steps train 0 or 1 only"),
        (
            {},
            {"schedule": "zero_bubble", "pp": 2},
            "schedule is zero_bubble, real steps train gpipe, 1f1b or",
        ),
        ({}, {"tp": 2, "sequence_parallel": True}, "sequence_parallel is true, real steps train false only"),
        ({"attention": "fused_softmax"}, {}, "model tiny: attention is fused_softmax, real steps train"),
        ({"tied_embeddings": True}, {}, "model tiny: tied_embeddings is true, real steps train false only"),
        ({"learned_positions": 64}, {}, "model tiny: learned_positions is 64, real steps train 0 only"),
    ],
)
def test_what_is_not_trained_is_named(
    model: dict[str, object], layout: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingJob(
            model=replace(MODEL, **model),  # type: ignore[arg-type]
            parallelism=replace(ALONE, **layout),  # type: ignore[arg-type]
        )


def test_a_job_survives_json() -> None:
    job = TrainingJob(
        model=MODEL,
        parallelism=replace(ALONE, pp=2, layer_counts=(1, 2)),
        bucket_entries=99,
        dtype="bfloat16",
    )
    assert msgspec.json.decode(msgspec.json.encode(job), type=TrainingJob) == job
    assert (job.label, job.chunk_layers, job.vocabulary_size) == ("2-1-1", (1, 2), 256)
