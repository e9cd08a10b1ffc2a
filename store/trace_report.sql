-- Tables of the report of a traced run, in the form of questions.sql and in the order in which they are shown: at most
-- :top rows of run :run. trace_sums.py makes the tables named *_sum.

-- steps: steps
-- An event, with the gap before it, belongs to the step that launched it. The first step, before which nothing was
-- recorded, and steps in which the recording ended (cut) are not in the mean if there are others.
SELECT
    rank,
    name AS step,
    outside,
    round((compute_ns + exposed_communication_ns + memory_ns + idle_ns) / 1e6, 3) AS device_ms,
    round(compute_ns / 1e6, 3) AS compute_ms,
    round(exposed_communication_ns / 1e6, 3) AS exposed_communication_ms,
    round(memory_ns / 1e6, 3) AS memory_ms,
    round(idle_ns / 1e6, 3) AS idle_ms,
    round(idle_host_ns / 1e6, 3) AS idle_host_ms,
    round(idle_other_stream_ns / 1e6, 3) AS idle_other_stream_ms,
    round(idle_dependency_ns / 1e6, 3) AS idle_dependency_ms,
    round(idle_unknown_ns / 1e6, 3) AS idle_unknown_ms,
    round(communication_ns / 1e6, 3) AS communication_ms,
    round(100 - 100.0 * exposed_communication_ns / nullif(communication_ns, 0), 1) + 0.0 AS overlapped_percent,
    CAST(events AS INTEGER) AS events,
    unlike = min(unlike) OVER () AS in_mean,
    CAST(step_index AS INTEGER) AS step_index,
    trace_id,
    :run AS run_id
FROM (
    SELECT *,
        CASE WHEN step_index IS NULL THEN 3 WHEN name LIKE '% (cut)' THEN 2 ELSE step_index = 0 END AS unlike, -- a usual step
        CASE
            WHEN step_index IS NOT NULL THEN NULL
            WHEN step_sum.timeline_number NOT IN (SELECT timeline_number FROM traced_step) THEN 'no marked steps'
            WHEN step_sum.timeline_number IN (SELECT timeline_number FROM launch_sum WHERE step_index IS NULL)
                OR step_sum.timeline_number NOT IN (SELECT timeline_number FROM launch_sum) THEN 'outside the marked steps'
            ELSE 'launched before the recording'
        END AS outside
    FROM step_sum
    LEFT JOIN traced_step ON traced_step.timeline_number = step_sum.timeline_number AND traced_step.step = step_index
)
ORDER BY rank, trace_id, step_index IS NULL, step_index;

-- ranks: ranks, by the collectives that several of them ran
-- Delay: the others waited for this rank, not overlapped. Extra: between collectives, more than the mean of the others.
SELECT rank, collectives, times_last, mean_late_us, largest_skew_us, delay_ms, waiting_ms, transfer_ms,
    extra_compute_ms, extra_memory_ms, extra_host_ms
FROM rank_arrival
WHERE run_id = :run
ORDER BY delay_ms DESC, rank LIMIT :top;

-- matches: groups and sizes of collectives that several traced ranks ran
-- The transfer is the shortest duration of a traced rank; the skew is from the first to the last arrival of them.
SELECT collective, group_ranks, group_size, message_bytes, count(*) AS collectives, round(avg(skew_us), 3) AS mean_skew_us,
    round(max(skew_us), 3) AS largest_skew_us, round(avg(transfer_us), 3) AS transfer_us,
    round(avg(bus_gb_per_s), 3) AS bus_gb_per_s, max(clock_error_us) AS clock_error_us
FROM collective_match
WHERE run_id = :run AND is_last
GROUP BY collective, group_ranks, group_size, message_bytes
ORDER BY sum(transfer_us) DESC LIMIT :top;

-- path: critical path of a step, and the most that half of a part would save
-- The longest chain over launches, streams and ranks. Where waits between streams are not recorded savings are upper bounds.
SELECT name AS step, class, part, round(path_ns / 1e6, 3) AS path_ms,
    round(100.0 * share, 1) AS percent_of_path, round(saved_ns / 1e6, 3) AS half_saves_ms
