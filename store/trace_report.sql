-- Tables of the report of a traced run, in the form of questions.sql and in the order in which they are shown: at most
-- :top rows of run :run.

-- steps: steps
SELECT * FROM step_time
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY rank, trace_id, step_index IS NULL, step_index;

-- ranks: ranks, by the collectives that several of them ran
SELECT rank, collectives, times_last, mean_late_us, largest_skew_us, delay_ms, waiting_ms, transfer_ms,
    extra_compute_ms, extra_memory_ms, extra_host_ms
FROM rank_arrival
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY delay_ms DESC, rank LIMIT :top;

-- matches: groups and sizes, with all ranks there
SELECT collective, group_ranks, group_size, message_bytes, count(*) AS collectives, round(avg(skew_us), 3) AS mean_skew_us,
    round(max(skew_us), 3) AS largest_skew_us, round(avg(transfer_us), 3) AS transfer_us,
    round(avg(bus_gb_per_s), 3) AS bus_gb_per_s, max(clock_error_us) AS clock_error_us
FROM collective_match
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run) AND is_last
GROUP BY collective, group_ranks, group_size, message_bytes
ORDER BY sum(transfer_us) DESC LIMIT :top;

-- kernels: kernels
SELECT kernel, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
    round(sum(total_us) / sum(launches), 3) AS mean_us, round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
FROM kernel_time
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
GROUP BY kernel, class
ORDER BY exposed_ms DESC, total_ms DESC, kernel LIMIT :top;

-- host_operators: operators of the host
SELECT host_operator, direction, class, sum(launches) AS launches, round(sum(total_us) / 1e3, 3) AS total_ms,
    round(sum(exposed_us) / 1e3, 3) AS exposed_ms,
    round(100.0 * sum(exposed_us) / sum(sum(exposed_us)) OVER (), 1) AS percent_of_busy
FROM host_operator_time
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
GROUP BY host_operator, direction, class
ORDER BY exposed_ms DESC, total_ms DESC, host_operator LIMIT :top;

-- products: matrix products
SELECT rank, host_operator, batch, m, k, n, dtype, calls, mean_us, teraflops_per_s, percent_of_peak, bound,
    percent_of_roofline
FROM product_rate
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY total_us DESC, m, k, n LIMIT :top;

-- collectives: collectives
SELECT rank, collective, group_size, message_bytes, dtype, calls, mean_us, bus_gb_per_s, min_us, best_bus_gb_per_s,
    round(exposed_us / 1e3, 3) AS exposed_ms
FROM collective_rate
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY total_us DESC LIMIT :top;

-- streams: streams
SELECT * FROM stream_idle
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY rank, device, busy_ms DESC LIMIT :top;
