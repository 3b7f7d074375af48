-- grain: one source and outcome; `outcome` is kept, duplicate, or the first rejecting stage and its reason
WITH outcomes AS (
  SELECT samples.source, samples.image_id, coalesce(
    min_by(concat(rejects.stage, ': ', rejects.reason), struct(rejects.stage <> 'ingest', rejects.reason)),
    if(count(duplicates.image_id) > 0, 'duplicate', 'kept')) AS outcome
  FROM samples
  LEFT JOIN rejects ON rejects.image_id = samples.image_id
  LEFT JOIN duplicates ON duplicates.image_id = samples.image_id
  GROUP BY samples.source, samples.image_id
)
SELECT source, outcome, count(*) AS samples
FROM outcomes
GROUP BY source, outcome
ORDER BY source, samples DESC, outcome
