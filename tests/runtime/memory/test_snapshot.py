"""Snapshots of torch's allocator: sums by state, the fullest moment of the history, and what is refused."""

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
     b'{"segments": [{"device": Infinity, "total_size": 1, "blocks": []}]}'],
)  # fmt: skip
def test_what_is_no_snapshot(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="is no snapshot of memory, expected JSON"):
        read_snapshot(written(tmp_path, content))