FROM path_part
LEFT JOIN (SELECT step, min(traced_step.name) AS name FROM traced_step JOIN timeline ON number = timeline_number
    JOIN trace ON trace.id = trace_id WHERE run_id = :run GROUP BY step) AS named ON named.step = step_index
ORDER BY path_ns DESC, part;

-- passes: passes
-- Recomputation: forward passes that the backward pass runs again (activation checkpointing). Update: all that is launched
-- after the last backward pass of a step.
SELECT
    CASE pass WHEN 0 THEN 'forward' WHEN 1 THEN 'recomputation' WHEN 2 THEN 'backward' WHEN 3 THEN 'update'
        WHEN 4 THEN 'communication' ELSE 'unknown' END AS pass,
    CAST(sum(launches) AS INTEGER) AS launches, round(sum(duration_ns) / 1e6, 3) AS total_ms,
    round(sum(exposed_ns) / 1e6, 3) AS exposed_ms,
    round(100.0 * sum(exposed_ns) / sum(sum(exposed_ns)) OVER (), 1) AS percent_of_busy
FROM pass_sum
GROUP BY pass_sum.pass
ORDER BY pass_sum.pass;

-- kernels: kernels
-- Exposed time counts every instant once.
SELECT name AS kernel, class, CAST(sum(launches) AS INTEGER) AS launches, round(sum(duration_ns) / 1e6, 3) AS total_ms,
    round(sum(duration_ns) / sum(launches) / 1e3, 3) AS mean_us, round(sum(exposed_ns) / 1e6, 3) AS exposed_ms,
    round(100.0 * sum(exposed_ns) / sum(sum(exposed_ns)) OVER (), 1) AS percent_of_busy
FROM event_sum JOIN event_kind ON number = kind_number
GROUP BY name, class
ORDER BY exposed_ms DESC, total_ms DESC, kernel LIMIT :top;

-- host_operators: operators of the host
-- Kernels by the operator that launched them.
SELECT host_operator, direction, class, CAST(sum(launches) AS INTEGER) AS launches,
    round(sum(duration_ns) / 1e6, 3) AS total_ms, round(sum(exposed_ns) / 1e6, 3) AS exposed_ms,
    round(100.0 * sum(exposed_ns) / sum(sum(exposed_ns)) OVER (), 1) AS percent_of_busy
FROM event_sum JOIN event_kind ON number = kind_number
GROUP BY host_operator, direction, class
ORDER BY exposed_ms DESC, total_ms DESC, host_operator LIMIT :top;

-- products: matrix products
-- At the mean time of a call.
SELECT rank, host_operator, batch, m, k, n, dtype, calls, round(mean_us, 3) AS mean_us,
    round(flops / mean_us / 1e6, 3) AS teraflops_per_s,
    round(100.0 * flops / mean_us * 1e6 / flops_per_s, 1) AS percent_of_peak,
    CASE
        WHEN flops / least_bytes * memory_bytes_per_s < flops_per_s THEN 'memory'
        WHEN flops_per_s IS NOT NULL THEN 'compute'
    END AS bound,
    round(100.0 / mean_us * 1e6 * iif(
        flops / flops_per_s > least_bytes / memory_bytes_per_s, flops / flops_per_s, least_bytes / memory_bytes_per_s
    ), 1) AS percent_of_roofline
FROM (
    SELECT rank, host_operator, batch, m, k, n, event_kind.dtype, CAST(sum(calls) AS INTEGER) AS calls,
        sum(duration_ns) / sum(calls) / 1e3 AS mean_us, sum(duration_ns) AS duration_ns, device_peak.flops_per_s,
        device_peak.memory_bytes_per_s, 2.0 * batch * m * k * n AS flops,
        1.0 * batch * (m * k + k * n + m * n) * CASE
            WHEN event_kind.dtype = 'float64' THEN 8
            WHEN event_kind.dtype = 'float32' THEN 4
            WHEN event_kind.dtype LIKE '%8%' THEN 1
            ELSE 2
        END AS least_bytes
    FROM call_sum JOIN event_kind ON event_kind.number = kind_number JOIN run ON run.id = :run
    JOIN hardware ON hardware.id = compute_id
    LEFT JOIN device_peak
        ON device_peak.device_name = hardware.device_name AND device_peak.dtype = event_kind.dtype
    WHERE m IS NOT NULL
    GROUP BY trace_id, host_operator, batch, m, k, n, event_kind.dtype
)
ORDER BY round(duration_ns / 1e3, 3) DESC, m, k, n, rank LIMIT :top;

