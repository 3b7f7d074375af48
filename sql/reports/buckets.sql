-- grain: one tier and bucket of the curated table
SELECT tier, bucket, min(width) AS width, min(height) AS height, count(*) AS images, sum(byte_size) AS image_bytes
FROM curated
GROUP BY tier, bucket
ORDER BY tier, bucket
