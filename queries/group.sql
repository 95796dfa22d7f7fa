-- Consumer groups: registration on first contact, seeding of cursors, admin.

-- name: FindGroup :one
-- Caller: broker pop and ack, on a cache miss. Plan: unique index on the name.
SELECT g.* FROM queen.consumer_groups g WHERE g.queue_id = @queue_id AND g.name = @name;

-- name: LockQueue :exec
-- Caller: registration of a group, against the creation of partitions
-- (ShareQueue); configure. Locks: the queue row.
SELECT q.id FROM queen.queues q WHERE q.id = @id FOR NO KEY UPDATE;

-- name: RegisterGroup :exec
-- Caller: first contact of a group, after LockQueue. The first to come decides.
INSERT INTO queen.consumer_groups (queue_id, name, created_at, start_mode, start_at, conflation)
SELECT q.id, @name, t.now, @start_mode, sqlc.narg(start_at)::timestamptz, @conflation
FROM queen.queues q, (SELECT queen.clock() AS now) t
WHERE q.id = @queue_id
ON CONFLICT ON CONSTRAINT consumer_groups_name_key DO NOTHING;

-- name: LockGroup :exec
-- Caller: seeding, seek and deletion, first: one broker makes or removes cursors
-- of a group at a time. Locks: the group row.
SELECT g.id FROM queen.consumer_groups g WHERE g.queue_id = @queue_id AND g.id = @group_id FOR NO KEY UPDATE;

-- name: LockPartitionsToSeed :exec
-- Caller: seeding of a group, after LockGroup, a bounded step at a time. The lock on the
-- partition rows keeps a push in flight from missing the new cursor: either it
-- commits first and is seen, or it waits and sees the cursor.
-- Plan: range of the primary key.
SELECT p.id FROM queen.partitions p
WHERE p.queue_id = @queue_id
  AND p.id > (SELECT g.seeded_through FROM queen.consumer_groups g
              WHERE g.queue_id = @queue_id AND g.id = @group_id AND NOT g.seeded)
ORDER BY p.id LIMIT @step FOR SHARE OF p;

-- name: SeedCursors :one
-- Caller: seeding of a group, after LockPartitionsToSeed with the same step.
-- Where a cursor starts depends on the stored start only (new: what was stored
-- before the instant of registration is behind it), so steps may be late and
-- may be done by another broker. Answers whether the group is complete.
WITH g AS MATERIALIZED (
  SELECT g.id, g.start_mode, CASE g.start_mode WHEN 0 THEN g.created_at ELSE g.start_at END AS start_at, g.seeded_through
  FROM queen.consumer_groups g
  WHERE g.queue_id = @queue_id AND g.id = @group_id AND NOT g.seeded
  FOR NO KEY UPDATE
),
part AS MATERIALIZED (
  SELECT p.id, p.last_offset,
         CASE WHEN g.start_mode = 1 THEN p.log_start - 1
              WHEN p.last_write_at IS NULL THEN p.last_offset
              WHEN p.last_write_at < g.start_at THEN p.last_offset
              ELSE coalesce(queen.first_offset_at(@queue_id, p.id, g.start_at) - 1, p.last_offset) END AS committed
  FROM (
    SELECT p.id, p.last_offset, p.log_start, p.last_write_at FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id > (SELECT g.seeded_through FROM g)
    ORDER BY p.id LIMIT @step
  ) p CROSS JOIN g
),
seeded AS (
  INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed, ready_at)
  SELECT @queue_id, p.id, @group_id, p.committed, CASE WHEN p.last_offset > p.committed THEN t.now END
  FROM part p, (SELECT queen.clock() AS now) t
  -- A partition made since the group was registered has its cursor.
  WHERE NOT EXISTS (SELECT FROM queen.cursors c
                    WHERE c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = @group_id)
)
UPDATE queen.consumer_groups c
SET seeded_through = coalesce((SELECT max(p.id) FROM part p), c.seeded_through),
    seeded = (SELECT count(*) FROM part p) < @step::bigint
FROM g
WHERE c.queue_id = @queue_id AND c.id = g.id
RETURNING c.seeded;

-- name: NextReady :one
-- Caller: a pop that got nothing, to know whether there is anything, when to look
-- again without being woken (end of a lease or of a hold), and whether the group
-- it knows is still there. What is ready before @floor, or later than
-- @horizon_seconds from now, does not count: there are the dead entries of earlier
-- claims and leases. Transactions with numbers below oldest_running were over when
-- this looked; from next_number on none had been given out. Plan: first entry of
-- the claim index between the bounds.
SELECT (SELECT c.ready_at FROM queen.cursors c
        WHERE c.queue_id = @queue_id AND c.group_id = @group_id AND c.ready_at >= @floor
          AND c.ready_at <= queen.clock() + make_interval(secs => @horizon_seconds::float8)
        ORDER BY c.ready_at LIMIT 1)::timestamptz AS ready_at,
       t.now::timestamptz AS now, g.seeded,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_running,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_number
FROM queen.consumer_groups g, (SELECT queen.clock() AS now) t
WHERE g.queue_id = @queue_id AND g.id = @group_id;

-- name: NextReadyOf :one
-- As NextReady, for a pop of one partition. Plan: probes of partitions_name_key
-- and of the primary key.
SELECT (SELECT c.ready_at
        FROM (
          SELECT p.id FROM queen.partitions p
          WHERE p.queue_id = @queue_id AND p.name >= @partition_name AND p.name <= @partition_name
          ORDER BY p.name DESC LIMIT 1
        ) p
        CROSS JOIN LATERAL (
          SELECT c.ready_at FROM queen.cursors c
          WHERE c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = @group_id
          ORDER BY c.committed DESC LIMIT 1
        ) c)::timestamptz AS ready_at,
       t.now::timestamptz AS now, g.seeded
