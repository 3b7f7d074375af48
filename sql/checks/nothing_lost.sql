-- rule: each record of samples is exactly one of kept (in curated), duplicate, or rejected
-- severity: error
-- grain: one record that is none of them, or more than one
WITH places AS (
  SELECT image_id, 'kept' AS place FROM curated
  UNION ALL SELECT image_id, 'duplicate' AS place FROM duplicates
  UNION ALL SELECT DISTINCT image_id, 'rejected' AS place FROM rejects
)
SELECT
  coalesce(samples.image_id, places.image_id) AS image_id,
  samples.source,
  samples.source_key,
  sort_array(collect_list(places.place)) AS places
FROM samples
FULL OUTER JOIN places ON places.image_id = samples.image_id
GROUP BY ALL
HAVING size(places) <> 1 OR isnull(samples.source)
