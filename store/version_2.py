"""Version 2 of the schema: flags of samples, and traces of real runs. Frozen: statements as of then."""

import sqlite3

STATEMENTS = (
    """\
CREATE TABLE sample_flag ( -- What makes a sample doubtful, as noticed while it was measured.
    sample_number INTEGER NOT NULL REFERENCES sample (number), -- of which sample
    flag TEXT NOT NULL, -- a short name: unstable, throttled, ...
    detail TEXT NOT NULL, -- what was found, in one line
    PRIMARY KEY (sample_number, flag)
) STRICT, WITHOUT ROWID
""",
    """\
CREATE TABLE trace ( -- The trace of one process of a real run: what it says of itself, how much of it was recognised.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- run of its samples; several ranks of a job are one run
    file_digest TEXT NOT NULL, -- SHA-256 of the file
    rank INTEGER, -- rank of the process; NULL where the trace does not say
    world_size INTEGER, -- processes of the job; NULL where the trace does not say
    backend TEXT NOT NULL, -- communication library, such as nccl; empty where the trace does not say
    process_groups TEXT NOT NULL, -- groups as the trace lists them, JSON list of {"name", "size", "ranks"}
    span_us REAL NOT NULL, -- microseconds from the start of the first event to the end of the last
    event_count INTEGER NOT NULL, -- events that have a duration
    kernel_count INTEGER NOT NULL, -- kernels, copies and fills on the device (on a CPU: calls with time of their own)
    kernel_us REAL NOT NULL, -- microseconds, their durations added up
    attributed_count INTEGER NOT NULL, -- kernels whose operator on the host is known
    attributed_us REAL NOT NULL, -- microseconds, their durations added up
    recognised_count INTEGER NOT NULL, -- kernels that samples hold
    recognised_us REAL NOT NULL, -- microseconds, their durations added up
    measured_at TEXT -- UTC; NULL where the trace does not say
) STRICT
""",
    """\
CREATE INDEX trace_by_run ON trace (run_id)
""",
    """\
CREATE INDEX trace_by_file ON trace (file_digest)
""",
    """\
CREATE TABLE unrecognised_kernel ( -- Kernels of a trace that no sample holds, added up.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    trace_id TEXT NOT NULL REFERENCES trace (id), -- of which trace
    name TEXT NOT NULL, -- as the profiler prints it
    category TEXT NOT NULL, -- the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that they ran on
    host_operator TEXT NOT NULL, -- operator on the host that they belong to; empty where unknown
    shapes TEXT NOT NULL, -- shapes of that operator's inputs, JSON list; empty where they were not recorded
    reason TEXT NOT NULL, -- why no sample holds them
    kernel_count INTEGER NOT NULL, -- how many there are
    total_us REAL NOT NULL -- microseconds, their durations added up
) STRICT
""",
    """\
CREATE INDEX unrecognised_kernel_by_trace ON unrecognised_kernel (trace_id)
""",
)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of version 1 here, in the caller's transaction."""
    for statement in STATEMENTS:
        connection.execute(statement)
