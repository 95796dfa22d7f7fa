-- Push: lock the partitions, then append. Two statements of one transaction,
-- because the second needs a snapshot taken after the lock of the first.

-- name: LockPartitions :exec
-- Caller: broker push. Locks the partition rows in ascending id order; the row
-- lock is the write serialiser of a partition. A gathered transaction sends
-- this for all its queues, in ascending queue order, before the first append.
-- Plan: index scan on partitions_name_key per name, sort of the few rows found.
SELECT p.id FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.name = ANY (@names::text[])
ORDER BY p.id FOR NO KEY UPDATE;

-- name: AppendSegments :many
-- Caller: broker push, after LockPartitions. Appends the segments of the runs
-- (one run: the new messages of one partition, as one or more segments) that
-- hold no id stored inside the dedup window, and makes waiting cursors ready.
-- Answers one row (item -1: first offset) per run that was appended, and one
-- row per item whose id is already stored (its offset; that run was not
-- appended). A run without a row: its partition is gone, or was made so lately
-- that LockPartitions did not see it and it is not locked, or the queue's options
-- are not those of @version.
-- Locks: cursors that become ready, in (partition, group) order; the partitions
-- are locked already. Plan: nested loops over primary keys and the id index.
WITH fence AS MATERIALIZED (
  SELECT t.now, t.now + make_interval(secs => greatest(q.delayed_processing, q.window_buffer, 0)) AS due
  FROM queen.queues q, (SELECT queen.clock() AS now) t
  WHERE q.id = @queue_id AND q.version = @version
),
run AS MATERIALIZED (
  SELECT i.run, i.run_count, p.id AS partition_id, p.last_offset, p.log_start, p.last_write_at
  FROM (SELECT unnest(@runs::int[]) AS run, unnest(@run_names::text[]) AS name,
               unnest(@run_counts::int[]) AS run_count) i
  JOIN queen.partitions p ON p.queue_id = @queue_id AND p.name = i.name AND queen.locked_here(p.xmax)
),
item AS MATERIALIZED (
  SELECT r.run, r.partition_id, m.pos, r.last_offset + 1 + m.pos AS message_offset, m.id_hash, m.probe
  FROM (SELECT unnest(@item_runs::int[]) AS run, unnest(@item_positions::int[]) AS pos,
               unnest(@item_hashes::uuid[]) AS id_hash, unnest(@item_probes::bool[]) AS probe) m
  JOIN run r ON r.run = m.run
),
stored AS MATERIALIZED (
  SELECT i.run, i.pos, i.partition_id, min(d.message_offset) AS message_offset
  FROM item i
  JOIN queen.message_ids d
    ON d.queue_id = @queue_id AND d.partition_id = i.partition_id AND d.id_hash = i.id_hash
   AND (d.window_class = @id_class OR d.window_class = @id_class_before)
   AND d.created_at > queen.clock() - make_interval(secs => @dedup_seconds::int)
  WHERE i.probe
  GROUP BY i.run, i.pos, i.partition_id
),
fresh AS MATERIALIZED (
  SELECT r.run, r.run_count, r.partition_id, r.last_offset, greatest(f.now, r.last_write_at) AS stamp, f.due
  FROM run r, fence f
  WHERE NOT EXISTS (SELECT FROM stored s WHERE s.run = r.run)
),
segment AS (
  INSERT INTO queen.segments (queue_id, partition_id, end_offset, created_at, message_count, ends, marks, body)
  SELECT @queue_id, f.partition_id, f.last_offset + s.last_pos + 1, f.stamp, s.message_count, s.ends, s.marks, s.body
  FROM (SELECT unnest(@segment_runs::int[]) AS run, unnest(@segment_last_positions::int[]) AS last_pos,
               unnest(@segment_counts::int[]) AS message_count, unnest(@segment_ends::bytea[]) AS ends,
               unnest(@segment_marks::bytea[]) AS marks, unnest(@segment_bodies::text[]) AS body) s
  JOIN fresh f ON f.run = s.run
),
ids AS (
  INSERT INTO queen.message_ids (window_class, created_at, queue_id, partition_id, message_offset, id_hash)
  SELECT @id_class, f.stamp, @queue_id, i.partition_id, i.message_offset, i.id_hash
  FROM item i JOIN fresh f ON f.run = i.run
),
head AS (
  UPDATE queen.partitions p
  SET last_offset = p.last_offset + f.run_count, last_write_at = f.stamp,
      oldest_at = CASE WHEN p.last_offset < p.log_start THEN f.stamp ELSE p.oldest_at END
  FROM fresh f
  WHERE p.queue_id = @queue_id AND p.id = f.partition_id
),
idle AS MATERIALIZED (
  SELECT c.partition_id, c.group_id, f.due
  FROM fresh f
  JOIN queen.cursors c ON c.queue_id = @queue_id AND c.partition_id = f.partition_id
  WHERE c.ready_at IS NULL
  ORDER BY c.partition_id, c.group_id
  FOR NO KEY UPDATE OF c
),
ready AS (
  UPDATE queen.cursors c SET ready_at = i.due
  FROM idle i
  WHERE c.queue_id = @queue_id AND c.partition_id = i.partition_id AND c.group_id = i.group_id
)
SELECT f.run::int AS run, -1 AS pos, f.partition_id, (f.last_offset + 1)::bigint AS message_offset FROM fresh f
UNION ALL
SELECT s.run::int, s.pos, s.partition_id, s.message_offset::bigint FROM stored s;

