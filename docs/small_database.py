"""Cut a measured database down to the few samples behind docs/sql.md (tests/data/small.db, below 350 kB).

Made from measurements of a real machine, by these commands (plan and configuration: docs/small/), before operators had
roles, and migrated by cutting it again:

    cd docs/small
    kernelcast demo --config demo.toml --db measured.db -o measured.kcast
    kernelcast collect compute --plan tiny-plan.toml --db measured.db --threads 2 --operator gemm --operator gelu
    MKL_CBWR=COMPATIBLE \\
    kernelcast collect compute --plan tiny-plan.toml --db measured.db --operator gemm --operator gelu
    kernelcast ingest rank0.json.gz --db measured.db
    python ../small_database.py measured.db ../../tests/data/small.db

rank0.json.gz is what the program in docs/ingesting.md records with one block of width 32, two samples of 32 tokens and
one step (`active=1`).

One thread and two are two kinds of hardware to kernelcast, and MKL_CBWR (which kernels the mathematics library may
use) is part of the software's fingerprint: so the database has two of each. Rows are copied, none is changed.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from kernelcast.store.connection import connect, foreign_database, transaction
from kernelcast.store.copying import Selection, copy_content
from kernelcast.store.database_file import unfinished_file

# Two workloads of what was measured repeatedly, one of a few others, all failures, and the samples of the trace.
SAMPLES = """
    sample.id IN (
        SELECT id FROM (
            SELECT id, operator, role, status, dense_rank() OVER (PARTITION BY operator, role ORDER BY vector) AS place
            FROM sample
        )
        WHERE ((role = 'qkv' OR operator = 'gelu') AND place <= 2)
            OR (operator IN ('layer_norm', 'flash_attention', 'all_reduce') AND place = 1)
            OR status <> 'ok'
    )
    OR run_id IN (SELECT run_id FROM trace)
"""


def cut(source: Path, target: Path) -> None:
    """Write the small database over an existing one."""
    with (
        foreign_database(source) as big,
        unfinished_file(target) as unfinished,
    ):
        with closing(connect(unfinished, read_only=False)) as small, transaction(small):
            selection = Selection(conditions={"sample": (SAMPLES, ())})
            copy_content(big, small, source_path=source, target_path=target, selection=selection)
        # Pages of 1 kB, so that the many tables and indexes with few rows do not fill 4 kB each.
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as small:
            for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 1024", "VACUUM"):
                small.execute(statement)
        unfinished.replace(target)
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]))
