-- Frequent questions to the traces in a database, in the form of questions.sql.

-- step_time: Where does the time of a step go?
-- The time of the device per trace and step, without overlap: compute, exposed communication, exposed copies and fills,
-- and idle time by cause. The parts add up to `device_ms`. An event belongs to the step that launched it.
SELECT rank, step, device_ms, compute_ms, exposed_communication_ms, memory_ms, idle_ms, idle_host_ms,
    idle_other_stream_ms, idle_dependency_ms
FROM step_time
ORDER BY rank, step_index;

-- overlap: How much of the communication is overlapped?
-- `communication_ms` is the sum of the times of all collectives, `exposed_communication_ms` the time while no compute
-- ran.
SELECT rank, step, communication_ms, exposed_communication_ms, overlapped_percent
FROM step_time
WHERE communication_ms > 0
ORDER BY rank, step_index;

-- kernel_time: Which kernels take the time of a trace?
-- All kernels, recognised or not. `exposed_us` counts overlapped time once, so that the percentages add up to 100;
-- it is less than `total_us` for kernels that are overlapped by others.
SELECT rank, kernel, class, launches, total_us, mean_us, exposed_us, percent_of_busy
FROM kernel_time
WHERE rank = 0
ORDER BY exposed_us DESC, kernel
LIMIT 8;

-- host_operator_time: Which operators of the framework take the time of a trace?
-- Kernels by direction and the host operator that launched them.
SELECT rank, host_operator, direction, class, calls, launches, total_us, exposed_us, percent_of_busy
FROM host_operator_time
WHERE rank = 0
ORDER BY exposed_us DESC
LIMIT 8;

-- passes: How much of the time is forward, backward and recomputation?
-- Recomputation is what activation checkpointing runs again in the backward pass. Collectives are of no pass.
SELECT rank, direction, count(*) AS events, round(sum(duration_us), 3) AS total_us, round(sum(exposed_us), 3) AS exposed_us
FROM trace_event
WHERE class = 'compute'
GROUP BY trace_id, direction
ORDER BY rank, exposed_us DESC;

-- trace_categories: How is the time divided between kinds of events?
-- By class and the profiler's category.
SELECT rank, class, category, count(*) AS events, round(sum(duration_us), 3) AS total_us,
    round(sum(exposed_us), 3) AS exposed_us
FROM trace_event
GROUP BY trace_id, class, category
ORDER BY rank, exposed_us DESC;

-- product_rate: How fast are the matrix products, and what limits them?
-- All products with recorded shapes, recognised or not: [batch, m, k] times [batch, k, n]. The rates are at `mean_us`.
-- `percent_of_peak` is relative to the published peak of the device, `percent_of_roofline` to the nearer limit of
-- arithmetic and memory.
SELECT rank, batch, m, k, n, dtype, calls, mean_us, teraflops_per_s, percent_of_peak, flops_per_byte, bound,
    percent_of_roofline
FROM product_rate
WHERE m >= 4096
ORDER BY rank, total_us DESC, m, k LIMIT 8;

-- collective_rate: How fast are the collectives of a trace?
-- By collective, group and size. In a real run a collective waits for the slowest rank, so that `min_us` shows the
-- fabric better than `mean_us`. Bus bandwidth is defined as in nccl-tests.
SELECT rank, collective, group_ranks, message_bytes, dtype, calls, mean_us, bus_gb_per_s, min_us,
    best_bus_gb_per_s, exposed_us
FROM collective_rate
ORDER BY rank, total_us DESC;

-- rank_arrival: Which rank do the others wait for?
-- By the collectives that several ranks ran, matched by group and sequence number. `delay_ms` is the time that the
-- others wait for a rank, the last columns what it does between collectives beyond the mean of the others.
SELECT rank, collectives, times_last, largest_skew_us, delay_ms, waiting_ms, extra_compute_ms, extra_memory_ms,
    extra_host_ms
FROM rank_arrival
ORDER BY delay_ms DESC;

-- collective_match: How late does each rank arrive at each collective?
-- On one clock. `wait_us` is how much longer a rank is in the collective than the one that waited least, `transfer_us`
-- the shortest time of any traced rank.
SELECT collective_number, step, rank, message_bytes, arrival_us, late_us, is_last, wait_us, transfer_us, bus_gb_per_s
FROM collective_match
ORDER BY collective_number, rank;

