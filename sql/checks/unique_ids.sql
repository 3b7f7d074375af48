-- rule: an image_id is in samples once
-- severity: error
-- grain: one repeated image_id
SELECT image_id, count(*) AS times, min(source) AS source, min(source_key) AS source_key
FROM samples
GROUP BY image_id
HAVING count(*) > 1
