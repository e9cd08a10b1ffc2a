"""One rank of real jobs, in this process: turns, steps, traces and what is written of them."""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

from kernelcast.collector.training.job import TrainingEffort, TrainingJob, TrainingRequest, Turn
from kernelcast.runtime import ModelConfig, Parallelism
from tests.collector.training.compared import worker

MODEL = ModelConfig(
    name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=1, vocabulary_size=100
)


def test_jobs_take_turns_and_the_last_ones_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    init, own = dist.init_process_group, {"store": dist.HashStore(), "rank": 0, "world_size": 1}

    def joins(backend: str, timeout: timedelta) -> None:
        said.append((backend, timeout.total_seconds()))
        init(backend, timeout=timeout, **own)

    monkeypatch.setattr(dist, "init_process_group", joins)
    monkeypatch.setattr(worker, "own_cores", lambda number, processes, threads: (number, processes, threads))
    monkeypatch.setattr(worker, "bind", said.append)
    monkeypatch.setattr(worker, "keep_freed_memory", partial(said.append, "kept"))
    monkeypatch.setattr(torch, "set_num_threads", said.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    steps = list[int]()
    step = worker.Trainer.step
    monkeypatch.setattr(
        worker.Trainer, "step", lambda self: steps.append(self._job.parallelism.micro_batches) or step(self)
    )
    jobs = tuple(
        TrainingJob(
            model=MODEL, dtype=dtype,
            parallelism=Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=count, zero=0),
        )
        for count, dtype in ((1, "float32"), (2, "float16"))
    )  # fmt: skip
    for traced in (0, 1):
        request = TrainingRequest(
            jobs=jobs[: 1 + traced], seed=5, device="cpu", threads=7, timeout_s=40.0,
            effort=TrainingEffort(rounds=1 + traced, warm_up_steps=1, steps=2, traced=bool(traced)),
        )  # fmt: skip
        asked, lines = tmp_path / "request.json", tmp_path / f"turns {traced}.jsonl"
        asked.write_bytes(msgspec.json.encode(request))
        monkeypatch.setattr(sys, "argv", ["worker", str(asked), str(lines)])
        worker.main()
        turns = [msgspec.json.decode(line, type=Turn) for line in lines.read_bytes().splitlines()]
        found = [
            (one.round, one.job, len(one.traces), len(one.steps_s), len(one.reference_us)) for one in turns
        ]
        assert all(0 < time < 600 for turn in turns for time in turn.steps_s)
        # A warm-up step and two timed ones, and three under the profiler.
        if traced:
            assert found == [(0, 0, 0, 2, 2), (0, 1, 0, 2, 2), (1, 0, 1, 2, 2), (1, 1, 1, 2, 2)]
            assert steps == [1] * 3 + [2] * 3 + [1] * 6 + [2] * 6
        else:
            assert (found, steps) == ([(0, 0, 0, 2, 2)], [1] * 3)
        steps.clear()
        for turn in turns[2:]:
            [trace] = turn.traces
            assert (trace["stage"], len(trace["steps"])) == (0, 3)
            assert [len(trace[name]) for name in ("forward", "loss", "backward")] == [3 * (1 + turn.job)] * 3
            assert {len(calls) for _, _, _, calls in trace["operators"]} == {3}
        assert said == [7, (3, 5, 7), "kept", ("gloo", 100.0)]
        said.clear()
        own["store"] = dist.HashStore()
    assert not dist.is_initialized()
