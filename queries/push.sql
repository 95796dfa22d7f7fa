-- Push: lock the partitions, then append. Two statements of one transaction,
-- because the second needs a snapshot taken after the lock of the first.

-- name: LockPartitions :exec
-- Caller: broker push. Locks the partition rows in ascending id order; the row
-- lock is the write serialiser of a partition. A gathered transaction sends
-- this for all its queues, in ascending queue order, before the first append.
-- Plan: one probe of partitions_name_key per name, then of the primary key in
-- id order. (Here as in the other hot statements a LATERAL that locks, limits or
-- aggregates keeps the planner from ever reading all partitions of a queue, which
-- looks cheap to it while the tables are small. And all of them look for the
-- newest version of a row first: while a snapshot is held open somewhere, every
-- version since is still there. The last column of a primary key rises with the
-- versions. A name does not, but equal entries are in the order of the table, so
-- it is looked for from the end: by bounds, since the planner would drop the
-- order of what it knows to be equal.)
WITH named AS MATERIALIZED (
  SELECT p.id
  FROM (SELECT unnest(@names::text[]) AS name) n
  CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.name >= n.name AND p.name <= n.name
    ORDER BY p.name DESC LIMIT 1
  ) p
)
SELECT p.id
FROM (SELECT n.id FROM named n ORDER BY n.id) n
CROSS JOIN LATERAL (
  SELECT p.id FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.id = n.id
  ORDER BY p.epoch DESC LIMIT 1 FOR NO KEY UPDATE
) p;

