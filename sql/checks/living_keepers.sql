-- rule: each duplicate has a keeper that is in samples, is no duplicate itself, and is not rejected before dedup
-- severity: error
-- grain: one duplicate whose keeper is missing
SELECT duplicates.image_id, duplicates.keeper_id
FROM duplicates
LEFT ANTI JOIN (
  SELECT samples.image_id
  FROM samples
  LEFT ANTI JOIN duplicates AS losers ON losers.image_id = samples.image_id
  LEFT ANTI JOIN (SELECT image_id FROM rejects WHERE stage IN ('ingest', 'filter')) AS rejected ON rejected.image_id = samples.image_id
) AS living ON living.image_id = duplicates.keeper_id
