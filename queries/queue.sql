-- Queues: configuration, deletion, listings.

-- name: UpdateQueue :exec
-- Caller: configure, after LockQueue, so that concurrent edits merge onto each
-- other's result.
UPDATE queen.queues q SET version = q.version + 1,
  namespace = @namespace, task = @task, priority = @priority, lease_time = @lease_time, retry_limit = @retry_limit,
  retry_delay = @retry_delay, max_size = @max_size, ttl = @ttl, dead_letter_queue = @dead_letter_queue,
  dlq_after_max_retries = @dlq_after_max_retries, delayed_processing = @delayed_processing,
  window_buffer = @window_buffer, retention_enabled = @retention_enabled, retention_seconds = @retention_seconds,
  completed_retention_seconds = @completed_retention_seconds, max_wait_time_seconds = @max_wait_time_seconds,
  min_pop_wait_time = @min_pop_wait_time, encryption_enabled = @encryption_enabled,
  dedup_window_seconds = @dedup_window_seconds, retention_sink_hold = @retention_sink_hold,
  retention_sink_hold_max_seconds = @retention_sink_hold_max_seconds,
  id_class = @id_class, id_class_before = @id_class_before, id_class_until = sqlc.narg(id_class_until)::timestamptz
WHERE q.id = @id;

-- name: WakeHeldCursors :exec
-- Caller: configure, when a hold (delayedProcessing, windowBuffer) changed: the
-- held cursors are looked at again. Leased ones keep their time.
UPDATE queen.cursors c SET ready_at = t.now
FROM (SELECT queen.clock() AS now) t
WHERE c.queue_id = @queue_id AND c.ready_at > t.now AND c.lease_id IS NULL;

-- name: ReadClock :one
SELECT queen.clock()::timestamptz AS now;

-- name: DeleteQueue :execrows
DELETE FROM queen.queues q WHERE q.id = @id;

-- name: LockAllPartitions :exec
-- Caller: deletion, in the order of every other lock.
SELECT p.id FROM queen.partitions p WHERE p.queue_id = @queue_id ORDER BY p.id FOR UPDATE;

-- name: DeleteQueueCursors :exec
DELETE FROM queen.cursors c WHERE c.queue_id = @queue_id;

-- name: DeleteQueuePartitions :exec
DELETE FROM queen.partitions p WHERE p.queue_id = @queue_id;

-- name: DeleteQueueGroups :exec
DELETE FROM queen.consumer_groups g WHERE g.queue_id = @queue_id;

-- name: DeleteQueueDeadLetters :exec
DELETE FROM queen.dead_letters d WHERE d.queue_id = @queue_id;

-- name: DropQueue :exec
-- Its segments are the janitor's from here on; its ids run out with their slices.
INSERT INTO queen.dropped_queues (queue_id, dropped_at) VALUES (@queue_id, queen.clock());

-- name: ListQueues :many
-- Caller: queue list and discovery. Plan: unique index on (tenant, name).
SELECT q.* FROM queen.queues q
WHERE q.tenant = @tenant AND (@namespace::text = '' OR q.namespace = @namespace) AND (@task::text = '' OR q.task = @task)
ORDER BY q.name LIMIT @max_rows OFFSET @skip_rows;

-- name: CountSegments :one
-- Caller: queue list and detail. What the retained segments hold. Reads the
-- queue's segment rows, never their bodies.
SELECT count(*) AS segments, coalesce(sum(octet_length(s.body)), 0)::bigint AS bytes
FROM queen.segments s WHERE s.queue_id = @queue_id;

-- name: ListBacklog :many
-- Caller: queue detail and depth. Per partition: the backlog of the slowest of
-- the groups that count (@group_name if given; else the named ones; else queue
-- mode), and the part of it under live leases. Plan: primary keys.
WITH g AS MATERIALIZED (
  SELECT g.id, g.name FROM queen.consumer_groups g
  WHERE g.queue_id = @queue_id
    AND CASE WHEN @group_name::text <> '' THEN g.name = @group_name
             ELSE g.name <> '__QUEUE_MODE__' OR NOT EXISTS (
               SELECT FROM queen.consumer_groups n WHERE n.queue_id = @queue_id AND n.name <> '__QUEUE_MODE__') END
)
SELECT p.id, p.name, p.created_at, p.last_offset, p.log_start, p.oldest_at, p.last_write_at,
       coalesce(b.pending, p.last_offset - p.log_start + 1)::bigint AS pending, coalesce(b.processing, 0)::bigint AS processing
FROM queen.partitions p
LEFT JOIN LATERAL (
  SELECT greatest(p.last_offset - greatest(c.committed, p.log_start - 1), 0) AS pending,
         CASE WHEN c.lease_expires_at > queen.clock()
              THEN greatest(least(c.batch_end, p.last_offset) - greatest(c.committed, p.log_start - 1), 0) ELSE 0 END AS processing
  FROM g JOIN queen.cursors c ON c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = g.id
  ORDER BY 1 DESC, 2 DESC LIMIT 1
) b ON true
WHERE p.queue_id = @queue_id
ORDER BY p.name;
