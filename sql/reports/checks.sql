-- grain: one rule, as it was found when it was checked last, broken ones first
SELECT
  check,
  severity,
  max_by(holds, checked_at) AS holds,
  max_by(stage, checked_at) AS stage,
  max(checked_at) AS checked_at,
  count(*) AS times,
  count_if(NOT holds) AS times_broken,
  max_by(first_rows, checked_at) AS first_rows
FROM checks
GROUP BY check, severity
ORDER BY holds, check
