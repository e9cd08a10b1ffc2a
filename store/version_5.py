"""Version 5 of the schema: everything that ran in a trace, event by event. Frozen: statements as of then."""

import sqlite3

STATEMENTS = (
    """\
CREATE TABLE device_peak ( -- Published peaks of devices: a copy of kernelcast's table for the hardware in this file.
    device_name TEXT NOT NULL, -- as in hardware
    dtype TEXT NOT NULL, -- element type, torch's name
    flops_per_s REAL NOT NULL, -- dense floating-point operations per second
    memory_bytes_per_s REAL NOT NULL, -- of its own memory
    source TEXT NOT NULL, -- who published it
    PRIMARY KEY (device_name, dtype)
) STRICT, WITHOUT ROWID
""",
    """\
CREATE TABLE timeline ( -- Everything that ran in one trace, event by event: what its steps and events have in common.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_step and traced_event link to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of trace_id, steps and events
    trace_id TEXT NOT NULL REFERENCES trace (id) -- of which trace
) STRICT
""",
    """\
CREATE INDEX timeline_by_trace ON timeline (trace_id)
""",
    """\
CREATE TABLE traced_step ( -- A step of a timeline as the host marked it (ProfilerStep#).
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- of which timeline
    step INTEGER NOT NULL, -- position, from 0
    name TEXT NOT NULL, -- as the trace names it
    start_ns INTEGER NOT NULL, -- nanoseconds from the start of the trace
    duration_ns INTEGER NOT NULL, -- nanoseconds on the host
    PRIMARY KEY (timeline_number, step)
) STRICT, WITHOUT ROWID
""",
    """\
CREATE TABLE event_kind ( -- What events are: each combination once. Empty or NULL where unknown or without meaning.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_event links to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of the other columns
    name TEXT NOT NULL, -- as the profiler prints it
    category TEXT NOT NULL, -- the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op or user_annotation
    class TEXT NOT NULL CHECK (class IN ('compute', 'communication', 'memory')), -- memory: copies and fills
    host_operator TEXT NOT NULL, -- framework operator on the host that launched it
    shapes TEXT NOT NULL, -- shapes of that operator's inputs, JSON list
    direction TEXT NOT NULL, -- forward, backward or once
    operator TEXT NOT NULL, -- operator of the table that it is part of
    role TEXT NOT NULL, -- role, where the trace determines it
    dtype TEXT NOT NULL, -- element type, torch's name
    variant TEXT NOT NULL, -- as in sample
    vector TEXT NOT NULL, -- workload vector, JSON list in the order of operator.features
    reason TEXT NOT NULL, -- why it is part of no operator
    batch INTEGER, -- of a matrix product: [batch, m, k] times [batch, k, n]
    m INTEGER, -- rows
    k INTEGER, -- columns in
    n INTEGER, -- columns out
    collective TEXT NOT NULL, -- collective, as the trace names it
    group_ranks TEXT NOT NULL, -- ranks of its group, as the trace lists them
    group_size INTEGER, -- processes of its group
    message_bytes INTEGER -- bytes as nccl-tests count them: the larger of one process's input and output
) STRICT
""",
    """\
CREATE TABLE event_scope ( -- Annotations and modules around launches, each combination once.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_event links to it
    name TEXT NOT NULL UNIQUE -- outermost first, separated by " / "
) STRICT
""",
    """\
CREATE TABLE traced_event ( -- One kernel, copy or fill of a trace (on a CPU: a call with time of its own).
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- of which timeline
    sequence INTEGER NOT NULL, -- position in order of start, from 0
    kind_number INTEGER NOT NULL REFERENCES event_kind (number), -- what it is
    start_ns INTEGER NOT NULL, -- nanoseconds from the start of the trace
    duration_ns INTEGER NOT NULL, -- nanoseconds; on a CPU without the calls inside it
    exposed_ns INTEGER NOT NULL, -- nanoseconds in which no class before its own ran (compute, communication, memory)
    idle_ns INTEGER NOT NULL, -- nanoseconds in which the device ran nothing before it
    late_ns INTEGER, -- nanoseconds of idle_ns before its launch: the host was late; NULL where the launch is unknown
    device INTEGER NOT NULL, -- number of the device, as the trace counts
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that it ran on
    step INTEGER, -- step that launched it; NULL outside of steps
    launch_ns INTEGER, -- nanoseconds from the start of the trace to its launch on the host; NULL where unknown
    call INTEGER, -- number of the host call that launched it: events of one call share it
    correlation INTEGER, -- the profiler's correlation id
    scope_number INTEGER, -- number in event_scope: annotations and modules around its launch; NULL for none
    sample_number INTEGER REFERENCES sample (number), -- sample that it is part of
    repetition_index INTEGER, -- repetition of that sample
    PRIMARY KEY (timeline_number, sequence)
) STRICT, WITHOUT ROWID
""",
    """\
CREATE INDEX traced_event_by_kind ON traced_event (kind_number)
""",
    """\
CREATE INDEX traced_event_by_sample ON traced_event (sample_number, repetition_index) WHERE sample_number IS NOT NULL
""",
)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of version 4 here, in the caller's transaction: traces that it holds have no timeline."""
    for statement in STATEMENTS:
        connection.execute(statement)
