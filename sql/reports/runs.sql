-- grain: one run of one stage, newest first
SELECT started_at, stage, status, round(seconds, 1) AS seconds, rows_in, kept, rejected, round(rows_in / seconds, 1) AS rows_per_second, error
FROM runs
ORDER BY started_at DESC