-- rates: other operators
-- Attention, norms and others at the costs of the table of operators; convolutions and elementwise calls outside of it at the
-- sizes of their tensors, each moved once. Sums over ranks, at the mean time of a call.
SELECT operator, direction, workload, rated.dtype, CAST(calls AS INTEGER) AS calls, round(total_us / calls, 3) AS mean_us,
    round(flops / total_us / 1e6, 3) AS teraflops_per_s, round(moved_bytes / total_us / 1e3, 3) AS gb_per_s,
    CASE
        WHEN flops / moved_bytes * memory_bytes_per_s < flops_per_s THEN 'memory'
        WHEN flops_per_s IS NOT NULL THEN 'compute'
    END AS bound,
    round(100e6 / total_us * iif(
        flops / flops_per_s > moved_bytes / memory_bytes_per_s, flops / flops_per_s, moved_bytes / memory_bytes_per_s
    ), 1) AS percent_of_roofline,
    round(total_us / 1e3, 3) AS total_ms
FROM (
    SELECT rtrim(operator || ' ' || role) AS operator, direction, workload, dtype, sum(repetitions) AS calls,
        sum(repetitions * time_us) AS total_us, sum(repetitions * time_us * gigaflops_per_s) * 1e3 AS flops,
        sum(repetitions * time_us * gigabytes_per_s) * 1e3 AS moved_bytes
    FROM operator_time JOIN operator ON operator.name = operator_time.operator
    WHERE run_id = :run AND operator NOT IN ('gemm', 'batched_gemm') AND operator.class <> 'communication'
    GROUP BY operator, role, direction, workload, dtype, variant
    UNION ALL
    SELECT host_operator, direction, workload, dtype, sum(calls), sum(duration_ns) / 1e3, sum(calls * flops),
        sum(calls * moved_bytes)
    FROM call_sum JOIN call_cost USING (kind_number) JOIN event_kind ON number = kind_number
    GROUP BY kind_number
) AS rated
JOIN run ON run.id = :run JOIN hardware ON hardware.id = compute_id
LEFT JOIN device_peak ON device_peak.device_name = hardware.device_name AND device_peak.dtype = rated.dtype
ORDER BY rated.total_us DESC, operator, workload LIMIT :top;

-- collectives: collectives
-- The mean includes waiting for other ranks.
SELECT rank, collective, group_size, message_bytes, dtype, CAST(calls AS INTEGER) AS calls, round(mean_us, 3) AS mean_us,
    round(bus_bytes / mean_us / 1e3, 3) AS bus_gb_per_s, round(min_us, 3) AS min_us,
    round(bus_bytes / min_us / 1e3, 3) AS best_bus_gb_per_s, round(exposed_ns / 1e6, 3) AS exposed_ms
FROM (
    SELECT rank, collective, group_size, message_bytes, dtype, sum(launches) AS calls,
        sum(duration_ns) / sum(launches) / 1e3 AS mean_us, min(min_ns) / 1e3 AS min_us, sum(exposed_ns) AS exposed_ns,
        sum(duration_ns) AS duration_ns,
        CASE
            WHEN collective LIKE '%all%reduce%' OR collective = 'allreduce' THEN 2.0 * (group_size - 1) / group_size
            WHEN collective LIKE '%gather%' OR collective LIKE '%scatter%' OR collective LIKE '%to_all%'
                THEN 1.0 * (group_size - 1) / group_size
            ELSE 1.0
        END * message_bytes AS bus_bytes
    FROM event_sum JOIN event_kind ON number = kind_number
    WHERE class = 'communication'
    GROUP BY trace_id, rank, collective, group_size, group_ranks, message_bytes, dtype
)
ORDER BY round(duration_ns / 1e3, 3) DESC LIMIT :top;

