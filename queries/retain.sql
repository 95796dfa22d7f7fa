-- What the janitor does, each statement a bounded step that commits by itself.

-- name: TakeJanitorLease :execrows
-- One broker runs a loop at a time: the row is taken when it is free, ours or over.
INSERT INTO queen.janitor_leases AS l (loop_name, holder, expires_at)
SELECT @loop_name, @holder, t.now + make_interval(secs => @seconds::float8) FROM (SELECT queen.clock() AS now) t
ON CONFLICT ON CONSTRAINT janitor_leases_pkey DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE l.holder = excluded.holder OR l.expires_at <= excluded.expires_at - make_interval(secs => @seconds::float8);

-- name: DropJanitorLease :exec
DELETE FROM queen.janitor_leases l WHERE l.loop_name = @loop_name AND l.holder = @holder;

-- name: ListRetainingQueues :many
-- The queues that have a retention rule. Plan: scan of queues, thousands at most.
SELECT q.id, q.retention_enabled, q.retention_seconds, q.completed_retention_seconds, q.max_wait_time_seconds
FROM queen.queues q
WHERE q.max_wait_time_seconds > 0
   OR (q.retention_enabled AND (q.retention_seconds > 0 OR q.completed_retention_seconds > 0))
ORDER BY q.id;

-- name: ListAgedPartitions :many
-- The partitions of a queue whose oldest message is older than @older_seconds,
-- oldest first, after a position. Idle and empty partitions are never read.
-- Plan: partitions_queue_id_oldest_at_idx.
SELECT p.id, p.oldest_at::timestamptz AS oldest_at FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.oldest_at < queen.clock() - make_interval(secs => @older_seconds::int)
  AND (p.oldest_at, p.id) > (@after_at::timestamptz, @after_id::bigint)
ORDER BY p.oldest_at, p.id LIMIT @step;

-- name: LockPartition :exec
SELECT p.id FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.id = @id FOR NO KEY UPDATE;

-- name: TrimPartition :one
-- Removes up to @step segments from the front of a partition: those older than
-- @older_seconds (0: no such rule), and those older than @completed_seconds (0: no
-- such rule) that every group has passed. After LockPartition, so that pushes to
-- this one partition wait for one short step. Whole segments only.
WITH t AS MATERIALIZED (SELECT queen.clock() AS now),
passed AS MATERIALIZED (
  SELECT min(c.committed) AS committed FROM queen.cursors c
  WHERE c.queue_id = @queue_id AND c.partition_id = @id
),
old AS MATERIALIZED (
  SELECT s.end_offset, s.message_count, s.created_at FROM queen.segments s
  WHERE s.queue_id = @queue_id AND s.partition_id = @id
  ORDER BY s.end_offset LIMIT @step
),
doomed AS MATERIALIZED (
  SELECT o.end_offset, o.message_count FROM old o, t, passed p
  WHERE (@older_seconds::int > 0 AND o.created_at < t.now - make_interval(secs => @older_seconds::int))
     OR (@completed_seconds::int > 0 AND o.created_at < t.now - make_interval(secs => @completed_seconds::int)
         AND o.end_offset <= p.committed)
),
gone AS (
  DELETE FROM queen.segments s USING doomed d
  WHERE s.queue_id = @queue_id AND s.partition_id = @id AND s.end_offset = d.end_offset
),
head AS (
  UPDATE queen.partitions p
  SET log_start = d.end_offset + 1,
      oldest_at = (SELECT s.created_at FROM queen.segments s
                   WHERE s.queue_id = @queue_id AND s.partition_id = @id AND s.end_offset > d.end_offset
                   ORDER BY s.end_offset LIMIT 1)
  FROM (SELECT max(d.end_offset) AS end_offset FROM doomed d) d
  WHERE p.queue_id = @queue_id AND p.id = @id AND d.end_offset IS NOT NULL
)
SELECT count(*)::int AS segments, coalesce(sum(d.message_count), 0)::bigint AS messages FROM doomed d;

-- name: ListIdlePartitions :many
-- Partitions that are empty and were last written long ago, a queue at a time.
SELECT p.id FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id > @after_id AND p.oldest_at IS NULL
  AND coalesce(p.last_write_at, p.created_at) < queen.clock() - make_interval(days => @idle_days::int)
ORDER BY p.id LIMIT @step;

-- name: DropIdleCursors :exec
-- After LockPartition; with DropIdlePartition in one transaction.
DELETE FROM queen.cursors c USING queen.partitions p
WHERE p.queue_id = @queue_id AND p.id = @id AND p.last_offset < p.log_start
  AND c.queue_id = @queue_id AND c.partition_id = p.id
  AND NOT EXISTS (SELECT FROM queen.dead_letters d WHERE d.queue_id = @queue_id AND d.partition_id = @id)
  AND NOT EXISTS (SELECT FROM queen.cursors l WHERE l.queue_id = @queue_id AND l.partition_id = @id
                  AND (l.lease_expires_at > queen.clock()
                       OR l.consumed_at > queen.clock() - make_interval(days => @idle_days::int)));

-- name: DropIdlePartition :execrows
-- After DropIdleCursors: a partition that still has cursors was spared there.
DELETE FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id = @id AND p.last_offset < p.log_start
  AND NOT EXISTS (SELECT FROM queen.dead_letters d WHERE d.queue_id = @queue_id AND d.partition_id = @id)
  AND NOT EXISTS (SELECT FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.partition_id = @id);

-- name: ListQueueIDs :many
SELECT q.id FROM queen.queues q WHERE q.id > @after_id ORDER BY q.id LIMIT @step;

-- name: ListDroppedQueues :many
SELECT d.queue_id FROM queen.dropped_queues d ORDER BY d.queue_id;

-- name: RemoveDroppedSegments :one
-- Plan: primary key prefix, per hash partition.
WITH doomed AS MATERIALIZED (
  SELECT s.partition_id, s.end_offset FROM queen.segments s WHERE s.queue_id = @queue_id LIMIT @step
),
gone AS (
  DELETE FROM queen.segments s USING doomed d
  WHERE s.queue_id = @queue_id AND s.partition_id = d.partition_id AND s.end_offset = d.end_offset
)
SELECT count(*)::int FROM doomed;

-- name: ForgetDroppedQueue :exec
DELETE FROM queen.dropped_queues d WHERE d.queue_id = @queue_id;

-- name: ListIDSlices :many
-- The slices of message_ids, with the class and the end of each, and whether a
-- detach was left half done.
SELECT c.relname::text AS name, i.inhdetachpending AS detaching,
       pg_get_expr(c.relpartbound, c.oid)::text AS bound
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'queen.message_ids'::regclass
ORDER BY c.relname;

-- name: LongestIDWindow :one
-- For how long ids of a class are needed, in seconds, by the queues there are.
SELECT coalesce(max(greatest(q.dedup_window_seconds, q.completed_retention_seconds, 900)), 0)::bigint AS seconds,
       queen.clock()::timestamptz AS now
FROM queen.queues q
WHERE q.id_class = @id_class OR (q.id_class_before = @id_class AND q.id_class_until > queen.clock());

-- name: SettleIDClasses :execrows
-- Queues whose ids of the class before have run out probe one class again.
UPDATE queen.queues q SET id_class_before = q.id_class, id_class_until = NULL, version = q.version + 1
FROM (SELECT queen.clock() AS now) t
WHERE q.id_class_until <= t.now;
