-- Frequent questions to the measurements in a database: name and title, what the answer means, and the query.

-- coverage: What has been measured, on which hardware?
-- One row per hardware, operator, direction, dtype, load and status. `roles` are the reasons why a step calls the
-- operator. `samples` counts measurements, `workloads` distinct vectors: with more samples than workloads, some were
-- measured again.
SELECT hardware, operator, roles, direction, dtype, status, samples, workloads
FROM coverage
ORDER BY hardware, operator, direction
LIMIT 12;

-- operator_time: Which operator takes how long, and how close is it to the hardware's limits?
-- One row per sample. `time_us` is the paper's statistic (mean of the middle five of ten repetitions), `quiet_us` the
-- 10th percentile of all repetitions. `workload` names the entries of the vector.
SELECT operator, role, direction, workload, time_us, quiet_us, gigaflops_per_s, gigabytes_per_s
FROM operator_time
ORDER BY time_us DESC
LIMIT 10;

-- slowest_kernel: Which kernels take the most time?
-- Sums over all samples of a device; on a CPU a kernel is an operator call of torch.
SELECT hardware, kernel, operators, launches, total_us, mean_us, max_us
FROM slowest_kernel
LIMIT 10;

-- kernels_of_a_sample: What runs inside an operator?
-- The kernels of the first repetition of the slowest sample, in order of start.
SELECT kernel.sequence, kernel_name.name, kernel.start_us, kernel.duration_us, kernel.stream
FROM kernel
JOIN kernel_name ON kernel_name.number = kernel.name_number
WHERE kernel.repetition_index = 0
  AND kernel.sample_number = (
    SELECT number FROM sample
    WHERE status = 'ok' AND repetition_count > 0 ORDER BY time_us DESC, id LIMIT 1
  )
ORDER BY kernel.sequence;

-- software_history: Did an upgrade make it slower?
-- Points (operator, direction, dtype, vector) by software, oldest first; `change_percent` is relative to the previous
-- software. For the history of one point add `AND vector = '[...]'`. A changed setting in `environment` counts as an
-- upgrade.
SELECT operator, direction, vector, software.description AS software, software.environment,
    samples, round(time_us, 1) AS time_us, change_percent
FROM software_history
JOIN software ON software.id = software_history.software_id
WHERE change_percent IS NOT NULL
ORDER BY change_percent DESC
LIMIT 10;

-- hardware_side_by_side: How do two kinds of hardware compare?
-- The same point on both, with the same software; with `speedup_of_two` above 1 the second is faster.
SELECT operator, direction, vector, hardware_one, hardware_two,
    round(one_us, 1) AS one_us, round(two_us, 1) AS two_us, speedup_of_two
FROM hardware_side_by_side
WHERE software_id_one = software_id_two
ORDER BY speedup_of_two DESC
LIMIT 10;

-- sustained_slowdown: How much longer do operators take under sustained load?
-- Points with both loads (`collect compute --load burst`, then `--load sustained`): the mean ratio of the times, and
-- the mean clocks, if the machine reports them. The view also has power and temperature. The database of this page has
-- no samples under sustained load.
SELECT operator, direction, count(*) AS workloads, round(avg(ratio), 3) AS ratio,
    min(ratio) AS lowest, max(ratio) AS highest, avg(burst_clock_mhz) AS burst_mhz,
    avg(sustained_clock_mhz) AS sustained_mhz
FROM sustained_slowdown
GROUP BY compute_id, operator, direction, dtype, conditions
ORDER BY ratio DESC;

-- operator_noise: How far can the times be trusted?
-- Spread of a sample's repetitions, (90th - 10th percentile) / median. It is large on a busy or virtual machine.
-- `mean_over_quiet_percent` is the excess of the paper's statistic over the 10th percentile.
SELECT operator, direction, samples, mean_spread_percent, max_spread_percent, mean_over_quiet_percent,
    hardware
FROM operator_noise
ORDER BY mean_spread_percent DESC
LIMIT 10;

-- doubtful_sample: Which measurements are doubtful, and why?
-- Unstable repetitions, other processes, throttled clocks; in a real run also kernels of other streams, and time
-- without any kernel of the operator.
SELECT operator, role, direction, vector, flag, detail, round(time_us, 1) AS time_us, spread_percent
FROM doubtful_sample
ORDER BY operator, role, direction, vector, flag
LIMIT 10;

-- failure: What could not be measured, and why?
-- Failures have a reason, such as lack of memory or an operator that the device does not support.
SELECT operator, direction, vector, status, reason, count(*) AS samples
FROM failure
GROUP BY operator, direction, vector, status, reason
ORDER BY operator, direction, vector
LIMIT 10;

-- real_run: Which traces of real runs were ingested, and how much of each was recognised?
-- One row per trace, which is a process of a run (see ingesting.md). Percentages are of the kernels' time: with a known
-- host operator, and in samples.
SELECT hardware, rank, world_size, span_ms, kernels, kernels_ms, attributed_percent, recognised_percent,
    samples_of_the_run
FROM real_run
ORDER BY measured_at, rank;

-- unrecognised: Which kernels of real runs belong to no operator of the table?
-- Kernels outside all samples, by the host operator that launched them, longest time first.
SELECT host_operator, kernel, launches, total_us, percent_of_trace, reason
FROM unrecognised
ORDER BY total_us DESC
LIMIT 8;

-- step_accuracy: How far is the prediction from the real training step?
-- Predicted and measured end to end; the error of a prediction that is too short is negative. Predictions from quiet
-- operators are compared with the 10th percentile of steps, others with the fastest step, as in the paper.
SELECT model, pp, tp, dp, measured_statistic, round(measured_s, 4) AS measured_s,
    round(predicted_s, 4) AS predicted_s, error_percent
FROM step_accuracy
ORDER BY model, pp, tp, dp, measured_at;

-- predictor_error: How well does each regressor predict held-out samples?
-- Mean absolute relative error on held-out samples (see method.md), worst first.
SELECT operator, role, direction, algorithm, form, validation_error_percent, training_rows, size_bytes
FROM predictor_error
LIMIT 10;

-- provenance: Where do the measurements come from?
-- The source, command, software and number of samples of each run.
SELECT source.kind, source.name, source.licence, run.command, run.plan, software.description AS software,
    count(sample.number) AS samples
FROM run
JOIN source ON source.id = run.source_id
JOIN software ON software.id = run.software_id
LEFT JOIN sample ON sample.run_id = run.id
GROUP BY run.id
ORDER BY samples DESC, run.id;