-- name: AppendSegments :many
-- Caller: broker push, after LockPartitions. Appends the segments of the runs
-- (one run: the new messages of one partition, as one or more segments) that
-- hold no id stored inside the dedup window, and makes waiting cursors ready.
-- Answers one row (item -1: first offset) per run that was appended, and one
-- row per item whose id is already stored (its offset; that run was not
-- appended). A run without a row: its partition is gone, or was made so lately
-- that LockPartitions did not see it and it is not locked, or the queue's options
-- are not those of @version (below zero: any will do).
-- Locks: cursors that become ready, in (partition, group) order; the partitions
-- are locked already. Plan: nested loops over primary keys and the id index.
WITH fence AS MATERIALIZED (
  SELECT t.now, t.now + make_interval(secs => greatest(q.delayed_processing, q.window_buffer, 0)) AS due
  FROM queen.queues q, (SELECT queen.clock() AS now) t
  WHERE q.id = @queue_id AND (q.version = @version OR @version < 0)
),
run AS MATERIALIZED (
  SELECT i.run, i.name, i.run_count, p.id AS partition_id, p.epoch, p.last_offset, p.last_write_at
  FROM (SELECT unnest(@runs::int[]) AS run, unnest(@run_names::text[]) AS name,
               unnest(@run_counts::int[]) AS run_count) i
  LEFT JOIN LATERAL (
    SELECT p.id, p.epoch, p.last_offset, p.last_write_at, queen.locked_here(p.xmax) AS here FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.name >= i.name AND p.name <= i.name
    ORDER BY p.name DESC LIMIT 1
  ) p ON p.here
),
-- Runs are numbered from 0 without a gap: items find theirs by subscript.
place AS MATERIALIZED (
  SELECT array_agg(r.partition_id ORDER BY r.run) AS partition_ids, array_agg(r.last_offset ORDER BY r.run) AS last_offsets
  FROM run r
),
item AS MATERIALIZED (
  SELECT m.run, m.pos, m.id_hash, m.probe, a.partition_ids[m.run + 1] AS partition_id,
         a.last_offsets[m.run + 1] + 1 + m.pos AS message_offset
  FROM (SELECT unnest(@item_runs::int[]) AS run, unnest(@item_positions::int[]) AS pos,
               unnest(@item_hashes::uuid[]) AS id_hash, unnest(@item_probes::bool[]) AS probe) m, place a
),
stored AS MATERIALIZED (
  SELECT i.run, i.pos, i.partition_id, d.message_offset
  FROM item i
  CROSS JOIN LATERAL (
    SELECT min(d.message_offset) AS message_offset
    FROM queen.message_ids d
    WHERE d.queue_id = @queue_id AND d.partition_id = i.partition_id AND d.id_hash = i.id_hash
      AND (d.window_class = @id_class OR d.window_class = @id_class_before)
      AND d.created_at > queen.clock() - make_interval(secs => @dedup_seconds::int)
      -- Slices made ahead hold nothing yet.
      AND d.created_at < queen.clock() + interval '5 minutes'
  ) d
  WHERE i.probe AND i.partition_id IS NOT NULL AND d.message_offset IS NOT NULL
),
verdict AS MATERIALIZED ( -- stamp is NULL for a run that is not appended
  SELECT r.run, r.name, r.run_count, r.partition_id, r.epoch, r.last_offset, f.due,
         CASE WHEN r.partition_id IS NOT NULL AND r.run <> ALL (ARRAY(SELECT s.run FROM stored s))
              THEN greatest(f.now, r.last_write_at) END AS stamp
  FROM run r, fence f
),
stamp AS MATERIALIZED (SELECT array_agg(v.stamp ORDER BY v.run) AS stamps FROM verdict v),
segment AS (
  INSERT INTO queen.segments (queue_id, partition_id, end_offset, created_at, message_count, ends, marks, body)
  SELECT @queue_id, a.partition_ids[s.run + 1], a.last_offsets[s.run + 1] + s.last_pos + 1, t.stamps[s.run + 1],
         s.message_count, s.ends, s.marks, s.body
  FROM (SELECT unnest(@segment_runs::int[]) AS run, unnest(@segment_last_positions::int[]) AS last_pos,
               unnest(@segment_counts::int[]) AS message_count, unnest(@segment_ends::bytea[]) AS ends,
               unnest(@segment_marks::bytea[]) AS marks, unnest(@segment_bodies::text[]) AS body) s, place a, stamp t
  WHERE t.stamps[s.run + 1] IS NOT NULL
),
ids AS (
  INSERT INTO queen.message_ids (window_class, created_at, queue_id, partition_id, message_offset, id_hash)
  SELECT @id_class, t.stamps[i.run + 1], @queue_id, i.partition_id, i.message_offset, i.id_hash
  FROM item i, stamp t
  WHERE t.stamps[i.run + 1] IS NOT NULL
),
head AS (
  -- As in the other hot statements, rows that are locked already are updated by
  -- way of an upsert: it finds each through the unique index, whatever the
  -- planner believes of the table. It never inserts. What a key column is to
  -- become travels in another one.
  INSERT INTO queen.partitions AS p (queue_id, id, epoch, name, created_at, last_offset, last_write_at)
    OVERRIDING SYSTEM VALUE
  SELECT @queue_id, v.partition_id, v.epoch, v.name, v.stamp, v.run_count, v.stamp
  FROM verdict v WHERE v.stamp IS NOT NULL
  ON CONFLICT ON CONSTRAINT partitions_epoch_pkey DO UPDATE
  SET last_offset = p.last_offset + excluded.last_offset, last_write_at = excluded.last_write_at,
      epoch = (p.last_offset + excluded.last_offset) / 1024,
      oldest_at = CASE WHEN p.last_offset < p.log_start THEN excluded.last_write_at ELSE p.oldest_at END
),
idle AS MATERIALIZED (
  SELECT v.partition_id, c.group_id, c.committed, v.due
  FROM (SELECT w.partition_id, w.last_offset, w.due FROM verdict w WHERE w.stamp IS NOT NULL ORDER BY w.partition_id) v
  CROSS JOIN LATERAL (
    SELECT c.group_id, c.committed FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = v.partition_id AND c.ready_at IS NULL
      AND c.committed >= v.last_offset -- else it would not be drained
    ORDER BY c.committed, c.group_id -- by group, since nobody is further than the end
    FOR NO KEY UPDATE
  ) c
),
ready AS (
  INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed, ready_at)
  SELECT @queue_id, i.partition_id, i.group_id, i.committed, i.due FROM idle i
  ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE SET ready_at = excluded.ready_at
)
SELECT v.run::int AS run, -1 AS pos, v.partition_id::bigint AS partition_id, (v.last_offset + 1)::bigint AS message_offset
FROM verdict v WHERE v.stamp IS NOT NULL
UNION ALL
SELECT s.run::int, s.pos, s.partition_id::bigint, s.message_offset::bigint FROM stored s;

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
SELECT @queue_id, m.id, g.id, -1 FROM made m, queen.consumer_groups g WHERE g.queue_id = @queue_id;

-- name: EnsureIDSlices :exec
-- Caller: a push that found no slice of message_ids for now, and the janitor.
SELECT queen.ensure_id_slices(@id_class::smallint, queen.clock());

-- name: FindPartition :one
-- Caller: reads that address one partition by name.
SELECT p.id, p.last_offset, p.log_start, p.created_at, p.last_write_at FROM queen.partitions p
WHERE p.queue_id = @queue_id AND p.name = @name;
