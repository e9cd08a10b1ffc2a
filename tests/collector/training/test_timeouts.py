"""How long one turn of real steps may take: as long as requested, whatever torch's own limit is."""

import os
import time
from pathlib import Path

import pytest

from kernelcast.collector.training.job import TrainingEffort, TrainingJob
from kernelcast.collector.training.steps import train_jobs
from kernelcast.runtime import DataError, ModelConfig, Parallelism

# Imported by every process when it starts: torch's limit, usually 30 minutes, is then 3 s.
SHORT_LIMIT = """
import datetime, importlib.abc, sys

class Shorten(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch.distributed.distributed_c10d":
            sys.meta_path.remove(self)
            import torch.distributed.constants as constants
            constants.default_pg_timeout = datetime.timedelta(seconds=3)

sys.meta_path.insert(0, Shorten())
"""
MODEL = ModelConfig(
    name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=4, vocabulary_size=200
)
ALONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
PAIR = Parallelism(pp=1, tp=1, dp=2, micro_batch=1, micro_batches=1)


@pytest.fixture(autouse=True)
def _short_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHORT_LIMIT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
def test_a_rank_that_a_job_does_not_need_waits_as_long_as_a_turn_may_take() -> None:
    jobs = [TrainingJob(model=MODEL, parallelism=layout) for layout in (ALONE, PAIR)]
    start = time.monotonic()
    with pytest.raises(DataError, match=r"training.worker: no result after 12 s on 2 process\(es\)$"):
        train_jobs(jobs, effort=TrainingEffort(rounds=1, steps=10**9), seed=1, timeout_s=12)
    assert time.monotonic() - start < 300  # torch's own limit is half an hour
