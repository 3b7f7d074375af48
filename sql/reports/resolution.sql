-- grain: one source and one threshold; samples, and what a filter.min_pixels of that threshold would keep of them (readable ones, by area alone)
WITH thresholds AS (SELECT explode(array(0, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 2048)) AS side),
areas AS (SELECT source, CAST(width AS BIGINT) * height AS pixels FROM samples WHERE defect IS NULL)
SELECT
  source,
  concat(side, '²') AS min_pixels,
  count(*) AS samples,
  count_if(pixels >= side * side) AS kept,
  round(100.0 * count_if(pixels >= side * side) / count(*), 1) AS kept_percent
FROM areas CROSS JOIN thresholds
GROUP BY source, side
ORDER BY source, side
