-- rule: a keeper has at least the pixels of each of its duplicates
-- severity: error
-- grain: one duplicate that is larger than its keeper
SELECT duplicates.image_id, duplicates.keeper_id
FROM duplicates
JOIN samples AS member ON member.image_id = duplicates.image_id
JOIN samples AS keeper ON keeper.image_id = duplicates.keeper_id
WHERE bigint(member.width) * member.height > bigint(keeper.width) * keeper.height
