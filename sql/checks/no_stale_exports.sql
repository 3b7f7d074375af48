-- rule: each picture of the corpus is still curated, or is on a skip list; one that is neither lost to a better copy or to a stricter rule
-- severity: error
-- grain: one picture that is in the corpus, no longer in curated, and would be trained on all the same
SELECT corpus_rows.image_id, corpus_rows.tier, corpus_rows.bucket, duplicates.keeper_id
FROM corpus_rows
LEFT ANTI JOIN curated ON curated.image_id = corpus_rows.image_id
LEFT ANTI JOIN skips ON skips.image_id = corpus_rows.image_id
LEFT JOIN duplicates ON duplicates.image_id = corpus_rows.image_id
