-- kernelcast benchmark database (SQLite).
--
-- How long do the operators of an LLM training step take, on which hardware, with which software? Every measurement is
-- kept with its kernels. sqlite3, pandas and Datasette can read all tables; start with the views at the end
-- (operator_time, coverage, slowest_kernel, ...).
--
-- Ids are digests (128 bits of SHA-256, in hexadecimal) of the content of a row: the same measurement has the same id in
-- every database, and merging databases is a union of rows. Rows are only added. Columns named `number` are row numbers,
-- which link rows within one file, such as a sample to its kernels, and have no meaning outside it. Host names, serials,
-- UUIDs, user names and paths are not stored.
--
-- Units are in the names: _us microseconds, _s seconds, _bytes, _gib, _mhz, _w, _c degrees Celsius. Moments are UTC, ISO-8601. Times are
-- whole nanoseconds (three decimals of a microsecond, nine of a second). JSON is text with sorted keys and no spaces.

PRAGMA application_id = 1262699586;  -- 0x4B434442, "KCDB" in ASCII: a kernelcast database
PRAGMA user_version = 10;            -- this schema's version; numbered migrations bring older files here


-- Hardware, fabric and software -------------------------------------------------------------------------------------

CREATE TABLE hardware ( -- A device, as a kernel sees it; fields that do not apply to its kind are 0 or empty.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- compute fingerprint: digest of `fingerprint`
    description TEXT NOT NULL, -- one readable line
    kind TEXT NOT NULL, -- cpu, cuda or rocm; of traces also xpu, mtia, hpu, privateuse1 or accelerator (unknown)
    device_name TEXT NOT NULL, -- the maker's name for it
    compute_capability TEXT NOT NULL, -- GPU: instruction set version, such as 8.0
    multiprocessors INTEGER NOT NULL, -- GPU: number of streaming multiprocessors
    memory_gib INTEGER NOT NULL, -- GPU: memory, GiB
    max_sm_clock_mhz INTEGER NOT NULL, -- GPU: highest multiprocessor clock, MHz
    max_memory_clock_mhz INTEGER NOT NULL, -- GPU: highest memory clock, MHz
    power_limit_w INTEGER NOT NULL, -- GPU: power limit, W
    ecc TEXT NOT NULL, -- GPU: error correction of its memory, on or off
    mig TEXT NOT NULL, -- GPU: profile of the slice, if the device is divided
    cores INTEGER NOT NULL, -- CPU: cores in use
    threads INTEGER NOT NULL, -- CPU: threads per process
    caches TEXT NOT NULL, -- CPU: caches, JSON list
    instruction_sets TEXT NOT NULL, -- CPU: vector instruction sets, JSON list
    virtualised INTEGER NOT NULL CHECK (virtualised IN (0, 1)), -- 1 inside a virtual machine
    fingerprint TEXT NOT NULL -- all fields that the id is the digest of, JSON
) STRICT;

CREATE TABLE fabric ( -- Links and networks between devices, which determine the speed of collectives.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- fabric fingerprint: digest of `fingerprint`
    description TEXT NOT NULL, -- one readable line
    backend TEXT NOT NULL, -- communication library: gloo or nccl
    gpus_per_node INTEGER NOT NULL, -- devices (or processes) of a node
    links TEXT NOT NULL, -- links inside a node, JSON list
    nics TEXT NOT NULL, -- network cards between nodes, JSON list
    fingerprint TEXT NOT NULL -- all fields that the id is the digest of, JSON
) STRICT;

CREATE TABLE software ( -- Software versions and settings that affect times; empty if unknown.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- software fingerprint: digest of `fingerprint`
    description TEXT NOT NULL, -- one readable line
    torch TEXT NOT NULL, -- PyTorch version
    driver TEXT NOT NULL, -- GPU driver version
    cuda TEXT NOT NULL, -- CUDA (or ROCm) runtime version
    cudnn TEXT NOT NULL, -- cuDNN version
    nccl TEXT NOT NULL, -- NCCL version
    cpu_libraries TEXT NOT NULL, -- mathematics libraries, JSON list
    environment TEXT NOT NULL, -- tuning variables as NAME=value, JSON list
    fingerprint TEXT NOT NULL -- all fields that the id is the digest of, JSON
) STRICT;

CREATE TABLE operator ( -- The operators of a training step: a copy of kernelcast's table, which explains vectors.
    name TEXT PRIMARY KEY, -- name in samples; an operator with changed features has a new name
    title TEXT NOT NULL, -- what it computes
    class TEXT NOT NULL, -- compute-bound, memory-bound, communication or optimizer
    directions TEXT NOT NULL, -- directions that a sample can have, JSON list
    features TEXT NOT NULL, -- JSON object, name to unit, in the order of a sample's vector
    roles TEXT NOT NULL -- why a step calls it: JSON object, role to name in arXiv 2509.22832, Table I (or empty)
) STRICT;


-- Sources and runs --------------------------------------------------------------------------------------------------

CREATE TABLE source ( -- Origin of measurements: kernelcast's collector, an imported file, a trace of a real run.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    kind TEXT NOT NULL CHECK (kind IN ('collector', 'import', 'trace')), -- how the rows were obtained
    name TEXT NOT NULL, -- program, or base name of the file
    licence TEXT NOT NULL, -- licence of the data, SPDX if possible; empty if unknown
    file_digest TEXT NOT NULL, -- SHA-256 of the imported file; empty for the collector
    reference TEXT NOT NULL -- where it was published (address or citation); empty if unpublished
) STRICT;

CREATE TABLE run ( -- One invocation that measured or imported.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    started_at TEXT, -- UTC; NULL if an imported file has no date
    kernelcast_version TEXT NOT NULL, -- version that measured; empty for another program
    code_digest TEXT NOT NULL, -- digest of the code that measured; empty for another program
    command TEXT NOT NULL, -- command, such as "collect compute"; no paths
    plan TEXT NOT NULL, -- sampling plan, such as quick; empty without one
    compute_id TEXT NOT NULL REFERENCES hardware (id), -- device
    fabric_id TEXT REFERENCES fabric (id), -- fabric; NULL if none was used
    software_id TEXT NOT NULL REFERENCES software (id), -- software
    conditions TEXT NOT NULL, -- other influences on times (processes per node, ...), JSON
    source_id TEXT NOT NULL REFERENCES source (id) -- origin of its rows
) STRICT;
CREATE INDEX run_by_hardware ON run (compute_id, software_id);
CREATE INDEX run_by_fabric ON run (fabric_id);
CREATE INDEX run_by_software ON run (software_id);
CREATE INDEX run_by_source ON run (source_id);
CREATE INDEX run_by_date ON run (started_at);

CREATE TABLE run_note ( -- Free text about a run, in a separate table, so that a database can be shared without it.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- run
    site TEXT NOT NULL, -- public name of the site or machine
    note TEXT NOT NULL -- free text
) STRICT;
CREATE INDEX run_note_by_run ON run_note (run_id);


-- Merges ------------------------------------------------------------------------------------------------------------

CREATE TABLE merge ( -- A file that was merged into this database. Neither merged nor exported itself.
    number INTEGER PRIMARY KEY, -- row number in this file; merged_row refers to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- start of `file_digest`
    file_digest TEXT NOT NULL, -- SHA-256 of the file
    signer TEXT NOT NULL, -- whose signature was verified, as the list of allowed signers names them; empty for none
    merged_at TEXT NOT NULL -- UTC
) STRICT;

CREATE TABLE merged_row ( -- Rows that merges brought; all other rows are the database's own.
    table_name TEXT NOT NULL, -- table
    row_id TEXT NOT NULL, -- id in that table
    merge_number INTEGER NOT NULL REFERENCES merge (number), -- merge whose file holds it
    PRIMARY KEY (table_name, row_id, merge_number)
) STRICT, WITHOUT ROWID;
CREATE INDEX merged_row_by_merge ON merged_row (merge_number);


-- Measured operators ------------------------------------------------------------------------------------------------