FROM queen.consumer_groups g, (SELECT queen.clock() AS now) t
WHERE g.queue_id = @queue_id AND g.id = @group_id;

-- name: ListGroupStats :many
-- Caller: the consumer group list, a queue at a time. Counts watermarks only.
SELECT g.name, g.start_mode, g.start_at, g.created_at, g.conflation,
       count(c.partition_id) AS cursors,
       count(*) FILTER (WHERE p.last_offset > greatest(c.committed, p.log_start - 1)) AS lagging,
       coalesce(sum(greatest(p.last_offset - greatest(c.committed, p.log_start - 1), 0)), 0)::bigint AS total_lag,
       (bool_or(c.consumed_at IS NOT NULL) IS TRUE)::bool AS consumed
FROM queen.consumer_groups g
LEFT JOIN queen.cursors c ON c.queue_id = @queue_id AND c.group_id = g.id
LEFT JOIN queen.partitions p ON p.queue_id = @queue_id AND p.id = c.partition_id
WHERE g.queue_id = @queue_id
GROUP BY g.queue_id, g.id
ORDER BY g.name;

-- name: ListGroupPartitions :many
-- Caller: detail and lag of groups, a queue at a time; @group_name empty means
-- every group of the queue. The age of the oldest unconsumed message is one
-- probe of the segments per lagging cursor.
SELECT g.name AS group_name, g.conflation, p.id, p.name, p.last_offset, p.log_start, c.committed,
       ((c.lease_expires_at > queen.clock()) IS TRUE)::bool AS leased,
       coalesce((SELECT s.created_at FROM queen.segments s
                 WHERE s.queue_id = @queue_id AND s.partition_id = p.id AND s.end_offset > c.committed
                   AND p.last_offset > c.committed
                 ORDER BY s.end_offset LIMIT 1), 'epoch')::timestamptz AS oldest_pending, queen.clock()::timestamptz AS now
FROM queen.consumer_groups g
JOIN queen.cursors c ON c.queue_id = @queue_id AND c.group_id = g.id
JOIN queen.partitions p ON p.queue_id = @queue_id AND p.id = c.partition_id
WHERE g.queue_id = @queue_id AND (@group_name::text = '' OR g.name = @group_name)
  AND (NOT @lagging_only::bool OR p.last_offset > c.committed)
ORDER BY p.name, g.name
LIMIT @max_rows;

-- name: LockPartitionsToSeek :many
-- Caller: seek, a step at a time, before SeekCursors, for the same reason as
-- LockPartitionsToSeed.
SELECT p.id FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id > @after_id AND (NOT @one::bool OR p.name = @name)
ORDER BY p.id LIMIT @step FOR SHARE;

-- name: AddMissingCursors :exec
-- Caller: seek, after LockGroup and LockPartitionsToSeek. A cursor that a
-- partition lacks, drained. The lock on the group keeps two from making it; a
-- group that is gone gets none.
INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed)
SELECT @queue_id, p.id, @group_id, p.last_offset
FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id = ANY (@ids::bigint[])
  AND EXISTS (SELECT FROM queen.consumer_groups g WHERE g.queue_id = @queue_id AND g.id = @group_id)
  AND NOT EXISTS (SELECT FROM queen.cursors c
                  WHERE c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = @group_id);

-- name: SeekCursors :exec
-- Caller: seek, after AddMissingCursors. Moves the cursors, ends their leases,
-- resets attempts and retries. Locks: the cursors, by partition.
INSERT INTO queen.cursors AS u (queue_id, partition_id, group_id, committed, batch_end, ready_at)
SELECT @queue_id, s.id, @group_id, c.committed, s.committed, CASE WHEN s.last_offset > s.committed THEN t.now END
FROM (
  SELECT p.id, p.last_offset,
         CASE WHEN @to_end::bool OR p.last_write_at IS NULL OR p.last_write_at < @at::timestamptz THEN p.last_offset
              ELSE coalesce(queen.first_offset_at(p.queue_id, p.id, @at::timestamptz) - 1, p.last_offset) END AS committed
  FROM queen.partitions p
  WHERE p.queue_id = @queue_id AND p.id = ANY (@ids::bigint[])
  ORDER BY p.id
) s
CROSS JOIN LATERAL (
  SELECT c.committed FROM queen.cursors c
  WHERE c.queue_id = @queue_id AND c.partition_id = s.id AND c.group_id = @group_id
  ORDER BY c.committed DESC LIMIT 1
  FOR NO KEY UPDATE
) c
CROSS JOIN (SELECT queen.clock() AS now) t
ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
SET committed = excluded.batch_end, ready_at = excluded.ready_at, batch_end = NULL, lease_id = NULL,
    lease_expires_at = NULL, lease_count = 0, lease_conflated = false, attempt_offset = NULL, attempt_count = 0,
    retry_count = 0;

-- name: SetGroupStart :execrows
-- Caller: subscription change. Moves no cursor.
UPDATE queen.consumer_groups g SET start_mode = 2, start_at = @start_at::timestamptz
WHERE g.queue_id = @queue_id AND g.name = @name;

-- name: DeleteCursors :execrows
-- Caller: deletion of a group.
DELETE FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.group_id = @group_id;

-- name: DeleteGroup :exec
DELETE FROM queen.consumer_groups g WHERE g.queue_id = @queue_id AND g.id = @group_id;

-- name: UnseedGroup :exec
-- Caller: deletion of a group that keeps its registration: first contact seeds
-- again from the record.
UPDATE queen.consumer_groups g SET seeded = false, seeded_through = -1
WHERE g.queue_id = @queue_id AND g.id = @group_id;
