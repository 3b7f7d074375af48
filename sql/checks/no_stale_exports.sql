-- rule: each picture of the corpus is still curated; one that is not lost to a better copy or to a stricter rule after it was exported
-- severity: warning
-- grain: one picture that is in the corpus, and no longer in curated
SELECT corpus_rows.image_id, corpus_rows.tier, corpus_rows.bucket, duplicates.keeper_id
FROM corpus_rows
LEFT ANTI JOIN curated ON curated.image_id = corpus_rows.image_id
LEFT JOIN duplicates ON duplicates.image_id = corpus_rows.image_id