CREATE TABLE sample ( -- One measurement of an operator at a workload. A failure has a reason and no time.
    number INTEGER PRIMARY KEY, -- row number in this file; flags, repetitions and kernels refer to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of the other columns, flags, repetitions and kernels
    run_id TEXT NOT NULL REFERENCES run (id), -- run that measured it
    operator TEXT NOT NULL REFERENCES operator (name), -- measured operator
    role TEXT NOT NULL, -- why a step calls it (operator.roles), such as qkv; empty for no particular role
    direction TEXT NOT NULL, -- direction; backward of a linear is the sum of its two gradients
    dtype TEXT NOT NULL, -- element type, torch's name (float32, bfloat16, ...)
    variant TEXT NOT NULL, -- how it was called, if there are several ways, such as in-place; else empty
    vector TEXT NOT NULL, -- workload vector, JSON list in the order of operator.features
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'unsupported')), -- ok: has a time
    reason TEXT NOT NULL, -- why there is no time; empty when ok
    time_us REAL, -- microseconds: mean of the middle five of the first ten repetitions, or what `statistic` says
    quiet_us REAL, -- microseconds: 10th percentile over all repetitions; NULL if repetitions are not known
    spread REAL, -- no unit: (90th - 10th percentile) / median over all repetitions; NULL if they are not known
    statistic TEXT NOT NULL, -- how time_us was computed: "middle five of ten", or as an import states
    repetition_count INTEGER NOT NULL, -- repetitions behind the times; 0 if unknown
    flops REAL, -- floating-point operations of one execution
    moved_bytes REAL, -- bytes read and written by one execution (collectives: input bytes of one process)
    reference_us REAL, -- microseconds of a short fixed kernel, which shows how disturbed the machine was
    measured_at TEXT, -- UTC; NULL if an imported file has no date
    load TEXT NOT NULL DEFAULT '' CHECK (load IN ('', 'burst', 'sustained')), -- of the device; empty: not stated
    clock_mhz REAL, -- MHz of the GPU's multiprocessors, or of the CPU's measuring cores; NULL if unknown
    power_w REAL, -- watts of the GPU, or of all CPUs of the machine; NULL if unknown
    temperature_c REAL, -- degrees Celsius of the GPU or CPU; NULL if unknown
    CHECK (direction IN ('forward', 'backward', 'input_gradient', 'weight_gradient', 'once')),
    CHECK ((status = 'ok') = (time_us IS NOT NULL)),
    CHECK ((status = 'ok') = (reason = ''))
) STRICT;
CREATE INDEX sample_by_point ON sample (operator, direction, dtype, vector, variant, status);
CREATE INDEX sample_by_run ON sample (run_id, operator, direction, dtype);
CREATE INDEX sample_by_date ON sample (measured_at);
CREATE INDEX sample_without_time ON sample (status, operator) WHERE status <> 'ok';

CREATE TABLE sample_flag ( -- Why a sample is doubtful, as found while measuring or importing.
    sample_number INTEGER NOT NULL REFERENCES sample (number), -- sample
    flag TEXT NOT NULL, -- short name: unstable, throttled, ...
    detail TEXT NOT NULL, -- details, in one line
    PRIMARY KEY (sample_number, flag)
) STRICT, WITHOUT ROWID;

