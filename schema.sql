-- kernelcast benchmark database, schema version 4 (SQLite).
--
-- How long do the operators of an LLM training step take, on which hardware, with which software? Every measurement is
-- kept down to its kernels. All tables are readable with sqlite3, pandas or Datasette alone; start with the views at
-- the end (operator_time, coverage, slowest_kernel, ...).
--
-- Ids are digests (128 bits of SHA-256, in hexadecimal) of what a row means, so the same measurement has the same id in
-- every database, and merging databases is a union of rows. Rows are only ever added. Columns named `number` are
-- different: row numbers that link a sample to its flags, repetitions and kernels within one file; they mean nothing
-- outside it. Host names, serials, UUIDs, user names and paths are not stored.
--
-- Units are in the names: _us microseconds, _s seconds, _bytes, _gib, _mhz, _w, _c degrees Celsius. Moments are UTC, ISO-8601. Times are
-- whole nanoseconds (three decimals of a microsecond, nine of a second). JSON is text with sorted keys and no spaces.

PRAGMA application_id = 1262699586;  -- 0x4B434442, "KCDB" in ASCII: a kernelcast database
PRAGMA user_version = 4;             -- this schema's version; numbered migrations bring older files here


-- What was measured on ----------------------------------------------------------------------------------------------

CREATE TABLE hardware ( -- One kind of device as a kernel sees it; what does not apply to its kind is 0 or empty.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- compute fingerprint: digest of `fingerprint`
    description TEXT NOT NULL, -- one readable line
    kind TEXT NOT NULL, -- cpu, cuda or rocm
    device_name TEXT NOT NULL, -- the maker's name for it
    compute_capability TEXT NOT NULL, -- GPU: instruction set version, such as 8.0
    multiprocessors INTEGER NOT NULL, -- GPU: number of streaming multiprocessors
    memory_gib INTEGER NOT NULL, -- GPU: memory, GiB
    max_sm_clock_mhz INTEGER NOT NULL, -- GPU: highest multiprocessor clock, MHz
    max_memory_clock_mhz INTEGER NOT NULL, -- GPU: highest memory clock, MHz
    power_limit_w INTEGER NOT NULL, -- GPU: power limit, W
    ecc TEXT NOT NULL, -- GPU: error correction of its memory, on or off
    mig TEXT NOT NULL, -- GPU: profile of the slice, where the device is divided
    cores INTEGER NOT NULL, -- CPU: cores in use
    threads INTEGER NOT NULL, -- CPU: threads per process
    caches TEXT NOT NULL, -- CPU: caches, JSON list
    instruction_sets TEXT NOT NULL, -- CPU: vector instruction sets, JSON list
    virtualised INTEGER NOT NULL CHECK (virtualised IN (0, 1)), -- 1 inside a virtual machine
    fingerprint TEXT NOT NULL -- all fields that the id is the digest of, JSON
) STRICT;

CREATE TABLE fabric ( -- What connects the devices and decides a collective's speed.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- fabric fingerprint: digest of `fingerprint`
    description TEXT NOT NULL, -- one readable line
    backend TEXT NOT NULL, -- communication library: gloo or nccl
    gpus_per_node INTEGER NOT NULL, -- devices (or processes) of a node
    links TEXT NOT NULL, -- links inside a node, JSON list
    nics TEXT NOT NULL, -- network cards between nodes, JSON list
    fingerprint TEXT NOT NULL -- all fields that the id is the digest of, JSON
) STRICT;