-- copies: copies and fills
-- Rates over the bytes that were recorded.
SELECT copy, sum(copies) AS copies, sum(total_bytes) AS total_bytes, round(sum(total_ms), 3) AS total_ms,
    round(sum(exposed_ms), 3) AS exposed_ms, round(avg(gb_per_s), 3) AS gb_per_s
FROM (
    SELECT name AS copy, CAST(sum(launches) AS INTEGER) AS copies,
        CAST(sum(launches * message_bytes) AS INTEGER) AS total_bytes, sum(duration_ns) / 1e6 AS total_ms,
        sum(exposed_ns) / 1e6 AS exposed_ms,
        round(sum(launches * message_bytes) / nullif(sum(iif(message_bytes IS NULL, 0, duration_ns)), 0), 3) AS gb_per_s
    FROM event_sum JOIN event_kind ON number = kind_number
    WHERE class = 'memory'
    GROUP BY trace_id, name
)
GROUP BY copy
ORDER BY sum(total_ms) DESC LIMIT :top;

-- launches: launches
-- Delay: from the launch to the start. Queued: launched and not started yet. A queue that is empty makes the device wait.
SELECT rank, name AS step, CAST(launches AS INTEGER) AS launches, round(100.0 * short / launches, 1) AS short_percent,
    round(delay_ns / launches / 1e3, 3) AS mean_delay_us, round(delay_ns / (to_ns - from_ns), 1) AS mean_queued,
    round(100.0 * starved / launches, 1) AS starved_percent, round(late_ns / 1e6, 3) AS host_ms
FROM launch_sum
LEFT JOIN traced_step ON traced_step.timeline_number = launch_sum.timeline_number AND traced_step.step = step_index
ORDER BY rank, step_index LIMIT :top;

-- host: calls of the host
-- Operators inside no other, annotations, and calls of the device's runtime; those that synchronise are marked.
SELECT kind, call, is_synchronising, sum(calls) AS calls, round(sum(total_ms), 3) AS total_ms,
    round(max(longest_ms), 3) AS longest_ms
FROM host_call
WHERE run_id = :run
GROUP BY kind, call, is_synchronising
ORDER BY is_synchronising DESC, sum(total_ms) DESC LIMIT :top;

-- modules: annotations and modules
-- Around the launches, outermost first, with everything inside them.
WITH RECURSIVE part (number, module, rest, level) AS (
    SELECT number, '', name || ' / ', 0 FROM event_scope
    WHERE number IN (SELECT scope_number FROM event_sum)
    UNION ALL
    SELECT
        number,
        iif(module = '', '', module || ' / ') || substr(rest, 1, instr(rest, ' / ') - 1),
        substr(rest, instr(rest, ' / ') + 3),
        level + 1
    FROM part
    WHERE rest <> '' AND level < 32
)
SELECT module, level, CAST(sum(launches) AS INTEGER) AS launches, round(sum(duration_ns) / 1e6, 3) AS total_ms,
    round(sum(exposed_ns) / 1e6, 3) AS exposed_ms
FROM event_sum JOIN part ON number = scope_number AND level > 0
GROUP BY module, level
ORDER BY exposed_ms DESC, level LIMIT :top;

-- streams: streams
-- Gaps before the events of a stream.
SELECT rank, CAST(device AS INTEGER) AS device, CAST(stream AS INTEGER) AS stream, CAST(events AS INTEGER) AS events,
    round(duration_ns / 1e6, 3) AS busy_ms, round(idle_ns / 1e6, 3) AS idle_ms, round(host_ns / 1e6, 3) AS host_ms,
    round(waiting_ns / 1e6, 3) AS waiting_ms, round(unknown_ns / 1e6, 3) AS unknown_ms, trace_id, :run AS run_id
FROM stream_sum
ORDER BY rank, device, busy_ms DESC LIMIT :top;
