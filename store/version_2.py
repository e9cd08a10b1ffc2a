"""Version 2 of the schema: flags of samples, and traces of real runs. Statements as of then: never changed again."""

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
    """\
CREATE VIEW doubtful_sample AS -- Which measurements are doubtful, and why? One row per flag of a sample.
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.direction,
    sample.dtype,
    sample.vector,
    sample_flag.flag,
    sample_flag.detail,
    sample.status,
    sample.time_us,
    sample.quiet_us,
    round(100.0 * sample.spread, 1) AS spread_percent,
    sample.repetition_count AS repetitions,
    sample.measured_at,
    sample.id AS sample_id,
    run.compute_id
FROM sample_flag
JOIN sample ON sample.number = sample_flag.sample_number
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
""",
    """\
CREATE VIEW real_run AS -- Which traces of real runs are here, and how much of them was recognised? One row per trace.
SELECT
    hardware.description AS hardware,
    software.description AS software,
    trace.rank,
    trace.world_size,
    trace.backend,
    round(trace.span_us / 1e3, 3) AS span_ms, -- of the whole trace
    trace.kernel_count AS kernels,
    round(trace.kernel_us / 1e3, 3) AS kernels_ms, -- their durations added up
    round(100.0 * trace.attributed_us / nullif(trace.kernel_us, 0), 1) AS attributed_percent, -- of the kernels' time
    round(100.0 * trace.recognised_us / nullif(trace.kernel_us, 0), 1) AS recognised_percent, -- of the kernels' time
    (SELECT count(*) FROM sample WHERE sample.run_id = trace.run_id) AS samples_of_the_run,
    trace.measured_at,
    trace.file_digest,
    trace.id AS trace_id,
    trace.run_id,
    run.compute_id
FROM trace
JOIN run ON run.id = trace.run_id
JOIN hardware ON hardware.id = run.compute_id
JOIN software ON software.id = run.software_id
""",
    """\
CREATE VIEW unrecognised AS -- What ran in real runs that no sample holds? Most time first, per operator of the host.
SELECT
    hardware.description AS hardware,
    unrecognised_kernel.host_operator,
    unrecognised_kernel.name AS kernel,
    unrecognised_kernel.category,
    unrecognised_kernel.reason,
    sum(unrecognised_kernel.kernel_count) AS launches,
    round(sum(unrecognised_kernel.total_us), 3) AS total_us,
    round(100.0 * sum(unrecognised_kernel.total_us) / nullif(trace.kernel_us, 0), 2) AS percent_of_trace,
    unrecognised_kernel.trace_id,
    run.compute_id
FROM unrecognised_kernel
JOIN trace ON trace.id = unrecognised_kernel.trace_id
JOIN run ON run.id = trace.run_id
JOIN hardware ON hardware.id = run.compute_id
GROUP BY
    unrecognised_kernel.trace_id, unrecognised_kernel.host_operator, unrecognised_kernel.name,
    unrecognised_kernel.category, unrecognised_kernel.reason
ORDER BY total_us DESC
""",
)
