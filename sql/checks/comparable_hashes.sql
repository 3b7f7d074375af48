-- rule: each picture that was read and is not flat has a perceptual hash, and its version
-- severity: error
-- grain: one picture that would be compared with no other
SELECT image_id, source, source_key, format
FROM samples
WHERE defect IS NULL AND NOT coalesce(is_flat, false) AND (phash IS NULL OR phash_version IS NULL)
