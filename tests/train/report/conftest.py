"""A small training for the report: two operators and a collective in three layouts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.fit import Trained, train_bundle

LAYOUTS = ((1, 2), (1, 4), (2, 4))


@pytest.fixture(scope="session")
def kept() -> dict[str, Trained]:
    """What was trained already: it takes a second, and nothing changes it."""
    return {}


@pytest.fixture
def trained(kept: dict[str, Trained], request: pytest.FixtureRequest) -> Trained:
    """Forward gelu and backward gemm with 24 rows, all_reduce with 12 in each of three layouts."""
    if "here" not in kept:
        request.getfixturevalue("few_candidates")
        kept["here"] = _train(*map(request.getfixturevalue, ("database", "measure", "tmp_path")))
    return kept["here"]


def _train(database: Database, measure: Callable[..., list[Sample]], folder: Path) -> Trained:
    measure(database, "gelu", Direction.FORWARD, 24, dtype="float16")
    measure(database, "gemm", Direction.BACKWARD, 24, dtype="float16", role="qkv")
    times_us = {
        (2**size, nodes, gpus): 10 + 2**size / (1000 * nodes) * (1.5 if size % 2 else 1)
        for nodes, gpus in LAYOUTS
        for size in range(10, 22)
    }
    measure(database, "all_reduce", Direction.ONCE, times_us=times_us, dtype="float16")
    measure(database, "softmax", Direction.FORWARD, 3, dtype="float16")
    return train_bundle(database, folder / "here.kcast")
