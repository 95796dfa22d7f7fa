-- name: ExtendLeases :many
-- Caller: broker lease extension. Every live lease of the id moves to the later
-- of its expiry and now + @seconds; expired ones are not revived. The lock comes
-- before the stamp. Plan: cursors_queue_id_lease_id_idx.
WITH found AS MATERIALIZED (
  SELECT c.partition_id, c.group_id FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.lease_id = @lease_id::uuid
),
held AS MATERIALIZED (
  SELECT f.partition_id, f.group_id
  FROM (SELECT x.partition_id, x.group_id FROM found x ORDER BY x.partition_id, x.group_id) f
  CROSS JOIN LATERAL (
    SELECT c.committed FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = f.partition_id AND c.group_id = f.group_id
      AND c.lease_id = @lease_id::uuid
    ORDER BY c.committed DESC LIMIT 1
    FOR NO KEY UPDATE
  ) c
),
moment AS MATERIALIZED (
  -- Depends on held, so it is evaluated once the locks are there.
  SELECT queen.clock() AS now WHERE (SELECT count(*) FROM held) > 0
)
UPDATE queen.cursors c
SET lease_expires_at = greatest(c.lease_expires_at, m.now + make_interval(secs => @seconds::int)),
    ready_at = greatest(c.lease_expires_at, m.now + make_interval(secs => @seconds::int))
FROM held h, moment m
WHERE c.queue_id = @queue_id AND c.partition_id = h.partition_id AND c.group_id = h.group_id
  AND c.lease_id = @lease_id::uuid AND c.lease_expires_at > m.now
RETURNING c.lease_expires_at::timestamptz AS lease_expires_at;

-- name: ReleaseLeases :many
-- Caller: broker pop, when the answer reached nobody. The batch is ready again
-- at once and the attempt is taken back. Plan: cursors_queue_id_lease_id_idx.
WITH found AS MATERIALIZED (
  SELECT c.partition_id, c.group_id FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.lease_id = @lease_id::uuid
),
held AS MATERIALIZED (
  SELECT f.partition_id, f.group_id
  FROM (SELECT x.partition_id, x.group_id FROM found x ORDER BY x.partition_id, x.group_id) f
  CROSS JOIN LATERAL (
    SELECT c.committed FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = f.partition_id AND c.group_id = f.group_id
      AND c.lease_id = @lease_id::uuid
    ORDER BY c.committed DESC LIMIT 1
    FOR NO KEY UPDATE
  ) c
)
UPDATE queen.cursors c
SET ready_at = t.now, batch_end = NULL, lease_id = NULL, lease_expires_at = NULL, lease_count = 0,
    lease_conflated = false,
    attempt_offset = CASE WHEN c.attempt_count > 1 THEN c.attempt_offset END,
    attempt_count = greatest(c.attempt_count - 1, 0)
FROM held h, (SELECT queen.clock() AS now) t
WHERE c.queue_id = @queue_id AND c.partition_id = h.partition_id AND c.group_id = h.group_id
  AND c.lease_id = @lease_id::uuid AND c.lease_expires_at > t.now
RETURNING c.group_id;