CREATE TABLE repetition ( -- One timed execution of a sample.
    sample_number INTEGER NOT NULL REFERENCES sample (number), -- sample
    repetition_index INTEGER NOT NULL, -- position in order of measurement, from 0
    time_us REAL NOT NULL, -- microseconds from the earliest kernel's start to the latest kernel's end
    start_us REAL NOT NULL, -- microseconds after the start of the sample's first repetition
    PRIMARY KEY (sample_number, repetition_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE kernel_name ( -- Names of kernels, each stored once.
    number INTEGER PRIMARY KEY, -- row number in this file; kernels refer to it
    name TEXT NOT NULL UNIQUE -- as the profiler prints it
) STRICT;

CREATE TABLE kernel ( -- One kernel of a repetition (on a CPU: one operator call inside it).
    sample_number INTEGER NOT NULL, -- sample
    repetition_index INTEGER NOT NULL, -- repetition of that sample
    sequence INTEGER NOT NULL, -- position in order of start, from 0
    name_number INTEGER NOT NULL REFERENCES kernel_name (number), -- its name
    start_us REAL NOT NULL, -- microseconds after the start of the repetition
    duration_us REAL NOT NULL, -- microseconds
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that it ran on
    PRIMARY KEY (sample_number, repetition_index, sequence),
    FOREIGN KEY (sample_number, repetition_index) REFERENCES repetition (sample_number, repetition_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX kernel_by_name ON kernel (name_number, sample_number, duration_us);


-- Traces of real runs -----------------------------------------------------------------------------------------------

CREATE TABLE trace ( -- The trace of one process of a real run, and the recognised part of it.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- run of its samples; the ranks of a job are one run
    file_digest TEXT NOT NULL, -- SHA-256 of the file
    rank INTEGER, -- rank of the process; NULL if unknown
    world_size INTEGER, -- processes of the job; NULL if unknown
    backend TEXT NOT NULL, -- communication library, such as nccl; empty if unknown
    process_groups TEXT NOT NULL, -- groups as the trace lists them, JSON list of {"name", "size", "ranks"}
    span_us REAL NOT NULL, -- microseconds from the start of the first event to the end of the last
    event_count INTEGER NOT NULL, -- events that have a duration
    kernel_count INTEGER NOT NULL, -- kernels, copies and fills on the device (on a CPU: calls with time of their own)
    kernel_us REAL NOT NULL, -- microseconds, sum of their durations
    attributed_count INTEGER NOT NULL, -- kernels whose host operator is known
    attributed_us REAL NOT NULL, -- microseconds, sum of their durations
    recognised_count INTEGER NOT NULL, -- kernels that are part of a sample
    recognised_us REAL NOT NULL, -- microseconds, sum of their durations
    measured_at TEXT -- UTC; NULL if unknown
) STRICT;
CREATE INDEX trace_by_run ON trace (run_id);
CREATE INDEX trace_by_file ON trace (file_digest);

CREATE TABLE unrecognised_kernel ( -- Kernels of a trace that are part of no sample, summed by name and host operator.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    trace_id TEXT NOT NULL REFERENCES trace (id), -- trace
    name TEXT NOT NULL, -- as the profiler prints it
    category TEXT NOT NULL, -- the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that they ran on
    host_operator TEXT NOT NULL, -- framework operator on the host that launched them; empty if unknown
    shapes TEXT NOT NULL, -- shapes of that operator's inputs, JSON list; empty if not recorded
    reason TEXT NOT NULL, -- why they are part of no sample
    kernel_count INTEGER NOT NULL, -- number of kernels
    total_us REAL NOT NULL -- microseconds, sum of their durations
) STRICT;
CREATE INDEX unrecognised_kernel_by_trace ON unrecognised_kernel (trace_id);

CREATE TABLE device_peak ( -- Published peaks of devices: a copy of kernelcast's table for the hardware in this file.
    device_name TEXT NOT NULL, -- as in hardware
    dtype TEXT NOT NULL, -- element type, torch's name
    flops_per_s REAL NOT NULL, -- dense floating-point operations per second
    memory_bytes_per_s REAL NOT NULL, -- of its own memory
    source TEXT NOT NULL, -- who published it
    PRIMARY KEY (device_name, dtype)
) STRICT, WITHOUT ROWID;

CREATE TABLE timeline ( -- The events of a trace: its steps and events refer to this row.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_step and traced_event refer to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of trace_id, steps and events
    trace_id TEXT NOT NULL REFERENCES trace (id) -- trace
) STRICT;
CREATE INDEX timeline_by_trace ON timeline (trace_id);

CREATE TABLE traced_step ( -- A step of a timeline as the host marked it (ProfilerStep#).
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    step INTEGER NOT NULL, -- position, from 0
    name TEXT NOT NULL, -- as the trace names it
    start_ns INTEGER NOT NULL, -- nanoseconds from the start of the trace
    duration_ns INTEGER NOT NULL, -- nanoseconds on the host
    PRIMARY KEY (timeline_number, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE event_kind ( -- Properties of events, each combination once. Empty or NULL if unknown or not applicable.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_event refers to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of the other columns
    name TEXT NOT NULL, -- as the profiler prints it
    category TEXT NOT NULL, -- the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op or user_annotation
    class TEXT NOT NULL CHECK (class IN ('compute', 'communication', 'memory')), -- memory: copies and fills
    host_operator TEXT NOT NULL, -- framework operator on the host that launched it
    shapes TEXT NOT NULL, -- shapes of that operator's inputs, JSON list
    direction TEXT NOT NULL, -- forward, backward (or a gradient), recomputation (of a forward pass) or once
    operator TEXT NOT NULL, -- operator that it belongs to
    role TEXT NOT NULL, -- role, if the trace determines it
    dtype TEXT NOT NULL, -- element type, torch's name
    variant TEXT NOT NULL, -- as in sample
    vector TEXT NOT NULL, -- workload vector, JSON list in the order of operator.features
    reason TEXT NOT NULL, -- why it belongs to no operator
    batch INTEGER, -- of a matrix product: [batch, m, k] times [batch, k, n]
    m INTEGER, -- rows
    k INTEGER, -- columns in
    n INTEGER, -- columns out
    collective TEXT NOT NULL, -- collective, as the trace names it
    group_ranks TEXT NOT NULL, -- ranks of its group, as the trace lists them
    group_size INTEGER, -- processes of its group
    message_bytes INTEGER, -- bytes as nccl-tests count them: the larger of one process's input and output; of a copy or fill its bytes
    grid TEXT NOT NULL DEFAULT '', -- blocks of a launch, JSON list of three
    block TEXT NOT NULL DEFAULT '', -- threads of a block, JSON list of three
    registers INTEGER, -- registers of a thread
    occupancy_percent REAL -- achieved occupancy, as the profiler estimates it
) STRICT;

CREATE TABLE event_scope ( -- Annotations and modules around launches, each combination once.
    number INTEGER PRIMARY KEY, -- row number in this file; traced_event refers to it
    name TEXT NOT NULL UNIQUE -- outermost first, separated by " / "
) STRICT;

CREATE TABLE traced_event ( -- One kernel, copy or fill of a trace (on a CPU: a call with self time).
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    sequence INTEGER NOT NULL, -- position in order of start, from 0
    kind_number INTEGER NOT NULL REFERENCES event_kind (number), -- what it is
    start_ns INTEGER NOT NULL, -- nanoseconds from the start of the trace
    duration_ns INTEGER NOT NULL, -- nanoseconds; on a CPU self time
    exposed_ns INTEGER NOT NULL, -- nanoseconds while no event of an earlier class ran (compute, communication, memory)
    idle_ns INTEGER NOT NULL, -- nanoseconds while the device was idle before it
    late_ns INTEGER, -- nanoseconds of idle_ns before its launch: the host was late; NULL if the launch is unknown
    device INTEGER NOT NULL, -- number of the device, as the trace counts
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that it ran on
    step INTEGER, -- step that launched it; NULL outside of steps
    launch_ns INTEGER, -- nanoseconds from the start of the trace to its launch on the host; NULL if unknown
    call INTEGER, -- number of the launching host call, shared by its events
    correlation INTEGER, -- the profiler's correlation id
    scope_number INTEGER, -- number in event_scope: annotations and modules around its launch; NULL for none
    sample_number INTEGER REFERENCES sample (number), -- sample that it is part of
    repetition_index INTEGER, -- repetition of that sample
    PRIMARY KEY (timeline_number, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX traced_event_by_kind ON traced_event (kind_number);
CREATE INDEX traced_event_by_sample ON traced_event (sample_number, repetition_index) WHERE sample_number IS NOT NULL;

CREATE TABLE trace_clock ( -- The clock of a trace relative to the clocks of the other ranks.
    timeline_number INTEGER NOT NULL PRIMARY KEY REFERENCES timeline (number), -- timeline
    start_ns INTEGER NOT NULL, -- nanoseconds from the first event of the run to the start of the trace
    drift REAL NOT NULL, -- seconds that the run's clock gains in one second of the trace's
    error_ns INTEGER NOT NULL -- nanoseconds, spread of the ends of collectives around it; 0: a host's own clock
) STRICT, WITHOUT ROWID;

CREATE TABLE matched_collective ( -- An event that is one rank's part of a collective that several traced ranks ran.
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    sequence INTEGER NOT NULL, -- event in traced_event
    collective_number INTEGER NOT NULL, -- number of the collective in the run, the same on all ranks
    compute_ns INTEGER NOT NULL, -- nanoseconds of compute since the start of the rank's matched collective before
    memory_ns INTEGER NOT NULL, -- nanoseconds of copies and fills alone since then
    host_ns INTEGER NOT NULL, -- nanoseconds since then in which the device waited for its host
    PRIMARY KEY (timeline_number, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE lost_collective ( -- A rank's part of a collective that the profiler lost: its trace has those before and after it.
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    collective_number INTEGER NOT NULL, -- number of the collective in the run
    run_ns INTEGER NOT NULL, -- nanoseconds from the first event of the run to its arrival: the others' end less the usual transfer
    duration_ns INTEGER NOT NULL, -- nanoseconds
    PRIMARY KEY (timeline_number, collective_number)
) STRICT, WITHOUT ROWID;

CREATE TABLE stream_wait ( -- An event that its stream made wait for one of another stream (cudaStreamWaitEvent), where the profiler recorded which.
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    sequence INTEGER NOT NULL, -- event in traced_event that waited: the next one launched on its stream
    awaited_sequence INTEGER NOT NULL, -- event that it waited for: the last one launched before what was awaited was marked
    PRIMARY KEY (timeline_number, sequence, awaited_sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE host_time ( -- Calls of the host of a trace, summed by step and name; runtime calls that may wait, from 50 µs on, one by one.
    timeline_number INTEGER NOT NULL REFERENCES timeline (number), -- timeline
    step INTEGER, -- step that they start in; NULL outside of steps
    kind TEXT NOT NULL CHECK (kind IN ('operator', 'annotation', 'runtime')), -- operator: inside no other; runtime: of the device
    name TEXT NOT NULL, -- as the trace names them
    calls INTEGER NOT NULL, -- number of calls
    total_ns INTEGER NOT NULL, -- nanoseconds, sum of their durations
    longest_ns INTEGER NOT NULL -- nanoseconds, the longest call
) STRICT;
CREATE INDEX host_time_by_timeline ON host_time (timeline_number);


-- Training steps, predictions and regressors ------------------------------------------------------------------------

CREATE TABLE step ( -- A real training step of a model, timed end to end. A failure has a reason and no time.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- run that measured it
    model_name TEXT NOT NULL, -- name of the model in its configuration; empty if it has none
    model TEXT NOT NULL, -- whole configuration of the model, JSON
    pp INTEGER NOT NULL, -- pipeline stages
    tp INTEGER NOT NULL, -- tensor parallel degree
    dp INTEGER NOT NULL, -- data parallel degree; devices = pp * tp * dp
    micro_batch INTEGER NOT NULL, -- samples of a micro-batch
    micro_batches INTEGER NOT NULL, -- micro-batches per update
    schedule TEXT NOT NULL, -- pipeline schedule, such as 1F1B; empty without a pipeline
    recomputation INTEGER NOT NULL CHECK (recomputation IN (0, 1)), -- 1: with activation checkpointing
    dtype TEXT NOT NULL, -- element type, torch's name
    framework TEXT NOT NULL, -- training framework; empty if unknown
    options TEXT NOT NULL, -- other settings (ZeRO stage, ...), JSON
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'unsupported')), -- ok: has a time
    reason TEXT NOT NULL, -- why there is no time; empty when ok
    min_s REAL, -- seconds, fastest step
    p10_s REAL, -- seconds, 10th percentile
    median_s REAL, -- seconds, median
    repetitions_s TEXT NOT NULL, -- every timed step, seconds, JSON list
    components_s TEXT NOT NULL, -- parts of the step, JSON, name to seconds
    peak_memory_bytes INTEGER, -- bytes in use on the fullest device
    reference_us REAL, -- microseconds of a short fixed kernel timed with it
    measured_at TEXT, -- UTC
    CHECK ((status = 'ok') = (min_s IS NOT NULL)),
    CHECK ((status = 'ok') = (reason = ''))
) STRICT;
CREATE INDEX step_by_run ON step (run_id);

CREATE TABLE prediction ( -- What a bundle of regressors predicted for a measured step.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    step_id TEXT NOT NULL REFERENCES step (id), -- for which step
    bundle_digest TEXT NOT NULL, -- digest of the bundle that predicted
    kernelcast_version TEXT NOT NULL, -- version that predicted
    timeline TEXT NOT NULL, -- how operator times became a step time: the closed form or the exact schedule
    statistic TEXT NOT NULL, -- which time of the operators was fitted: time_us or quiet_us
    predicted_s REAL NOT NULL, -- seconds
    low_s REAL, -- seconds, lower end of the interval
    high_s REAL, -- seconds, upper end of the interval
    components_s TEXT NOT NULL -- predicted parts, JSON, name to seconds
) STRICT;
CREATE INDEX prediction_by_step ON prediction (step_id);
CREATE INDEX prediction_by_bundle ON prediction (bundle_digest);

CREATE TABLE predictor ( -- One trained regressor of a bundle, and its error.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    bundle_digest TEXT NOT NULL, -- digest of the bundle that it is part of
    operator TEXT NOT NULL, -- operator
    role TEXT NOT NULL, -- role, if it was trained for one role only; else empty
    direction TEXT NOT NULL, -- which time it predicts
    dtype TEXT NOT NULL, -- element type, torch's name
    compute_id TEXT REFERENCES hardware (id), -- trained for this device; NULL for several
    fabric_id TEXT REFERENCES fabric (id), -- trained for this fabric; NULL for several, or none
    software_id TEXT REFERENCES software (id), -- trained on measurements with this software; NULL for several
    algorithm TEXT NOT NULL, -- random_forest, xgboost, ...
    form TEXT NOT NULL, -- features and target, such as log(time) on the workload vector
    hyperparameters TEXT NOT NULL, -- JSON
    training_rows INTEGER NOT NULL, -- samples that it was fitted on
    validation_error REAL NOT NULL, -- mean absolute error on held-out samples, fraction of the time
    size_bytes INTEGER NOT NULL, -- bytes of the ONNX model
    trained_at TEXT NOT NULL, -- UTC
    statistic TEXT NOT NULL, -- which time it was fitted to: time_us or quiet_us
    dataset_digest TEXT NOT NULL, -- digest of the ids of the samples that it was fitted and validated on
    CHECK (direction IN ('forward', 'backward', 'input_gradient', 'weight_gradient', 'once'))
) STRICT;
CREATE INDEX predictor_by_bundle ON predictor (bundle_digest);
CREATE INDEX predictor_by_operator ON predictor (operator, direction, dtype);
CREATE INDEX predictor_by_hardware ON predictor (compute_id);
CREATE INDEX predictor_by_fabric ON predictor (fabric_id);
CREATE INDEX predictor_by_software ON predictor (software_id);


-- How a site operates -----------------------------------------------------------------------------------------------

CREATE TABLE failure_log ( -- What one log says of jobs: how long nodes were used, and what failures ended.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    kind TEXT NOT NULL, -- sacct, csv or mlperf
    device_name TEXT NOT NULL, -- device, as its maker names it; empty if not stated
    gpus_per_node INTEGER NOT NULL, -- devices of a node
    node_days REAL NOT NULL, -- days that jobs held a node, all nodes together
    failures INTEGER NOT NULL, -- jobs that a failure ended
    unreadable INTEGER NOT NULL, -- jobs or lines that could not be read
    causes TEXT NOT NULL, -- failures by cause, JSON, name to number
    failed_s TEXT NOT NULL, -- seconds times nodes of every job that a failure ended, JSON list
    ended_s TEXT NOT NULL, -- seconds times nodes of every other job, JSON list
    file_digest TEXT NOT NULL, -- SHA-256 of the log
    reference TEXT NOT NULL, -- where it was published; empty if it was not
    kernelcast_version TEXT NOT NULL -- version that read it
) STRICT;

CREATE TABLE step_times ( -- Times of single steps of a run: how they scatter, and how long it took to start.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    publisher TEXT NOT NULL, -- who ran it; empty if not stated
    model_name TEXT NOT NULL, -- model or benchmark
    device_name TEXT NOT NULL, -- device, as its maker names it; empty if not stated
    gpus INTEGER NOT NULL, -- devices of the run
    samples_per_step INTEGER, -- global batch; NULL if unknown
    times_s TEXT NOT NULL, -- seconds of every step without the first five, JSON list
    start_s REAL, -- seconds from the start of the process to the first step; NULL if unknown
    total_s REAL, -- seconds of the whole log; NULL if unknown
    file_digest TEXT NOT NULL, -- SHA-256 of the log
    licence TEXT NOT NULL, -- licence of the log; empty if not stated
    reference TEXT NOT NULL, -- where it was published; empty if it was not
    kernelcast_version TEXT NOT NULL -- version that read it
) STRICT;


-- Questions that people ask -----------------------------------------------------------------------------------------

CREATE VIEW operator_time AS -- How long did an operator take, on which hardware? One row per sample.
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.role,
    sample.direction,
    sample.dtype,
    (
        SELECT group_concat(name || '=' || value, ', ')
        FROM (
            SELECT feature.key AS name, entry.value AS value
            FROM json_each(operator.features) AS feature
            JOIN json_each(sample.vector) AS entry
                ON entry.key = (SELECT count(*) FROM json_each(operator.features) AS e WHERE e.id < feature.id)
            ORDER BY feature.id
        )
    ) AS workload, -- such as m=1024, k=512, n=512
    sample.time_us, -- the paper's statistic, microseconds
    sample.quiet_us, -- 10th percentile, microseconds
    round(100.0 * sample.spread, 1) AS spread_percent,
    sample.repetition_count AS repetitions,
    round(sample.flops / sample.time_us / 1e3, 3) AS gigaflops_per_s,
    round(sample.moved_bytes / sample.time_us / 1e3, 3) AS gigabytes_per_s,
    software.description AS software,
    fabric.description AS fabric,
    sample.variant,
    sample.load, -- burst or sustained; empty: not stated
    sample.clock_mhz, -- clock, power and temperature while it was measured; NULL if unknown
    sample.power_w,
    sample.temperature_c,
    sample.measured_at,
    source.kind AS source_kind,
    source.name AS source,
    sample.vector,
    sample.id AS sample_id,
    run.id AS run_id,
    run.compute_id,
    run.software_id,
    run.fabric_id
FROM sample
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
JOIN software ON software.id = run.software_id
JOIN operator ON operator.name = sample.operator
JOIN source ON source.id = run.source_id
LEFT JOIN fabric ON fabric.id = run.fabric_id
WHERE sample.status = 'ok';

CREATE VIEW coverage AS -- What was measured on which hardware? One row per operator, direction, dtype, load and status.
SELECT
    hardware.description AS hardware,
    sample.operator,
    group_concat(DISTINCT nullif(sample.role, '')) AS roles, -- roles of the samples
    sample.direction,
    sample.dtype,
    sample.load,
    sample.status,
    count(*) AS samples,
    count(DISTINCT sample.vector) AS workloads,
    min(sample.measured_at) AS first_measured_at,
    max(sample.measured_at) AS last_measured_at,
    run.compute_id
FROM sample
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
GROUP BY run.compute_id, sample.operator, sample.direction, sample.dtype, sample.load, sample.status;

CREATE VIEW slowest_kernel AS -- Which kernels take the most time, on which hardware, in which operators?
SELECT
    hardware.description AS hardware,
    kernel_name.name AS kernel,
    group_concat(DISTINCT sample.operator || ' ' || sample.direction) AS operators,
    sum(per_sample.launches) AS launches,
    round(sum(per_sample.total_us), 3) AS total_us,
    round(sum(per_sample.total_us) / sum(per_sample.launches), 3) AS mean_us,
    max(per_sample.max_us) AS max_us,
    run.compute_id
FROM (
    SELECT name_number, sample_number, count(*) AS launches, sum(duration_us) AS total_us, max(duration_us) AS max_us
    FROM kernel
    GROUP BY name_number, sample_number
) AS per_sample
JOIN sample ON sample.number = per_sample.sample_number
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
JOIN kernel_name ON kernel_name.number = per_sample.name_number
GROUP BY run.compute_id, per_sample.name_number
ORDER BY total_us DESC;

CREATE VIEW failure AS -- What could not be measured, and why?
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.role,
    sample.direction,
    sample.dtype,
    sample.vector,
    sample.status,
    sample.reason,
    sample.measured_at,
    sample.id AS sample_id,
    run.compute_id
FROM sample
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
WHERE sample.status <> 'ok';

CREATE VIEW operator_noise AS -- How reproducible are the times? Spread of the repetitions per hardware and operator.
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.direction,
    sample.dtype,
    count(*) AS samples,
    round(100.0 * avg(sample.spread), 1) AS mean_spread_percent,
    round(100.0 * max(sample.spread), 1) AS max_spread_percent,
    round(100.0 * avg(sample.time_us / sample.quiet_us - 1), 1) AS mean_over_quiet_percent, -- time_us above quiet_us
    run.compute_id
FROM sample
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
WHERE sample.status = 'ok' AND sample.spread IS NOT NULL AND sample.quiet_us > 0
GROUP BY run.compute_id, sample.operator, sample.direction, sample.dtype;

CREATE VIEW point_time AS -- One time per point, load, hardware and software: the mean over its samples of all roles.
SELECT
    sample.operator,
    sample.direction,
    sample.dtype,
    sample.vector,
    sample.variant,
    iif(sample.load = 'sustained', 'sustained', 'burst') AS load, -- a load that is not stated counts as a burst
    run.compute_id,
    run.software_id,
    run.fabric_id,
    count(*) AS samples,
    avg(sample.time_us) AS time_us,
    avg(sample.quiet_us) AS quiet_us,
    min(sample.measured_at) AS first_measured_at
FROM sample
JOIN run ON run.id = sample.run_id
WHERE sample.status = 'ok'
GROUP BY
    sample.operator, sample.direction, sample.dtype, sample.vector, sample.variant, sample.load = 'sustained',
    run.compute_id, run.software_id, run.fabric_id;

CREATE VIEW sustained_slowdown AS -- How much longer does a point take under sustained load than in a burst?
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.direction,
    sample.dtype,
    sample.vector,
    sample.variant,
    run.conditions,
    -- The lowest time of several samples, as in training.
    min(iif(sample.load = 'sustained', NULL, coalesce(sample.quiet_us, sample.time_us))) AS burst_us,
    min(iif(sample.load = 'sustained', coalesce(sample.quiet_us, sample.time_us), NULL)) AS sustained_us,
    round(
        min(iif(sample.load = 'sustained', coalesce(sample.quiet_us, sample.time_us), NULL))
        / min(iif(sample.load = 'sustained', NULL, coalesce(sample.quiet_us, sample.time_us))), 4
    ) AS ratio, -- sustained over burst: 1.1 takes a tenth longer
    round(avg(iif(sample.load = 'sustained', NULL, sample.clock_mhz)), 1) AS burst_clock_mhz,
    round(avg(iif(sample.load = 'sustained', sample.clock_mhz, NULL)), 1) AS sustained_clock_mhz,
    round(avg(iif(sample.load = 'sustained', NULL, sample.power_w)), 1) AS burst_power_w,
    round(avg(iif(sample.load = 'sustained', sample.power_w, NULL)), 1) AS sustained_power_w,
    round(avg(iif(sample.load = 'sustained', NULL, sample.temperature_c)), 1) AS burst_temperature_c,
    round(avg(iif(sample.load = 'sustained', sample.temperature_c, NULL)), 1) AS sustained_temperature_c,
    run.compute_id,
    run.software_id
FROM sample
JOIN run ON run.id = sample.run_id
JOIN hardware ON hardware.id = run.compute_id
WHERE sample.status = 'ok'
GROUP BY
    run.compute_id, run.software_id, run.fabric_id, run.conditions,
    sample.operator, sample.direction, sample.dtype, sample.vector, sample.variant
HAVING burst_us IS NOT NULL AND sustained_us IS NOT NULL;

CREATE VIEW software_history AS -- Did an upgrade make operators slower? Each point over the software versions, oldest first.
SELECT
    hardware.description AS hardware,
    point_time.operator,
    point_time.direction,
    point_time.dtype,
    point_time.vector,
    point_time.variant,
    point_time.load,
    software.description AS software,
    point_time.first_measured_at,
    point_time.samples,
    point_time.time_us,
    round(
        100.0 * (point_time.time_us / lag(point_time.time_us) OVER earlier - 1), 2
    ) AS change_percent, -- relative to the previous software; NULL for the first
    point_time.compute_id,
    point_time.software_id
FROM point_time
JOIN hardware ON hardware.id = point_time.compute_id
JOIN software ON software.id = point_time.software_id
WINDOW earlier AS (
    PARTITION BY
        point_time.compute_id, point_time.fabric_id, point_time.operator, point_time.direction, point_time.dtype,
        point_time.vector, point_time.variant, point_time.load
    ORDER BY point_time.first_measured_at, point_time.software_id
);

CREATE VIEW hardware_side_by_side AS -- The same point on two kinds of hardware.
SELECT
    one.operator,
    one.direction,
    one.dtype,
    one.vector,
    one.variant,
    one.load,
    hardware_one.description AS hardware_one,
    hardware_two.description AS hardware_two,
    one.time_us AS one_us,
    two.time_us AS two_us,
    round(one.time_us / two.time_us, 3) AS speedup_of_two,
    one.compute_id AS compute_id_one,
    two.compute_id AS compute_id_two,
    one.software_id AS software_id_one,
    two.software_id AS software_id_two
FROM point_time AS one
JOIN point_time AS two
    ON two.operator = one.operator
    AND two.direction = one.direction
    AND two.dtype = one.dtype
    AND two.vector = one.vector
    AND two.variant = one.variant
    AND two.load = one.load
    AND two.compute_id > one.compute_id
JOIN hardware AS hardware_one ON hardware_one.id = one.compute_id
JOIN hardware AS hardware_two ON hardware_two.id = two.compute_id;

CREATE VIEW step_accuracy AS -- How far was the prediction from the real step? Quiet times are compared with p10_s, others with min_s.
SELECT
    hardware,
    model,
    pp,
    tp,
    dp,
    micro_batch,
    micro_batches,
    measured_s,
    measured_statistic, -- the compared time of the step: p10_s for quiet operators, else min_s
    predicted_s,
    round(100.0 * (predicted_s / measured_s - 1), 2) AS error_percent, -- negative: predicted too short
    timeline,
    statistic,
    bundle_digest,
    measured_at,
    step_id,
    compute_id
FROM (
    SELECT
        hardware.description AS hardware,
        step.model_name AS model,
        step.pp,
        step.tp,
        step.dp,
        step.micro_batch,
        step.micro_batches,
        iif(prediction.statistic = 'quiet_us' AND step.p10_s IS NOT NULL, step.p10_s, step.min_s) AS measured_s,
        iif(prediction.statistic = 'quiet_us' AND step.p10_s IS NOT NULL, 'p10_s', 'min_s') AS measured_statistic,
        prediction.predicted_s,
        prediction.timeline,
        prediction.statistic,
        prediction.bundle_digest,
        step.measured_at,
        step.id AS step_id,
        run.compute_id
    FROM prediction
    JOIN step ON step.id = prediction.step_id
    JOIN run ON run.id = step.run_id
    JOIN hardware ON hardware.id = run.compute_id
    WHERE step.status = 'ok'
);

CREATE VIEW predictor_error AS -- How well does each regressor predict held-out samples? Worst first.
SELECT
    predictor.operator,
    predictor.role,
    predictor.direction,
    predictor.dtype,
    hardware.description AS hardware,
    predictor.algorithm,
    predictor.form,
    round(100.0 * predictor.validation_error, 2) AS validation_error_percent,
    predictor.training_rows,
    predictor.size_bytes,
    predictor.statistic,
    predictor.trained_at,
    predictor.bundle_digest
FROM predictor
LEFT JOIN hardware ON hardware.id = predictor.compute_id
ORDER BY predictor.validation_error DESC;

CREATE VIEW doubtful_sample AS -- Which measurements are doubtful, and why? One row per flag of a sample.
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.role,
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
JOIN hardware ON hardware.id = run.compute_id;

CREATE VIEW real_run AS -- Which traces of real runs were ingested, and how much of each was recognised?
SELECT
    hardware.description AS hardware,
    software.description AS software,
    trace.rank,
    trace.world_size,
    trace.backend,
    round(trace.span_us / 1e3, 3) AS span_ms, -- of the whole trace
    trace.kernel_count AS kernels,
    round(trace.kernel_us / 1e3, 3) AS kernels_ms, -- sum of their durations
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
JOIN software ON software.id = run.software_id;

CREATE VIEW unrecognised AS -- Which kernels of real runs are part of no sample? Most time first, by host operator.
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
ORDER BY total_us DESC;

CREATE VIEW trace_event AS -- The events of traces in plain columns: one row per kernel, copy or fill.
SELECT
    trace.rank,
    traced_step.name AS step,
    event_kind.name,
    event_kind.class, -- compute, communication or memory (copies and fills)
    traced_event.start_ns / 1e3 AS start_us, -- from the start of the trace
    traced_event.duration_ns / 1e3 AS duration_us,
    traced_event.exposed_ns / 1e3 AS exposed_us, -- while no event of an earlier class ran: compute, communication, memory
    traced_event.idle_ns / 1e3 AS idle_us, -- while the device was idle before it
    traced_event.late_ns / 1e3 AS late_us, -- the part of idle_us before its launch
    traced_event.launch_ns / 1e3 AS launch_us, -- from the start of the trace
    traced_event.device,
    traced_event.stream,
    event_kind.category,
    event_kind.host_operator,
    event_kind.shapes,
    event_scope.name AS scope, -- annotations and modules around the launch
    event_kind.direction,
    event_kind.operator,
    event_kind.role,
    event_kind.dtype,
    event_kind.variant,
    event_kind.vector,
    event_kind.reason, -- why it belongs to no operator
    event_kind.batch,
    event_kind.m,
    event_kind.k,
    event_kind.n,
    event_kind.collective,
    event_kind.group_ranks,
    event_kind.group_size,
    event_kind.message_bytes,
    CASE
        WHEN collective LIKE '%all%reduce%' OR collective = 'allreduce' THEN 2.0 * (group_size - 1) / group_size
        WHEN collective LIKE '%gather%' OR collective LIKE '%scatter%' OR collective LIKE '%to_all%'
            THEN 1.0 * (group_size - 1) / group_size
        WHEN class = 'communication' THEN 1.0
    END * message_bytes AS bus_bytes, -- of nccl-tests, PERFORMANCE.md
    event_kind.grid,
    event_kind.block,
    event_kind.registers,
    event_kind.occupancy_percent,
    (trace_clock.start_ns + traced_event.start_ns * (1 + trace_clock.drift)) / 1e3 AS run_us, -- from the start of the run
    trace_clock.error_ns / 1e3 AS clock_error_us,
    matched_collective.collective_number, -- number of the collective in the run; NULL: on no other traced rank
    matched_collective.compute_ns / 1e3 AS since_compute_us, -- since the collective before
    matched_collective.memory_ns / 1e3 AS since_memory_us,
    matched_collective.host_ns / 1e3 AS since_host_us,
    traced_event.call, -- number of the launching host call, shared by its events
    traced_event.correlation,
    traced_event.sequence,
    traced_event.step AS step_index,
    traced_event.sample_number,
    traced_event.repetition_index,
    timeline.trace_id,
    trace.run_id
FROM traced_event INDEXED BY sqlite_autoindex_traced_event_1 -- the table itself, in order: indexes would look up every row
JOIN event_kind ON event_kind.number = traced_event.kind_number
JOIN timeline ON timeline.number = traced_event.timeline_number
JOIN trace ON trace.id = timeline.trace_id
LEFT JOIN traced_step
    ON traced_step.timeline_number = traced_event.timeline_number AND traced_step.step = traced_event.step
LEFT JOIN event_scope ON event_scope.number = traced_event.scope_number
LEFT JOIN trace_clock ON trace_clock.timeline_number = traced_event.timeline_number
LEFT JOIN matched_collective
    ON matched_collective.timeline_number = traced_event.timeline_number
    AND matched_collective.sequence = traced_event.sequence;

CREATE VIEW step_time AS -- Where does a step's time go? The time of the device without overlap, per trace and step.
SELECT
    rank,
    step, -- NULL: launched outside of the steps that the trace marks
    round(sum(exposed_us + idle_us) / 1e3, 3) AS device_ms, -- sum of the parts below
    round(sum(iif(class = 'compute', exposed_us, 0)) / 1e3, 3) AS compute_ms,
    round(sum(iif(class = 'communication', exposed_us, 0)) / 1e3, 3) AS exposed_communication_ms, -- while no compute runs
    round(sum(iif(class = 'memory', exposed_us, 0)) / 1e3, 3) AS memory_ms, -- copies and fills without other events
    round(sum(idle_us) / 1e3, 3) AS idle_ms, -- the four causes below
    round(sum(late_us) / 1e3, 3) AS idle_host_ms, -- before the launch of the next event: the host was late
    round(sum(iif(ended_stream <> (stream & 1048575), idle_us - late_us, 0)) / 1e3, 3)
        AS idle_other_stream_ms, -- after the launch; another stream ran last, and was waited for
    round(sum(iif(ended_stream <> (stream & 1048575), 0, idle_us - late_us)) / 1e3, 3)
        AS idle_dependency_ms, -- after the launch; the same stream ran last: an event, another rank, or launch latency
    round(sum(iif(late_us IS NULL, idle_us, 0)) / 1e3, 3) AS idle_unknown_ms, -- its launch was not recorded
    round(sum(iif(class = 'communication', duration_us, 0)) / 1e3, 3) AS communication_ms, -- exposed or not
    round(
        100 - 100.0 * sum(iif(class = 'communication', exposed_us, 0))
        / nullif(sum(iif(class = 'communication', duration_us, 0)), 0), 1
    ) + 0.0 AS overlapped_percent, -- of communication_ms, behind compute or other communication
    count(*) AS events,
    step_index,
    trace_id,
    run_id
FROM (
    SELECT
        run_id, trace_id, rank, step, step_index, class, stream, duration_us, exposed_us, idle_us, late_us,
        -- The latest end of all earlier events, with its stream in the lowest 20 bits.
        max(CAST((start_us + duration_us) * 1e3 AS BIGINT) * 1048576 + (stream & 1048575)) OVER (
            PARTITION BY run_id, trace_id, device ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) & 1048575 AS ended_stream
    FROM trace_event
)
GROUP BY run_id, trace_id, rank, step_index, step;

CREATE VIEW kernel_time AS -- Which kernels take the time? Per trace and kernel, without overlap.
SELECT
    rank,
    name AS kernel,
    class,
    count(*) AS launches,
    round(sum(duration_us), 3) AS total_us,
    round(avg(duration_us), 3) AS mean_us,
    max(duration_us) AS max_us,
    round(sum(exposed_us), 3) AS exposed_us, -- sums to the busy time of the device
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (PARTITION BY run_id, trace_id), 2) AS percent_of_busy,
    trace_id,
    run_id
FROM trace_event
GROUP BY run_id, trace_id, rank, name, class;

CREATE VIEW host_operator_time AS -- Which operators of the framework take the time? Per trace and direction.
SELECT
    rank,
    host_operator,
    direction,
    class,
    count(DISTINCT call) AS calls,
    count(*) AS launches,
    round(sum(duration_us), 3) AS total_us,
    round(sum(exposed_us), 3) AS exposed_us,
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (PARTITION BY run_id, trace_id), 2) AS percent_of_busy,
    trace_id,
    run_id
FROM trace_event
GROUP BY run_id, trace_id, rank, host_operator, direction, class;

CREATE VIEW product_rate AS -- How fast are matrix products, and what limits them? All with shapes, recognised or not.
SELECT
    rank,
    host_operator,
    batch,
    m,
    k,
    n,
    per_call.dtype,
    count(*) AS calls,
    round(avg(time_us), 3) AS mean_us, -- of the kernels of a call; the rates below are at this time
    round(min(time_us), 3) AS min_us,
    round(flops / avg(time_us) / 1e6, 3) AS teraflops_per_s, -- at mean_us
    round(least_bytes / avg(time_us) / 1e6, 3) AS terabytes_per_s, -- at mean_us, each matrix moved once
    round(100.0 * flops / avg(time_us) * 1e6 / device_peak.flops_per_s, 1) AS percent_of_peak, -- at mean_us; above 100 if float32 ran as TF32
    round(flops / least_bytes, 1) AS flops_per_byte,
    CASE
        WHEN flops / least_bytes * device_peak.memory_bytes_per_s < device_peak.flops_per_s THEN 'memory'
        WHEN device_peak.flops_per_s IS NOT NULL THEN 'compute'
    END AS bound, -- the nearer limit of the roofline; NULL: no published peak
    round(
        100.0 / avg(time_us) * 1e6
        * iif(
            flops / device_peak.flops_per_s > least_bytes / device_peak.memory_bytes_per_s,
            flops / device_peak.flops_per_s, least_bytes / device_peak.memory_bytes_per_s
        ), 1
    ) AS percent_of_roofline, -- at mean_us
    round(sum(time_us), 3) AS total_us,
    trace_id,
    per_call.run_id
FROM (
    SELECT
        rank, host_operator, batch, m, k, n, dtype, trace_id, run_id,
        sum(duration_us) AS time_us,
        2.0 * batch * m * k * n AS flops,
        1.0 * batch * (m * k + k * n + m * n)
        * CASE WHEN dtype = 'float64' THEN 8 WHEN dtype = 'float32' THEN 4 WHEN dtype LIKE '%8%' THEN 1 ELSE 2 END
            AS least_bytes
    FROM trace_event
    WHERE m IS NOT NULL
    GROUP BY run_id, trace_id, rank, host_operator, batch, m, k, n, dtype, coalesce(call, -1 - sequence)
) AS per_call
JOIN run ON run.id = per_call.run_id
JOIN hardware ON hardware.id = run.compute_id
LEFT JOIN device_peak ON device_peak.device_name = hardware.device_name AND device_peak.dtype = per_call.dtype
GROUP BY
    per_call.run_id, trace_id, rank, host_operator, batch, m, k, n, per_call.dtype, flops, least_bytes,
    device_peak.flops_per_s, device_peak.memory_bytes_per_s;

CREATE VIEW collective_rate AS -- How fast are collectives, by kind, group and size?
SELECT
    rank,
    collective,
    group_size,
    group_ranks,
    message_bytes, -- as nccl-tests count them
    dtype,
    count(*) AS calls,
    round(avg(duration_us), 3) AS mean_us,
    round(min(duration_us), 3) AS min_us, -- call with the shortest wait for other ranks
    round(bus_bytes / avg(duration_us) / 1e3, 3) AS bus_gb_per_s, -- bus bandwidth at mean_us
    round(bus_bytes / min(duration_us) / 1e3, 3) AS best_bus_gb_per_s, -- bus bandwidth at min_us
    round(sum(duration_us), 3) AS total_us,
    round(sum(exposed_us), 3) AS exposed_us,
    trace_id,
    run_id
FROM trace_event
WHERE class = 'communication'
GROUP BY run_id, trace_id, rank, collective, group_size, group_ranks, message_bytes, dtype, bus_bytes;

CREATE VIEW lost_part AS -- Which parts of collectives did the profiler lose? They are rows of collective_match.
SELECT
    rank,
    collective_number,
    run_ns / 1e3 AS run_us, -- from the start of the run to its arrival
    duration_ns / 1e3 AS duration_us,
    error_ns / 1e3 AS clock_error_us, -- uncertainty of run_us relative to other hosts
    trace_id,
    run_id
FROM lost_collective
JOIN timeline ON timeline.number = lost_collective.timeline_number
JOIN trace ON trace.id = trace_id
JOIN trace_clock ON trace_clock.timeline_number = lost_collective.timeline_number;

CREATE VIEW collective_match AS -- Which rank came last to a collective? One row per collective and traced rank.
SELECT
    run_id,
    collective_number,
    coalesce(step, max(step) OVER same) AS step,
    rank,
    max(collective) OVER same AS collective,
    max(group_ranks) OVER same AS group_ranks,
    max(group_size) OVER same AS group_size,
    max(message_bytes) OVER same AS message_bytes,
    max(dtype) OVER same AS dtype,
    ranks, -- traced ranks that ran it
    is_lost, -- 1: the rank's trace lacks it, its arrival is told by the end of the others
    round(run_us, 3) AS arrival_us, -- from the start of the run
    round(run_us - first_us, 3) AS late_us, -- after the first rank
    round(last_us - first_us, 3) AS skew_us, -- the last rank after the first
    iif(place = ranks, 1, 0) AS is_last,
    round(wait_us, 3) AS wait_us, -- for later ranks: longer than on the rank that waited least
    round(exposed_wait_us, 3) AS exposed_wait_us, -- without what was overlapped
    iif(place = ranks, round(coalesce(sum(iif(is_lost = 1, NULL, exposed_wait_us)) OVER same
        / nullif(ranks - 1 - sum(is_lost) OVER same + is_lost, 0), 0.0), 3), 0.0) AS delay_us, -- by the last rank: mean exposed wait of the others
    round(transfer_us, 3) AS transfer_us, -- the shortest duration of any rank
    round(max(bus_bytes) OVER same / transfer_us / 1e3, 3) AS bus_gb_per_s, -- bus bandwidth of the transfer
    since_compute_us, -- what this rank did since the collective before: compute,
    since_memory_us, -- copies and fills alone,
    since_host_us, -- and waiting for its host
    round(since_compute_us - (sum(since_compute_us) OVER same - since_compute_us) / (ranks - 1), 3)
        AS extra_compute_us, -- more than the mean of the other ranks
    round(since_memory_us - (sum(since_memory_us) OVER same - since_memory_us) / (ranks - 1), 3) AS extra_memory_us,
    round(since_host_us - (sum(since_host_us) OVER same - since_host_us) / (ranks - 1), 3) AS extra_host_us,
    round(clock_error_us, 3) AS clock_error_us, -- uncertainty of arrival_us relative to other hosts
    trace_id
FROM (
    SELECT
        *,
        duration_us - transfer_us AS wait_us,
        iif(exposed_us < duration_us - transfer_us, exposed_us, duration_us - transfer_us) AS exposed_wait_us
    FROM (
        SELECT
            run_id, collective_number, step, rank, collective, group_ranks, group_size, message_bytes, dtype, bus_bytes,
            run_us, duration_us, exposed_us, since_compute_us, since_memory_us, since_host_us, clock_error_us, trace_id,
            is_lost,
            min(run_us) OVER same AS first_us,
            max(run_us) OVER same AS last_us,
            min(duration_us) OVER same AS transfer_us,
            count(*) OVER same AS ranks,
            row_number() OVER (PARTITION BY run_id, collective_number ORDER BY run_us, rank) AS place
        FROM (
            SELECT
                run_id, collective_number, step, rank, collective, group_ranks, group_size, message_bytes, dtype,
                bus_bytes, run_us, duration_us, exposed_us, since_compute_us, since_memory_us, since_host_us,
                clock_error_us, trace_id, 0 AS is_lost
            FROM trace_event
            WHERE collective_number IS NOT NULL
            UNION ALL
            SELECT
                run_id, collective_number, NULL, rank, NULL, NULL, NULL, NULL, NULL, NULL, run_us, duration_us, 0.0, 0.0,
                0.0, 0.0, clock_error_us, trace_id, 1
            FROM lost_part
        )
        WINDOW same AS (PARTITION BY run_id, collective_number)
    )
)
WINDOW same AS (PARTITION BY run_id, collective_number);

CREATE VIEW rank_arrival AS -- Which rank do the others wait for? Per rank, over the collectives that several ranks ran.
SELECT
    run_id,
    rank,
    sum(collectives) AS collectives,
    sum(times_last) AS times_last,
    round(sum(late_us) / sum(collectives), 3) AS mean_late_us, -- after the first rank
    max(largest_skew_us) AS largest_skew_us, -- when it was last
    round(max(delay_us) / 1e3, 3) AS delay_ms, -- that the others of its group wait for it, not overlapped; of several groups the most
    round(sum(waiting_us) / 1e3, 3) AS waiting_ms, -- that it waits for others, not overlapped
    round(sum(transfer_us) / 1e3, 3) AS transfer_ms,
    round(sum(extra_compute_us) / 1e3, 3) AS extra_compute_ms, -- between collectives, more than the mean of the other ranks
    round(sum(extra_memory_us) / 1e3, 3) AS extra_memory_ms, -- copies and fills alone
    round(sum(extra_host_us) / 1e3, 3) AS extra_host_ms, -- waiting for its host
    trace_id
FROM (
    SELECT
        run_id, trace_id, rank, count(*) AS collectives, sum(is_last) AS times_last, sum(late_us) AS late_us,
        max(iif(is_last = 1, skew_us, 0.0)) AS largest_skew_us, sum(delay_us) AS delay_us,
        sum(exposed_wait_us) AS waiting_us, sum(transfer_us) AS transfer_us, sum(extra_compute_us) AS extra_compute_us,
        sum(extra_memory_us) AS extra_memory_us, sum(extra_host_us) AS extra_host_us
    FROM collective_match
    GROUP BY run_id, trace_id, rank, group_ranks, group_size
)
GROUP BY run_id, trace_id, rank;

CREATE VIEW stream_idle AS -- Why is a stream idle? Per trace and stream, the gaps before its events by cause.
SELECT
    rank,
    device,
    stream,
    count(*) AS events,
    round(sum(duration_us) / 1e3, 3) AS busy_ms,
    round(sum(gap_us) / 1e3, 3) AS idle_ms, -- the causes below
    round(sum(iif(gap_us > 0 AND launch_us > before_us, gap_us, 0)) / 1e3, 3) AS host_ms, -- launched in the gap
    round(sum(iif(launch_us <= before_us, gap_us, 0)) / 1e3, 3)
        AS waiting_ms, -- launched before the gap: waits for another stream, an event or a rank
    round(sum(iif(launch_us IS NULL, gap_us, 0)) / 1e3, 3) AS unknown_ms, -- its launch was not recorded
    trace_id,
    run_id
FROM (
    SELECT
        *,
        iif(start_us > before_us, start_us - before_us, 0.0) AS gap_us
    FROM (
        SELECT
            rank, device, stream, start_us, duration_us, launch_us, trace_id, run_id,
            lag(start_us + duration_us) OVER (
                PARTITION BY run_id, trace_id, device, stream ORDER BY sequence
            ) AS before_us
        FROM trace_event
    )
)
GROUP BY run_id, trace_id, rank, device, stream;

CREATE VIEW copy_rate AS -- How much is copied and filled, and how fast? Per trace and kind.
SELECT
    rank,
    name AS copy,
    count(*) AS copies,
    sum(message_bytes) AS total_bytes, -- NULL if not recorded
    round(sum(duration_us) / 1e3, 3) AS total_ms,
    round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
    round(sum(message_bytes) / nullif(sum(iif(message_bytes IS NULL, 0, duration_us)), 0) / 1e3, 3) AS gb_per_s,
    trace_id,
    run_id
FROM trace_event
WHERE class = 'memory'
GROUP BY run_id, trace_id, rank, name;

CREATE VIEW launch_delay AS -- Is the host far enough ahead of the device? Per trace and step, of launches that were recorded.
SELECT
    rank,
    step,
    count(*) AS launches,
    round(100.0 * sum(duration_us < 5) / count(*), 1) AS short_percent, -- kernels of less than 5 us
    round(avg(start_us - launch_us), 3) AS mean_delay_us, -- from the launch to the start
    round(sum(start_us - launch_us) / (max(start_us + duration_us) - min(launch_us)), 1)
        AS mean_queued, -- launched and not started (Little's law: the sum of the delays over the time)
    round(100.0 * sum(late_us > 0) / count(*), 1) AS starved_percent, -- launched after the device had run dry
    round(sum(late_us) / 1e3, 3) AS host_ms, -- that the device waited for its host
    step_index,
    trace_id,
    run_id
FROM trace_event
WHERE launch_us IS NOT NULL
GROUP BY run_id, trace_id, rank, step_index, step;

CREATE VIEW host_call AS -- What does the host do? Per trace and step, by name; long calls that may wait for the device one by one.
SELECT
    trace.rank,
    traced_step.name AS step,
    host_time.kind, -- operator (inside no other), annotation, or runtime (of the device)
    host_time.name AS call,
    host_time.kind = 'runtime' AND (
        host_time.name LIKE '%Synchronize%' OR host_time.name LIKE '%Memcpy'
        OR host_time.name LIKE '%Free' OR host_time.name LIKE '%Malloc'
    ) AS is_synchronising, -- a call of the runtime that waits for the device
    host_time.calls,
    host_time.total_ns / 1e6 AS total_ms,
    host_time.longest_ns / 1e6 AS longest_ms,
    timeline.trace_id,
    trace.run_id
FROM host_time
JOIN timeline ON timeline.number = host_time.timeline_number
JOIN trace ON trace.id = timeline.trace_id
LEFT JOIN traced_step
    ON traced_step.timeline_number = host_time.timeline_number AND traced_step.step = host_time.step;

CREATE VIEW module_time AS -- Which modules and annotations take the time, with everything inside them? Per trace.
WITH RECURSIVE part (name, module, rest, level) AS (
    SELECT name, '', name || ' / ', 0 FROM event_scope
    UNION ALL
    SELECT
        name,
        iif(module = '', '', module || ' / ') || substr(rest, 1, instr(rest, ' / ') - 1),
        substr(rest, instr(rest, ' / ') + 3),
        level + 1
    FROM part
    WHERE rest <> '' AND level < 32
),
used AS (
    SELECT
        run_id, trace_id, rank, scope, count(*) AS launches, sum(duration_us) AS total_us,
        sum(exposed_us) AS exposed_us
    FROM trace_event
    WHERE scope IS NOT NULL
    GROUP BY run_id, trace_id, rank, scope
)
SELECT
    used.rank,
    part.module,
    part.level, -- 1: the outermost
    sum(used.launches) AS launches,
    round(sum(used.total_us), 3) AS total_us,
    round(sum(used.exposed_us), 3) AS exposed_us,
    used.trace_id,
    used.run_id
FROM used
JOIN part ON part.name = used.scope AND part.level > 0
GROUP BY used.run_id, used.trace_id, used.rank, part.module, part.level;
