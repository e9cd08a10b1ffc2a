"""Adaptive against random sampling, with the method's authors' A100 data as the oracle (`make bench-sampling`).

A quarter of an operator's workloads is held out for good; of the rest, both ways choose which to measure. At
each number of measurements the committee's best member (chosen by cross-validation on what was measured) predicts the
held-out ones. The curves end where three quarters of the candidates are measured. Errors are means over the directions
and the seeds. Writes docs/sampling.json, and of it docs/sampling.png and the table in docs/few-points.md
(docs/generate_sampling.py).
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.docs import generate_sampling
from kernelcast.sampling.design import FIRST_ROWS, batch_size, best_member, next_workloads, subset
from kernelcast.store import Database
from kernelcast.store.importers import read_estimate_train_time, store_parsed
from kernelcast.train.dataset import Row, Table, tables
from kernelcast.train.regressor import fit
from kernelcast.train.selection import relative_errors

SHOWN = (
    ("gemm", "qkv"), ("flash_attention", ""), ("fused_causal_softmax", ""), ("layer_norm", ""),
    ("cross_entropy", ""), ("all_gather", "data"),
)  # fmt: skip
"""Operators and roles."""
SIZES = (FIRST_ROWS, 16, 24, 32, 48, 64, 96, 136, 192, 272, 384, 544, 768)
# Of the workloads to choose from, where the curves end, the same for every operator: all of them would be the same
# rows however they were chosen.
END = 0.75
# Sizes nearer to the end than this are left out.
APART = 0.9
MOST_CANDIDATES = 1200
MOST_HELD_OUT = 500


def label(operator: str, role: str) -> str:
    """What the record calls an operator in a role."""
    return f"{operator} ({role})" if role else operator


def published(folder: Path) -> dict[str, list[Table]]:
    """The authors' tables, one per direction, by label."""
    with tempfile.TemporaryDirectory() as scratch, Database.open(Path(scratch, "a.db"), create=True) as db:
        store_parsed(db, read_estimate_train_time([folder]))
        samples = db.read_samples()
    return {
        label(operator, role): tables(
            [
                Row(operator=operator, role=role, direction=s.direction, vector=s.vector, time_us=s.time_us)
                for s in samples
                if (s.operator, s.role) == (operator, role) and s.time_us is not None
            ],
            statistic="middle_five",
        )
        for operator, role in SHOWN
    }


def error(known: list[Table], held_out: list[Table], seed: int) -> float:
    """Mean relative error on the held-out rows, over the directions."""
    errors = []
    for own, unseen in zip(known, held_out, strict=True):
        member, _ = best_member(own, seed)
        predicted = fit(member, own, seed).predict_us(unseen.workloads)
        errors.append(float(relative_errors(predicted, unseen.times_us).mean()))
    return float(np.mean(errors))


def curve(
    pool: list[Table], held_out: list[Table], *, adaptive: bool, sizes: list[int], seed: int
) -> list[float]:
    """Errors at each number of measurements, chosen adaptively or at random."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pool[0])).tolist()
    # Seeds differ in where the design starts; the command starts in the middle.
    chosen = order[: 1 if adaptive else sizes[0]]
    errors = []
    for size in sizes:
        while len(chosen) < size:
            most = batch_size(len(chosen)) if len(chosen) >= sizes[0] else size
            count = min(most, size - len(chosen))
            if adaptive:
                chosen += next_workloads(pool[0].workloads, subset(pool, chosen), chosen, count, rng)
            else:
                chosen = order[:size]
        errors.append(error(subset(pool, chosen), held_out, seed))
    return errors


def compare(parts: list[Table], seeds: list[int]) -> dict[str, Any]:
    """Both curves of one operator."""
    rng = np.random.default_rng(99)
    order = rng.permutation(len(parts[0]))
    most = min(len(order) // 4, MOST_HELD_OUT)
    held_out = subset(parts, order[:most])
    pool = subset(parts, order[most:][:MOST_CANDIDATES])
    end = int(END * len(pool[0]))
    sizes = [*(size for size in SIZES if size <= APART * end), end]
    found: dict[str, Any] = {"workloads": len(order), "held_out": most, "sizes": sizes}
    for way in ("random", "adaptive"):
        curves = [curve(pool, held_out, adaptive=way == "adaptive", sizes=sizes, seed=seed) for seed in seeds]
        found[way] = [round(float(e), 5) for e in np.mean(curves, axis=0)]
    return found


@script(options={"folder": {"type": Path}, "--seeds": {"type": int, "default": 6}})
def main(bench: Bench) -> None:
    given = bench.given
    # Seeds below 100 were looked at while the sampler was made.
    seeds = list(range(101, 101 + given.seeds))
    operators = {}
    for name, parts in published(given.folder).items():
        operators[name] = compare(parts, seeds)
        print(name, operators[name], flush=True)
    half = sum(
        (after := generate_sampling.needed(f)) is not None and after <= f["sizes"][-1] / 2
        for f in operators.values()
    )
    document = {"seeds": seeds, "reached_half": half, "operators": operators}
    generate_sampling.RECORD.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    generate_sampling.main()