-- name: FindQueue :one
-- Caller: broker, on a cache miss. Plan: unique index on (tenant, name).
SELECT q.* FROM queen.queues q WHERE q.tenant = @tenant AND q.name = @name;

-- name: FindQueueByID :one
-- Caller: broker, to check who owns the partition named in an ack.
SELECT q.* FROM queen.queues q WHERE q.id = @id;

-- name: CreateQueue :exec
-- Caller: first use of a name, and configure. A queue that exists is left
-- alone. Locks: the new row.
INSERT INTO queen.queues (tenant, name, created_at, namespace, task, priority, lease_time, retry_limit,
  retry_delay, max_size, ttl, dead_letter_queue, dlq_after_max_retries, delayed_processing, window_buffer,
  retention_enabled, retention_seconds, completed_retention_seconds, max_wait_time_seconds, min_pop_wait_time,
  encryption_enabled, dedup_window_seconds, retention_sink_hold, retention_sink_hold_max_seconds,
  id_class, id_class_before)
VALUES (@tenant, @name, queen.clock(), @namespace, @task, @priority, @lease_time, @retry_limit,
  @retry_delay, @max_size, @ttl, @dead_letter_queue, @dlq_after_max_retries, @delayed_processing, @window_buffer,
  @retention_enabled, @retention_seconds, @completed_retention_seconds, @max_wait_time_seconds, @min_pop_wait_time,
  @encryption_enabled, @dedup_window_seconds, @retention_sink_hold, @retention_sink_hold_max_seconds,
  @id_class, @id_class)
ON CONFLICT ON CONSTRAINT queues_tenant_name_key DO NOTHING;

-- name: ShareQueue :exec
-- Caller: creation of partitions. Taken before CreatePartitions, against the
-- registration of a group (LockQueue): every (partition, group) pair gets its
-- cursor from one of the two. Locks: the queue row, shared.
SELECT q.id FROM queen.queues q WHERE q.id = @id FOR SHARE;

-- name: CreatePartitions :exec
-- Caller: first push that names them, after ShareQueue. Names come sorted, so
-- that concurrent makers wait for each other in one order. New partitions get
-- a cursor of every group, drained.
WITH made AS (
  INSERT INTO queen.partitions (queue_id, name, created_at)
  SELECT q.id, n.name, n.now
  FROM (SELECT unnest(@names::text[]) AS name, queen.clock() AS now) n, queen.queues q
  WHERE q.id = @queue_id
  ORDER BY n.name
  ON CONFLICT ON CONSTRAINT partitions_name_key DO NOTHING
  RETURNING id
)
INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed)
SELECT @queue_id, m.id, g.id, -1 FROM made m, queen.consumer_groups g WHERE g.queue_id = @queue_id
ON CONFLICT ON CONSTRAINT cursors_pkey DO NOTHING;

-- name: EnsureIDSlices :exec
-- Caller: a push that found no slice of message_ids for now, and the janitor.
SELECT queen.ensure_id_slices(@id_class::smallint, queen.clock());

-- name: ReadMessageAt :one
-- Caller: a push that has to name the original of a duplicate; lookups by id.
-- The segment that holds an offset: one forward probe of the primary key.
SELECT s.end_offset, s.message_count, s.created_at, s.ends, s.body FROM queen.segments s
WHERE s.queue_id = @queue_id AND s.partition_id = @partition_id AND s.end_offset >= @message_offset
ORDER BY s.end_offset LIMIT 1;

-- name: FindPartition :one
-- Caller: reads that address one partition by name.
SELECT p.id, p.last_offset, p.log_start, p.created_at, p.last_write_at FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.name = @name;
