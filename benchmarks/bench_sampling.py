"""Adaptive against random sampling, with the method's authors' A100 data as the oracle (`make bench-sampling`).

A quarter of an operator's workloads is held out for good; of the rest, both ways choose which to measure. At
each number of measurements the committee's best member (chosen by cross-validation on what was measured) predicts the
held-out ones. The curves end where three quarters of the candidates are measured. Errors are means over the directions
and the seeds. Writes docs/sampling.json, docs/sampling.png and the table in docs/few-points.md; `--table` writes the
latter two from the JSON alone.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.benchmarks.harness import DOCS, Bench
from kernelcast.docs.error_curves import Curve, Panel, draw
from kernelcast.docs.markdown import fill, percent, table
from kernelcast.sampling.committee import best_member
from kernelcast.sampling.design import FIRST_ROWS, batch_size, next_workloads, subset
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
    """Errors at each number of measurements, chosen by one of the ways."""
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


def needed(found: dict[str, Any]) -> float | None:
    """Measurements from which on adaptive sampling is as good as random at its end, interpolated; None: never."""
    goal, sizes, errors = found["random"][-1], found["sizes"], found["adaptive"]
    worse = [number for number, value in enumerate(errors) if value > goal]
    if not worse:
        return float(sizes[0])
    last = worse[-1]
    if last == len(errors) - 1:
        return None
    share = (errors[last] - goal) / (errors[last] - errors[last + 1])
    return float(sizes[last] + share * (sizes[last + 1] - sizes[last]))


def table_text(document: dict[str, Any]) -> str:
    """The table of docs/few-points.md."""
    rows = []
    for name, found in document["operators"].items():
        after, end = needed(found), found["sizes"][-1]
        reached = "not within them" if after is None else f"{after:.0f} ({100 * after / end:.0f} %)"
        errors = (percent(found[way][-1], 1) for way in ("random", "adaptive"))
        rows.append((name, f"{end}", *errors, reached))
    heads = ("operator", "measurements", "random", "adaptive", "adaptive is as good after")
    return "\n".join(
        [
            f"Means over {len(document['seeds'])} seeds; {document['reached_half']} of {len(document['operators'])} "
            "operators reach random's last error with at most half of its measurements.",
            "",
            *table(heads, rows, is_padded=False),
        ]
    )


def picture(document: dict[str, Any]) -> None:
    """docs/sampling.png: a panel per operator, error against measurements."""
    panels = []
    for name, found in document["operators"].items():
        sizes, end = found["sizes"], found["sizes"][-1]
        curves = [
            Curve(way, colour, marker, sizes, found[way])
            for way, colour, marker in (("random", "#888888", "o"), ("adaptive", "#1f6fb4", "s"))
        ]
        marked = [*(size for size in sizes[:-1:2] if size < end / 1.5), end]
        panels.append(Panel(name, curves, marked, found["random"][-1]))
    draw(
        DOCS / "sampling.png",
        [panels[:3], panels[3:]],
        size=(11, 6.2),
        axis="measurements",
        errors="error on held-out workloads",
    )


def main() -> None:
    """Run the comparison, or only write the page again."""
    bench = Bench(__file__, __doc__)
    bench.parser.add_argument("folder", type=Path, nargs="?")
    bench.parser.add_argument("--seeds", type=int, default=6)
    bench.parser.add_argument(
        "--table", action="store_true", help="only write docs/few-points.md and the picture"
    )
    given = bench.arguments()
    record = DOCS / "sampling.json"
    if not given.table:
        # Seeds below 100 were looked at while the sampler was made.
        seeds = list(range(101, 101 + given.seeds))
        operators = {}
        for name, parts in published(given.folder).items():
            operators[name] = compare(parts, seeds)
            print(name, operators[name], flush=True)
        half = sum(
            (after := needed(f)) is not None and after <= f["sizes"][-1] / 2 for f in operators.values()
        )
        document = {"seeds": seeds, "reached_half": half, "operators": operators}
        record.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    document = json.loads(record.read_text(encoding="utf-8"))
    picture(document)
    fill(DOCS / "few-points.md", "bench-sampling", table_text(document))
    print(table_text(document))


if __name__ == "__main__":
    main()
