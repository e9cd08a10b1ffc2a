-- Tables of the page of a database, in the form of questions.sql and in the order of the page.

-- coverage: Coverage
-- Workloads are distinct sizes; samples also count repeated measurements of the same size.
SELECT operator, direction, dtype, load, hardware,
    sum(CASE WHEN status = 'ok' THEN workloads ELSE 0 END) AS workloads, sum(samples) AS samples,
    nullif(sum(CASE WHEN status = 'ok' THEN 0 ELSE samples END), 0) AS failures
FROM coverage GROUP BY operator, direction, dtype, load, hardware, compute_id
ORDER BY operator, direction, dtype, load, hardware;

-- noise: Noise
-- Spread of a sample's repetitions: (90th - 10th percentile) / median. Over quiet: excess of the paper's statistic
-- over the 10th percentile. Noisiest first.
SELECT operator, direction, dtype, hardware, samples, mean_spread_percent, max_spread_percent,
    mean_over_quiet_percent
FROM operator_noise ORDER BY mean_spread_percent DESC, operator, direction;

-- doubtful_samples: Doubtful samples
-- Samples by flag.
SELECT flag, min(detail) AS example, count(DISTINCT operator) AS operators, count(*) AS samples
FROM doubtful_sample GROUP BY flag ORDER BY samples DESC;

-- hardware_side_by_side: Hardware side by side
-- Time on hardware one / time on hardware two at points measured on both: geometric mean, least and most.
SELECT operator, direction, dtype, count(*) AS points, exp(avg(ln(speedup_of_two))) AS speedup_of_two_ratio,
    min(speedup_of_two) AS least_ratio, max(speedup_of_two) AS most_ratio, hardware_one, hardware_two
FROM hardware_side_by_side WHERE speedup_of_two > 0
GROUP BY hardware_one, hardware_two, operator, direction, dtype;
