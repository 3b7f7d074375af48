-- grain: one source and one ingest batch of it, newest batch last: what a batch is like, beside the others of its source
SELECT
  source,
  ingest_run,
  count(*) AS samples,
  round(100.0 * count(defect) / count(*), 2) AS defect_percent,
  percentile_approx(CAST(width AS BIGINT) * height, 0.5) AS median_pixels,
  round(percentile_approx(width / height, 0.5), 3) AS median_aspect_ratio,
  percentile_approx(byte_size, 0.5) AS median_bytes,
  round(100.0 * count_if(exists(map_values(captions), text -> text IS NOT NULL)) / count(*), 1) AS captioned_percent
FROM samples
GROUP BY source, ingest_run
ORDER BY source, ingest_run
