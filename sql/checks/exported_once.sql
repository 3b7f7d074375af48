-- rule: a picture is in the corpus once, and each curated picture is in it
-- severity: error
-- grain: one picture that is exported not once
SELECT curated.image_id, count(corpus_rows.image_id) AS times
FROM curated
LEFT JOIN corpus_rows ON corpus_rows.image_id = curated.image_id
GROUP BY curated.image_id
HAVING count(corpus_rows.image_id) <> 1
