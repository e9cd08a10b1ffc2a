-- Tables of the report of a traced run, in the form of questions.sql and in the order in which they are shown: at most
-- :top rows of run :run.

-- steps: steps
SELECT * FROM step_time
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run)
ORDER BY rank, trace_id, step_index IS NULL, step_index;

-- ranks: ranks
SELECT rank, count(*) AS steps, round(avg(device_ms), 3) AS device_ms, round(avg(compute_ms), 3) AS compute_ms,
    round(avg(behind_ms), 3) AS behind_ms, round(avg(communication_ms), 3) AS communication_ms,
    round(avg(exposed_communication_ms), 3) AS exposed_communication_ms,
    round(avg(idle_host_ms), 3) AS idle_host_ms, sum(is_straggler) AS times_slowest
FROM rank_time
WHERE trace_id IN (SELECT id FROM trace WHERE run_id = :run) AND step IS NOT NULL
GROUP BY trace_id, rank
ORDER BY rank;

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
