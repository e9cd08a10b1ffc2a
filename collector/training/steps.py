"""Trains jobs for real in worker processes and returns each turn's steps as soon as they are measured."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kernelcast.collector.launch import run_workers
from kernelcast.collector.training.job import TrainingEffort, TrainingJob, TrainingRequest, Turn

_WORKER = "kernelcast.collector.training.worker"


def train_jobs(
    jobs: Sequence[TrainingJob],
    *,
    effort: TrainingEffort,
    seed: int,
    device: str = "cpu",
    threads: int = 1,
    timeout_s: float = 600.0,
    on_turn: Callable[[Turn], None] = lambda turn: None,
) -> list[Turn]:
    """Train every job for real, in turns, with the number of processes that the largest job needs.

    `on_turn` is called after each turn, so that its results survive later failures. The timeout is for one turn; errors
    as `run_workers`.
    """
    turns: list[Turn] = []
    request = TrainingRequest(
        jobs=tuple(jobs), effort=effort, seed=seed, device=device, threads=threads, timeout_s=timeout_s
    )
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        path, lines = Path(folder, "request.json"), Path(folder, "turns.jsonl")
        path.write_bytes(msgspec.json.encode(request))
        lines.touch()

        def look() -> bool:
            found = _read(lines, turns)
            for turn in found:
                turns.append(turn)
                on_turn(turn)
            return bool(found)

        try:
            run_workers(
                _WORKER,
                [str(path), str(lines)],
                processes=max(job.parallelism.world_size for job in jobs),
                threads=threads,
                timeout_s=timeout_s,
                progress=look,
            )
        finally:
            look()
    return turns


def _read(lines: Path, known: Sequence[Turn]) -> list[Turn]:
    """Turns written since the `known` ones; a line without its end is still being written."""
    *complete, _ = lines.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=Turn) for line in complete[len(known) :]]