CREATE TABLE software ( -- Versions and settings that change what runs; empty where unknown.
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

CREATE TABLE operator ( -- The operators of a training step: a copy of kernelcast's table, to read vectors by.
    name TEXT PRIMARY KEY, -- name in samples; an operator whose features change gets a new name
    title TEXT NOT NULL, -- what it computes
    class TEXT NOT NULL, -- compute-bound, memory-bound, communication or optimizer
    directions TEXT NOT NULL, -- directions that a sample can have, JSON list
    features TEXT NOT NULL, -- JSON object, name to unit, in the order of a sample's vector
    roles TEXT NOT NULL -- why a step calls it: JSON object, role to name in arXiv 2509.22832, Table I (or empty)
) STRICT;


-- Where rows come from ----------------------------------------------------------------------------------------------

CREATE TABLE source ( -- Where measurements come from: kernelcast's collector, an imported file, a trace of a real run.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    kind TEXT NOT NULL CHECK (kind IN ('collector', 'import', 'trace')), -- how the rows were obtained
    name TEXT NOT NULL, -- program, or base name of the file
    licence TEXT NOT NULL, -- licence of the data, SPDX where possible; empty where unknown
    file_digest TEXT NOT NULL, -- SHA-256 of the imported file; empty for the collector
    reference TEXT NOT NULL -- where it was published (address or citation); empty where it was not
) STRICT;

CREATE TABLE run ( -- One invocation that measured or imported.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    started_at TEXT, -- UTC; NULL where an imported file has no date
    kernelcast_version TEXT NOT NULL, -- version that measured; empty for another program
    code_digest TEXT NOT NULL, -- digest of the code that measured; empty for another program
    command TEXT NOT NULL, -- what was done, such as "collect compute"; no paths
    plan TEXT NOT NULL, -- sampling plan, such as quick; empty without one
    compute_id TEXT NOT NULL REFERENCES hardware (id), -- on which device
    fabric_id TEXT REFERENCES fabric (id), -- over which fabric; NULL where none was used
    software_id TEXT NOT NULL REFERENCES software (id), -- with which software
    conditions TEXT NOT NULL, -- what else affects a time (processes per node, ...), JSON
    source_id TEXT NOT NULL REFERENCES source (id) -- where its rows come from
) STRICT;
CREATE INDEX run_by_hardware ON run (compute_id, software_id);
CREATE INDEX run_by_fabric ON run (fabric_id);
CREATE INDEX run_by_software ON run (software_id);
CREATE INDEX run_by_source ON run (source_id);
CREATE INDEX run_by_date ON run (started_at);

CREATE TABLE run_note ( -- Free text about a run, in a table of its own, so that a database can be shared without it.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- which run
    site TEXT NOT NULL, -- who measured: the name that a site or machine is published under
    note TEXT NOT NULL -- anything else
) STRICT;
CREATE INDEX run_note_by_run ON run_note (run_id);


-- Measured operators ------------------------------------------------------------------------------------------------

CREATE TABLE sample ( -- One measurement of an operator at a workload. A failure is a row with a reason and no time.
    number INTEGER PRIMARY KEY, -- row number in this file; flag, repetition and kernel link to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of the other columns, flags, repetitions and kernels
    run_id TEXT NOT NULL REFERENCES run (id), -- measured by
    operator TEXT NOT NULL REFERENCES operator (name), -- what was measured
    role TEXT NOT NULL, -- why a step calls it (operator.roles), such as qkv; empty for no particular reason
    direction TEXT NOT NULL, -- which of its times; backward of a linear is the sum of its two gradients
    dtype TEXT NOT NULL, -- element type, torch's name (float32, bfloat16, ...)
    variant TEXT NOT NULL, -- how it was called, where there are several ways, such as in-place; else empty
    vector TEXT NOT NULL, -- workload vector, JSON list in the order of operator.features
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'unsupported')), -- ok: has a time
    reason TEXT NOT NULL, -- why there is no time; empty when ok
    time_us REAL, -- microseconds: mean of the middle five of the first ten repetitions, or what `statistic` says
    quiet_us REAL, -- microseconds: 10th percentile over all repetitions; NULL where repetitions are not known
    spread REAL, -- no unit: (90th - 10th percentile) / median over all repetitions; NULL where they are not known
    statistic TEXT NOT NULL, -- how time_us was computed: "middle five of ten", or as an import states
    repetition_count INTEGER NOT NULL, -- repetitions behind the times; 0 where unknown
    flops REAL, -- floating-point operations of one execution
    moved_bytes REAL, -- bytes read and written by one execution (collectives: bytes that one process puts in)
    reference_us REAL, -- microseconds of a short fixed kernel timed with it: how disturbed the machine was
    measured_at TEXT, -- UTC; NULL where an imported file has no date
    load TEXT NOT NULL DEFAULT '' CHECK (load IN ('', 'burst', 'sustained')), -- of the device; empty: not stated
    clock_mhz REAL, -- MHz of the GPU's multiprocessors, or of the CPU's measuring cores; NULL where nobody says
    power_w REAL, -- watts of the GPU, or of all CPUs of the machine; NULL where nobody says
    temperature_c REAL, -- degrees Celsius of the GPU or CPU; NULL where nobody says
    CHECK (direction IN ('forward', 'backward', 'input_gradient', 'weight_gradient', 'once')),
    CHECK ((status = 'ok') = (time_us IS NOT NULL)),
    CHECK ((status = 'ok') = (reason = ''))
) STRICT;
CREATE INDEX sample_by_point ON sample (operator, direction, dtype, vector, variant, status);
CREATE INDEX sample_by_run ON sample (run_id, operator, direction, dtype);
CREATE INDEX sample_by_date ON sample (measured_at);
CREATE INDEX sample_without_time ON sample (status, operator) WHERE status <> 'ok';

