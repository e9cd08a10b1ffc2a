"""Snapshots of torch's allocator: sums by state, the fullest moment of the history, logs, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.memory.snapshot import read_snapshot


def segment(device: int, *blocks: tuple[int, str]) -> dict[str, Any]:
    return {
        "device": device,
        "total_size": sum(size for size, _ in blocks),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


SNAPSHOT = {
    "segments": [
        segment(0, (512, "active_allocated")),
        segment(1, (4096, "active_allocated"), (1024, "inactive")),
        segment(1, (2048, "active_pending_free"), (512, "active_allocated")),
    ],
    "device_traces": [
        [],
        [
            {"action": "alloc", "size": 4096},
            {"action": "segment_alloc", "size": 5120},
            {"action": "alloc", "size": 2048},
            {"action": "free_requested", "size": 2048},
            {"action": "free_completed", "size": 2048},
            {"action": "alloc", "size": 512},
        ],
    ],
}


def written(folder: Path, content: bytes) -> Path:
    path = folder / "snapshot.json"
    path.write_bytes(content)
    return path


def test_blocks_by_state_and_the_fullest_moment(tmp_path: Path) -> None:
    found = read_snapshot(written(tmp_path, json.dumps(SNAPSHOT).encode()))
    assert (found.device, found.allocated_bytes, found.reserved_bytes) == (1, 4608, 7680)
    assert found.largest_bytes == 4096 + 2048
    plain = {**SNAPSHOT, "device_traces": []}
    assert read_snapshot(written(tmp_path, json.dumps(plain).encode())).largest_bytes == 4608


# As Megatron-Bridge 0.2 prints them (train_utils.py); two ranks may share a line.
BRIDGE = """
 [2025-12-19 10:49:15] iteration 1/ 2 | lm loss: 1.258695E+01 |Number of parameters in embedding layers in billions: 1.05
Theoretical memory footprints: weight and optimizer=57438.81 MB, activation=1024.00 MB, total=58462.81 MB

[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 51.0 | mem-max-allocated-gigabytes: 90.0 | mem-max-reserved-gigabytes: 91.0 | mem-alloc-retires: 0
0: [Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 51.072 | mem-active-gigabytes: 51.072 | mem-max-allocated-gigabytes: 153.4 | mem-max-reserved-gigabytes: 216.89 | mem-alloc-retires: 0[Rank 8] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 61.881 | mem-max-allocated-gigabytes: 153.47 | mem-max-reserved-gigabytes: 182.24 | mem-allocated-count: 433
"""  # noqa: E501
LM = "[Rank 3] (after 2 iterations) memory (MB) | allocated: 5.5 | max allocated: 7.25 | max reserved: 9.0"
ESTIMATE = (
    "Theoretical memory footprints: dense parameters and optimizer=2.00 GB, "
    "embedding parameters and optimizer=0.50 GB, routed expert parameters and optimizer=1.00 GB, total=3.50 GB"
)


def test_a_log_of_megatron(tmp_path: Path) -> None:
    found = read_snapshot(written(tmp_path, BRIDGE.encode()))
    assert (found.device, found.allocated_bytes) == (8, 61_881_000_000)
    assert (found.largest_bytes, found.reserved_bytes) == (153_470_000_000, 182_240_000_000)
    assert found.theoretical == {
        "weight and optimizer": round(57438.81 * 2**20),
        "activation": 1 << 30,
        "total": round(58462.81 * 2**20),
    }
    found = read_snapshot(written(tmp_path, LM.encode()))
    assert (found.device, found.allocated_bytes) == (3, 5.5 * 2**20)
    assert (found.largest_bytes, found.reserved_bytes) == (7.25 * 2**20, 9 * 2**20)
    assert found.theoretical == {}
    found = read_snapshot(written(tmp_path, ESTIMATE.encode()))
    assert found.largest_bytes is None
    assert found.theoretical == {"weight and optimizer": 3.5 * 2**30, "total": 3.5 * 2**30}


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, pickle.dumps(Harmful(), protocol))
    expected = "is a pickle" if protocol >= 2 else "is no snapshot of memory"
    with pytest.raises(DataError, match=expected + r".*json\.dump\(torch\.cuda\.memory\._snapshot\(\)"):
        read_snapshot(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"segments": []}', b'{"segments": [{"device": 0}]}', b"[" * 100_000, b"\xff{}",
     b'{"segments": [{"device": 0, "total_size": "x", "blocks": []}]}',
     b'{"segments": [{"device": Infinity, "total_size": 1, "blocks": []}]}',
     b"iteration 1/ 2 | lm loss: 1.2", b"Theoretical memory footprints: weight and optimizer=1..2 MB",
     LM.replace("7.25", "much").encode(), LM.replace("max allocated", "most").encode()],
)  # fmt: skip
def test_what_is_no_snapshot(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="is no snapshot of memory, expected JSON"):
        read_snapshot(written(tmp_path, content))
