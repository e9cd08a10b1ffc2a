"""Merges of drawn databases and what taking them back leaves: `drawn_merges.txt`, WRITE_DRAWN_MERGES=1 writes it.

Databases hold some of the same runs, and samples of their own in them. Contents are numbered as they appear.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from kernelcast.runtime import KernelcastError
from kernelcast.runtime.bundle.signature import Verified
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, PredictorRecord, check_database, dataset_digest, merge_databases
from kernelcast.store.merges import file_digest, revert_merge
from tests.store.test_drawn_runs import H100, RUNS, row_lines

TEXT = Path(__file__).with_name("drawn_merges.txt")
WANTED = (
    {"operator": "gemm"}, {"direction": Direction.ONCE, "load": Load.BURST}, {"role": "up"}, {"load": Load.SUSTAINED},
    {"status": "failed"}, {"conditions": {"longer": 1.3, "seed": 0}},
)  # fmt: skip


def written(path: Path, random: Random) -> Path:
    """Two or three of four runs, each with some of its samples, one with its timelines; a bundle trained on all."""
    with Database.open(path, create=True) as database:
        for place in sorted(random.sample(range(4), random.choice([2, 3]))):
            run = RUNS[place]
            kept = random.sample(run.samples, random.choice([0, 5, 9]))
            has_traces = place == 2 and random.random() < 0.6
            database.add_runs([run if has_traces else replace(run, samples=kept, traces=(), timelines=())])
        trained = [one for one in database.read_samples() if one.time_us is not None]
        if trained:
            database.add(
                PredictorRecord(
                    bundle_digest=path.stem.rjust(64, "0"), operator=trained[0].operator, dtype="bfloat16",
                    direction=trained[0].direction, algorithm="forest", form="log(time)", hyperparameters={},
                    training_rows=len(trained), validation_error=0.1, size_bytes=100, statistic="time_us",
                    trained_at="2026-03-01T00:00:00Z", dataset_digest=dataset_digest(trained),
                    compute_id=H100.digest, software_id=trained[0].software_id,
                )
            )  # fmt: skip
    return path


def of_merges(folder: Path) -> Iterator[str]:
    contents: dict[str, int] = {}

    def numbered(digest: str) -> int:
        return contents.setdefault(digest, len(contents))

    for seed in (0, 1, 4):
        random = Random(seed)
        paths = [written(folder / f"{seed}{number}.db", random) for number in range(4)]
        into = paths[0]
        with Database.open(into) as database:
            yield f"*** {seed}: content {numbered(database.content_digest())}"
        merges: list[str] = []
        for _ in range(6):
            if merges and random.random() < 0.6:
                one = random.choice(merges)
                try:
                    reverted = revert_merge(into, one[: random.choice([32, 8, 0])])
                except KernelcastError as error:
                    yield f"  {error}"[:120].replace(str(folder), "HERE")
                    continue
                merges = [other for other in merges if other not in {own.id for own in reverted.merges}]
                content, bundles = numbered(reverted.content_digest), [*map(str, reverted.bundles)]
                of = [(own.rows, own.into_own_runs, own.signer) for own in reverted.merges]
                yield f"  back: {dict(reverted.removed)} kept {reverted.kept} content {content} {of} {bundles}"
                continue
            chosen = random.sample(paths, random.choice([1, 2]))
            signed = {
                path: Verified(signer="site", key="", bundle_digest=file_digest(path))
                for path in chosen
                if random.random() < 0.4
            }
            merged = merge_databases(chosen, into, verified=signed)
            merges = [own.id for own in merged.merges]
            added = [({name: count for name, count in rows.items() if count}) for _, rows in merged.added]
            listed = [(own.rows, own.into_own_runs, own.signer) for own in merged.merges]
            yield f"  merged {[one.stem for one in chosen]}: {added} content {numbered(merged.content_digest)} {listed}"
        assert check_database(into) == []
        with Database.open(into) as database:
            for wanted in WANTED:
                found = database.read_samples(**wanted)  # type: ignore[arg-type]
                origins = {one.origin for one in found}
                yield f"  {wanted}: {len(found)} samples of {len(origins)} origins {'' in origins}"
            shown = [{"time": one.time_us, "inner": one.inner_mean_us, "flags": one.flags, "spread": one.spread}
                     for one in database.read_samples(operator="all_reduce")[:6]]  # fmt: skip
            yield from row_lines("all_reduce", shown)
            of = {"compute_id": H100.digest, "software_id": RUNS[0].run.software_id}
            yield f"  points {[len(database.measured_points(**of, load=load)) for load in (None, *Load)]}"


def test_drawn_merges(tmp_path: Path) -> None:
    printed = re.sub(r"\b[0-9a-f]{12,64}\b", "#", "\n".join(of_merges(tmp_path))) + "\n"
    if "WRITE_DRAWN_MERGES" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