CREATE TABLE sample_flag ( -- Why a sample is doubtful, as noticed while it was measured.
    sample_number INTEGER NOT NULL REFERENCES sample (number), -- of which sample
    flag TEXT NOT NULL, -- a short name: unstable, throttled, ...
    detail TEXT NOT NULL, -- what was found, in one line
    PRIMARY KEY (sample_number, flag)
) STRICT, WITHOUT ROWID;

CREATE TABLE repetition ( -- One timed execution of a sample.
    sample_number INTEGER NOT NULL REFERENCES sample (number), -- of which sample
    repetition_index INTEGER NOT NULL, -- position in measured order, from 0
    time_us REAL NOT NULL, -- microseconds from the earliest kernel's start to the latest kernel's end
    start_us REAL NOT NULL, -- microseconds after the start of the sample's first repetition
    PRIMARY KEY (sample_number, repetition_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE kernel_name ( -- Names of kernels, each stored once.
    number INTEGER PRIMARY KEY, -- row number in this file; kernel links to it
    name TEXT NOT NULL UNIQUE -- as the profiler prints it
) STRICT;

CREATE TABLE kernel ( -- One kernel of a repetition (on a CPU: one operator call inside it).
    sample_number INTEGER NOT NULL, -- of which sample
    repetition_index INTEGER NOT NULL, -- of which of its repetitions
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

CREATE TABLE trace ( -- The trace of one process of a real run, and how much of it was recognised.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- run of its samples; several ranks of a job are one run
    file_digest TEXT NOT NULL, -- SHA-256 of the file
    rank INTEGER, -- rank of the process; NULL where unknown
    world_size INTEGER, -- processes of the job; NULL where unknown
    backend TEXT NOT NULL, -- communication library, such as nccl; empty where unknown
    process_groups TEXT NOT NULL, -- groups as the trace lists them, JSON list of {"name", "size", "ranks"}
    span_us REAL NOT NULL, -- microseconds from the start of the first event to the end of the last
    event_count INTEGER NOT NULL, -- events that have a duration
    kernel_count INTEGER NOT NULL, -- kernels, copies and fills on the device (on a CPU: calls with time of their own)
    kernel_us REAL NOT NULL, -- microseconds, sum of their durations
    attributed_count INTEGER NOT NULL, -- kernels whose host operator is known
    attributed_us REAL NOT NULL, -- microseconds, sum of their durations
    recognised_count INTEGER NOT NULL, -- kernels that are part of a sample
    recognised_us REAL NOT NULL, -- microseconds, sum of their durations
    measured_at TEXT -- UTC; NULL where unknown
) STRICT;
CREATE INDEX trace_by_run ON trace (run_id);
CREATE INDEX trace_by_file ON trace (file_digest);

CREATE TABLE unrecognised_kernel ( -- Kernels of a trace that are part of no sample, summed by name and host operator.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    trace_id TEXT NOT NULL REFERENCES trace (id), -- of which trace
    name TEXT NOT NULL, -- as the profiler prints it
    category TEXT NOT NULL, -- the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op
    stream INTEGER NOT NULL, -- GPU stream (on a CPU: thread) that they ran on
    host_operator TEXT NOT NULL, -- framework operator on the host that launched them; empty where unknown
    shapes TEXT NOT NULL, -- shapes of that operator's inputs, JSON list; empty where not recorded
    reason TEXT NOT NULL, -- why they are part of no sample
    kernel_count INTEGER NOT NULL, -- number of kernels
    total_us REAL NOT NULL -- microseconds, sum of their durations
) STRICT;
CREATE INDEX unrecognised_kernel_by_trace ON unrecognised_kernel (trace_id);


-- Whole training steps and what was predicted for them --------------------------------------------------------------

CREATE TABLE step ( -- A real training step of a model, timed end to end; a failure is a row with a reason.
    id TEXT PRIMARY KEY CHECK (length(id) = 32), -- digest of the other columns
    run_id TEXT NOT NULL REFERENCES run (id), -- measured by
    model_name TEXT NOT NULL, -- name of the model in its configuration; empty where it has none
    model TEXT NOT NULL, -- whole configuration of the model, JSON
    pp INTEGER NOT NULL, -- pipeline stages
    tp INTEGER NOT NULL, -- tensor parallel degree
    dp INTEGER NOT NULL, -- data parallel degree; devices = pp * tp * dp
    micro_batch INTEGER NOT NULL, -- samples of a micro-batch
    micro_batches INTEGER NOT NULL, -- micro-batches per update
    schedule TEXT NOT NULL, -- pipeline schedule, such as 1F1B; empty without a pipeline
    recomputation INTEGER NOT NULL CHECK (recomputation IN (0, 1)), -- 1: the backward pass computes activations again
    dtype TEXT NOT NULL, -- element type, torch's name
    framework TEXT NOT NULL, -- which training framework ran it; empty where unknown
    options TEXT NOT NULL, -- other settings (ZeRO stage, ...), JSON
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'unsupported')), -- ok: has a time
    reason TEXT NOT NULL, -- why there is no time; empty when ok
    min_s REAL, -- seconds, fastest step
    p10_s REAL, -- seconds, 10th percentile
    median_s REAL, -- seconds, median
    repetitions_s TEXT NOT NULL, -- every timed step, seconds, JSON list
    components_s TEXT NOT NULL, -- parts measured inside it, JSON, name to seconds
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
    role TEXT NOT NULL, -- role, where it was trained for one only; else empty
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
    sample.clock_mhz, -- clock, power and temperature while it was measured; NULL where nobody says
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
    group_concat(DISTINCT nullif(sample.role, '')) AS roles, -- those that it was measured for
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
    iif(sample.load = 'sustained', 'sustained', 'burst') AS load, -- what is not stated counts as a burst
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

CREATE VIEW sustained_slowdown AS -- How much longer does a point take under load that lasts than in a burst?
SELECT
    hardware.description AS hardware,
    sample.operator,
    sample.direction,
    sample.dtype,
    sample.vector,
    sample.variant,
    run.conditions,
    -- Of several samples the one with the lowest time counts, as in training.
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

CREATE VIEW software_history AS -- Did an upgrade make it slower? Each point over the software versions, oldest first.
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
    ) AS change_percent, -- against the software before it; NULL for the first
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

CREATE VIEW step_accuracy AS -- How far was the prediction from the real step? Quiet against quiet, else the minimum.
SELECT
    hardware,
    model,
    pp,
    tp,
    dp,
    micro_batch,
    micro_batches,
    measured_s,
    measured_statistic, -- the step's time that was compared: p10_s for quiet operators, else min_s
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
