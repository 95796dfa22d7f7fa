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
-- The next @step partitions of a queue whose oldest message is older than the
-- younger of its rules, oldest first, and which of them have something to
-- remove (not those that a group pins: they cost a look, never a lock). Partitions
-- that are empty or whose messages are young are not read at all.
-- Plan: partitions_queue_id_oldest_at_idx from a position on, then primary keys.
SELECT p.id, p.oldest_at::timestamptz AS oldest_at,
       ((@older_seconds::int > 0 AND p.oldest_at < queen.clock() - make_interval(secs => @older_seconds::int))
        OR (@completed_seconds::int > 0 AND (
          SELECT min(c.committed) FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.partition_id = p.id
        ) >= (
          SELECT s.end_offset FROM queen.segments s WHERE s.queue_id = @queue_id AND s.partition_id = p.id
          ORDER BY s.end_offset LIMIT 1
        )) IS TRUE)::bool AS removable
FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.oldest_at < queen.clock() - make_interval(secs => @aged_seconds::int)
  AND (p.oldest_at, p.id) > (@after_at::timestamptz, @after_id::bigint)
ORDER BY p.oldest_at, p.id LIMIT @step;

-- name: PrepareStep :exec
-- First in a step of the janitor that removes something. Bounds the wait for
-- locks: whoever is held up by a caller's long transaction comes back later
-- instead of waiting with it. And keeps to plans of index lookups: a step takes
-- few rows of tables that may be small today. Ends with the transaction.
SELECT set_config('lock_timeout', @wait::text, true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: LockPartition :exec
-- Caller: janitor, one partition a transaction. The lock that pushes take.
SELECT p.id FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.id = @id FOR NO KEY UPDATE;

-- name: TrimPartition :one
-- Removes segments from the front of a partition: those older than
-- @older_seconds (0: no such rule), and those older than @completed_seconds (0: no
-- such rule) that every group has passed. Whole segments only. created_at and
-- committed rise with the offset, so what is removed is a prefix. Bounded by
-- @step segments and @max_bytes of stored bodies (at least one segment), because
-- pushes to this one partition wait meanwhile. more: everything in reach went.
-- Caller: janitor, after LockPartition. Plan: primary keys only.
WITH t AS MATERIALIZED (SELECT queen.clock() AS now),
passed AS MATERIALIZED (
  SELECT min(c.committed) AS committed FROM queen.cursors c
  WHERE c.queue_id = @queue_id AND c.partition_id = @id
),
old AS MATERIALIZED (
  SELECT s.end_offset, s.message_count, s.created_at,
         sum(pg_column_size(s.body)) OVER (ORDER BY s.end_offset) - pg_column_size(s.body) AS bytes_ahead
  FROM (
    SELECT s.end_offset, s.message_count, s.created_at, s.body FROM queen.segments s
    WHERE s.queue_id = @queue_id AND s.partition_id = @id
    ORDER BY s.end_offset LIMIT @step
  ) s
),
reach AS MATERIALIZED (
  SELECT o.end_offset, o.message_count, o.created_at FROM old o WHERE o.bytes_ahead < @max_bytes::bigint
),
doomed AS MATERIALIZED (
  SELECT o.end_offset, o.message_count FROM reach o, t, passed p
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
SELECT coalesce(sum(d.message_count), 0)::bigint AS messages,
       (count(*) > 0 AND count(*) = (SELECT count(*) FROM reach))::bool AS more
FROM doomed d;

-- name: ListIdlePartitions :many
-- The next @step partitions of a queue, and which of them are empty and were
-- last written long ago. All of them are answered, so that a step reads a
-- bounded number of rows however few are idle. Plan: primary key.
SELECT p.id,
       (p.oldest_at IS NULL
        AND coalesce(p.last_write_at, p.created_at) < queen.clock() - make_interval(days => @idle_days::int))::bool AS idle
FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id > @after_id
ORDER BY p.id LIMIT @step;

-- name: DropIdleCursors :exec
-- Caller: janitor, after LockPartition; with DropIdlePartition in one
-- transaction. Deletes the cursors of a partition that is idle still, and of
-- which no group has a live lease or completed anything in that time.
-- Locks: cursors, the partition being locked. Plan: primary keys, and the id
-- index of dead letters.
DELETE FROM queen.cursors c USING queen.partitions p
WHERE p.queue_id = @queue_id AND p.id = @id AND p.last_offset < p.log_start
  AND coalesce(p.last_write_at, p.created_at) < queen.clock() - make_interval(days => @idle_days::int)
  AND c.queue_id = @queue_id AND c.partition_id = p.id
  AND NOT EXISTS (SELECT FROM queen.dead_letters d WHERE d.queue_id = @queue_id AND d.partition_id = @id)
  AND NOT EXISTS (SELECT FROM queen.cursors l WHERE l.queue_id = @queue_id AND l.partition_id = @id
                  AND (l.lease_expires_at > queen.clock()
                       OR l.consumed_at > queen.clock() - make_interval(days => @idle_days::int)));

-- name: DropIdlePartition :execrows
-- After DropIdleCursors: a partition that still has cursors was spared there.
DELETE FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.id = @id AND p.last_offset < p.log_start
  AND coalesce(p.last_write_at, p.created_at) < queen.clock() - make_interval(days => @idle_days::int)
  AND NOT EXISTS (SELECT FROM queen.dead_letters d WHERE d.queue_id = @queue_id AND d.partition_id = @id)
  AND NOT EXISTS (SELECT FROM queen.cursors c WHERE c.queue_id = @queue_id AND c.partition_id = @id);

-- name: ListQueueIDs :many
SELECT q.id FROM queen.queues q WHERE q.id > @after_id ORDER BY q.id LIMIT @step;

-- name: ListDroppedQueues :many
SELECT d.queue_id FROM queen.dropped_queues d ORDER BY d.queue_id;

-- name: RemoveDroppedSegments :one
-- Caller: janitor, after PrepareStep.
-- Plan: primary key prefix, merged over the hash partitions: the order is that
-- of the key, so that no plan reads another queue's rows to find this one's.
WITH doomed AS MATERIALIZED (
  SELECT s.partition_id, s.end_offset FROM queen.segments s
  WHERE s.queue_id = @queue_id
  ORDER BY s.partition_id, s.end_offset LIMIT @step
),
gone AS (
  DELETE FROM queen.segments s USING doomed d
  WHERE s.queue_id = @queue_id AND s.partition_id = d.partition_id AND s.end_offset = d.end_offset
)
SELECT count(*)::int FROM doomed;

-- name: ForgetDroppedQueue :exec
DELETE FROM queen.dropped_queues d WHERE d.queue_id = @queue_id;

-- name: ListSpentIDSlices :many
-- The slices of message_ids to drop: those whose end lies further back than the
-- queues of their class need ids for, those whose detach was left half done, and
-- those that were detached and never dropped. Half-done ones come first: they are
-- in the way of any other detach. A bound is printed and read back in one
-- session, so its time zone does not matter. Plan: catalogs, scan of queues.
WITH slice AS MATERIALIZED (
  SELECT c.relname::text AS name, substring(c.relname FROM 13 FOR 1)::smallint AS id_class,
         (i.inhrelid IS NOT NULL)::bool AS attached, coalesce(i.inhdetachpending, false)::bool AS detaching,
         substring(pg_get_expr(c.relpartbound, c.oid) FROM $re$TO \('?[0-9]+'?, '([^']+)'\)$re$)::timestamptz AS ends_at
  FROM pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
  WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^message_ids_[0-2]_[0-9]{12}$'
)
SELECT s.name, s.attached, s.detaching
FROM slice s, (SELECT queen.clock() AS now) t
WHERE s.detaching OR NOT s.attached OR s.ends_at <= t.now - make_interval(secs => coalesce((
  SELECT max(greatest(q.dedup_window_seconds, q.completed_retention_seconds, 900)) FROM queen.queues q
  WHERE q.id_class = s.id_class OR (q.id_class_before = s.id_class AND q.id_class_until > t.now)), 900))
ORDER BY s.detaching DESC, s.attached, s.name;

-- name: SettleIDClasses :execrows
-- Queues whose ids of the class before have run out probe one class again. A
-- queue that is locked is left for the next time.
UPDATE queen.queues q SET id_class_before = q.id_class, id_class_until = NULL, version = q.version + 1
FROM (
  SELECT x.id FROM queen.queues x WHERE x.id_class_until <= queen.clock()
  ORDER BY x.id FOR NO KEY UPDATE SKIP LOCKED
) spent
WHERE q.id = spent.id;
