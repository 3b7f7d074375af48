-- grain: one group of duplicates, largest first
SELECT
  duplicates.group_id,
  duplicates.keeper_id,
  keeper.source AS keeper_source,
  keeper.source_key AS keeper_key,
  count(*) + 1 AS members,
  sort_array(collect_list(concat(
    member.source, '/', member.source_key, ' (', duplicates.kind, ' ', duplicates.distance, ', lost by ', duplicates.won_by, ')'))) AS losers
FROM duplicates
JOIN samples AS keeper ON keeper.image_id = duplicates.keeper_id
JOIN samples AS member ON member.image_id = duplicates.image_id
GROUP BY ALL
ORDER BY members DESC, keeper_id
