-- Tables of the report of a traced run, in the form of questions.sql and in the order in which they are shown: at most
-- :top rows of run :run.

-- steps: steps
-- An event, with the gap before it, belongs to the step that launched it.
SELECT * FROM step_time
WHERE run_id = :run
ORDER BY rank, trace_id, step_index IS NULL, step_index;

-- ranks: ranks, by the collectives that several of them ran
-- Delay: the others waited for this rank, not overlapped. Extra: between collectives, more than the mean of the others.
SELECT rank, collectives, times_last, mean_late_us, largest_skew_us, delay_ms, waiting_ms, transfer_ms,
    extra_compute_ms, extra_memory_ms, extra_host_ms
FROM rank_arrival
WHERE run_id = :run
ORDER BY delay_ms DESC, rank LIMIT :top;

-- matches: groups and sizes, with all ranks there
-- The transfer is the shortest duration of any rank; the skew is from the first to the last arrival.
SELECT collective, group_ranks, group_size, message_bytes, count(*) AS collectives, round(avg(skew_us), 3) AS mean_skew_us,
    round(max(skew_us), 3) AS largest_skew_us, round(avg(transfer_us), 3) AS transfer_us,
    round(avg(bus_gb_per_s), 3) AS bus_gb_per_s, max(clock_error_us) AS clock_error_us
FROM collective_match
WHERE run_id = :run AND is_last
GROUP BY collective, group_ranks, group_size, message_bytes
ORDER BY sum(transfer_us) DESC LIMIT :top;

-- kernels: kernels
-- Exposed time counts every instant once.
SELECT kernel, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
    round(sum(total_us) / sum(launches), 3) AS mean_us, round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
FROM kernel_time
WHERE run_id = :run
GROUP BY kernel, class
ORDER BY exposed_ms DESC, total_ms DESC, kernel LIMIT :top;

-- host_operators: operators of the host
-- Kernels by the operator that launched them.
SELECT host_operator, direction, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
    round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
FROM host_operator_time
WHERE run_id = :run
GROUP BY host_operator, direction, class
ORDER BY exposed_ms DESC, total_ms DESC, host_operator LIMIT :top;

-- products: matrix products
-- At the mean time of a call.
SELECT rank, host_operator, batch, m, k, n, dtype, calls, mean_us, teraflops_per_s, percent_of_peak, bound,
    percent_of_roofline
FROM product_rate
WHERE run_id = :run
ORDER BY total_us DESC, m, k, n LIMIT :top;

-- collectives: collectives
-- The mean includes waiting for other ranks.
SELECT rank, collective, group_size, message_bytes, dtype, calls, mean_us, bus_gb_per_s, min_us, best_bus_gb_per_s,
    round(exposed_us / 1e3, 3) AS exposed_ms
FROM collective_rate
WHERE run_id = :run
ORDER BY total_us DESC LIMIT :top;

-- copies: copies and fills
-- Rates over the bytes that were recorded.
SELECT copy, sum(copies) AS copies, sum(total_bytes) AS total_bytes, round(sum(total_ms), 3) AS total_ms,
    round(sum(exposed_ms), 3) AS exposed_ms, round(avg(gb_per_s), 3) AS gb_per_s
FROM copy_rate
WHERE run_id = :run
GROUP BY copy
ORDER BY sum(total_ms) DESC LIMIT :top;

-- launches: launches
-- Delay: from the launch to the start. Queued: launched and not started yet. A queue that is empty makes the device wait.
SELECT rank, step, launches, short_percent, mean_delay_us, mean_queued, starved_percent, host_ms FROM launch_delay
WHERE run_id = :run
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
SELECT module, level, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
    round(sum(exposed_us) / 1e3, 3) AS exposed_ms
FROM module_time
WHERE run_id = :run
GROUP BY module, level
ORDER BY exposed_ms DESC, level LIMIT :top;

-- streams: streams
-- Gaps before the events of a stream.
SELECT * FROM stream_idle
WHERE run_id = :run
ORDER BY rank, device, busy_ms DESC LIMIT :top;