-- stream_idle: Why is a stream idle?
-- Gaps before the events of a stream: `host_ms` if the event was launched in the gap, `waiting_ms` if it was launched
-- earlier and waited for another stream, an event or a rank.
SELECT rank, device, stream, events, busy_ms, idle_ms, host_ms, waiting_ms, unknown_ms
FROM stream_idle
ORDER BY rank, device, stream;

-- trace_comparison: What became slower between two traces?
-- Kernels of two traces side by side; a kernel that one lacks takes 0 there. Here rank 0 and rank 1 of one run; for two
-- runs select by `trace_id` (see `kernelcast trace diff`).
SELECT kernel, round(sum(iif(rank = 0, total_us, 0)), 3) AS one_us, round(sum(iif(rank = 1, total_us, 0)), 3) AS two_us,
    round(sum(iif(rank = 1, total_us, -total_us)), 3) AS change_us
FROM kernel_time WHERE rank IN (0, 1)
GROUP BY kernel, class
ORDER BY change_us DESC, kernel LIMIT 6;

-- kernels_of_an_operator: What runs inside an operator of a trace?
-- The kernels of an operator with their shares; add `direction = 'backward'` for one direction.
SELECT direction, name AS kernel, count(*) AS launches, round(sum(duration_us), 3) AS total_us,
    round(100.0 * sum(duration_us) / sum(sum(duration_us)) OVER (PARTITION BY direction), 1) AS percent
FROM trace_event WHERE operator = 'gemm'
GROUP BY direction, name
ORDER BY total_us DESC, kernel LIMIT 8;

-- kernels_of_a_repetition: Which kernels of a trace made a sample?
-- An event refers to its sample and repetition.
SELECT operator, vector, repetition_index, rank, step, name, duration_us
FROM trace_event
WHERE sample_number IS NOT NULL AND operator = 'layer_norm' AND rank = 0
ORDER BY sample_number, repetition_index;

-- scopes: Which part of the program takes the time?
-- By the annotations (`record_function`) and modules around the launch, outermost first.
SELECT rank, scope, class, count(*) AS launches, round(sum(duration_us), 3) AS total_us
FROM trace_event
GROUP BY trace_id, scope, class
ORDER BY rank, total_us DESC;

-- copy_rate: How much is copied, and how fast?
-- Copies between host and device, on the device, and fills; `exposed_ms` is the time in which nothing else ran.
SELECT rank, copy, copies, total_bytes, total_ms, exposed_ms, gb_per_s
FROM copy_rate
ORDER BY rank, total_ms DESC;

-- launch_delay: Is the host far enough ahead of the device?
-- Kernels wait in a queue: a delay of a few microseconds, and few queued, mean that the device runs dry.
SELECT rank, step, launches, short_percent, mean_delay_us, mean_queued, starved_percent, host_ms
FROM launch_delay
ORDER BY rank, step_index;

-- host_call: What does the host do, and which calls wait for the device?
-- Operators inside no other, annotations, and calls of the device's runtime.
SELECT rank, step, kind, call, is_synchronising, calls, round(total_ms, 3) AS total_ms
FROM host_call
WHERE rank = 0
ORDER BY is_synchronising DESC, total_ms DESC LIMIT 6;

-- module_time: Which modules take the time, with everything inside them?
-- Modules and annotations around the launches (`with_modules` and `record_function`), outermost first.
SELECT rank, module, level, launches, total_us, exposed_us
FROM module_time
ORDER BY rank, level, exposed_us DESC;

-- occupancy: Which kernels fill the device badly?
-- Occupancy as the profiler estimates it, of the kernels that take the most time; NULL where it was not recorded.
SELECT name, grid, block, registers, occupancy_percent, count(*) AS launches, sum(duration_us) AS total_us
FROM trace_event WHERE rank = 0 AND class = 'compute'
GROUP BY name, grid, block, registers, occupancy_percent
ORDER BY total_us DESC LIMIT 5;

-- slow_collectives: Which collectives cost the most waiting, and for whom?
-- The last rank, and how long the others waited for it.
SELECT collective_number, step, rank AS last_rank, collective, message_bytes, skew_us, delay_us
FROM collective_match WHERE is_last
ORDER BY delay_us DESC LIMIT 5;
