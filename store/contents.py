"""What a database holds, apart from the file it is in: tables whose rows have ids, and one digest of them all."""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS

# In an order in which rows can be added: what a row refers to comes before it. `operator` and `kernel_name` are
# dictionaries, `sample_flag`, `repetition` and `kernel` are part of their sample.
CONTENT_TABLES = (
    "hardware", "fabric", "software", "source", "run", "run_note", "sample", "trace", "unrecognised_kernel", "step",
    "prediction", "predictor",
)  # fmt: skip


def content_tables_digest(connection: sqlite3.Connection) -> str:
    """Digest of the content: SHA-256 over a line `TABLE ID` per row, by table (CONTENT_TABLES) and id, 128 bits.

    Every id is the digest of what its row means (a sample's covers flags, repetitions and kernels), so two databases
    have equal digests exactly when they hold the same measurements, whatever the order they were added in.
    """
    digest = hashlib.sha256()
    for table in CONTENT_TABLES:
        for (row_id,) in connection.execute(f"SELECT id FROM {table} ORDER BY id"):
            digest.update(f"{table} {row_id}\n".encode())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]


def row_counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Rows per content table, then of flags, repetitions and kernels."""
    return {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        for table in (*CONTENT_TABLES, "sample_flag", "repetition", "kernel")
    }


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """See one state of the database for the whole block, whatever other processes add meanwhile."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
