-- Pop: one statement picks ready partitions, reads what fits, and writes the
-- lease. It never waits for a lock: a partition somebody else holds is skipped.

-- name: ClaimPartitions :many
-- Caller: broker pop. Claims up to @max_partitions ready partitions, oldest first
-- (@pinned: only the one of that name), and up to @max_messages
-- messages and about @max_bytes of bodies (always at least one segment) over
-- all of them. With @auto_commit the cursor moves and no lease is left.
-- Answers a row per segment, from_pos..to_pos being the messages of it that
-- were handed out. A cursor that was ready for nothing is put right on the way:
-- to when its first message becomes visible, or to drained.
-- Locks: cursors, and partition rows of drained cursors, all with SKIP LOCKED.
-- The lock on the partition row proves that no push is in flight, so a NULL
-- written to ready_at strands nothing.
-- Plan: claim index range scan with LIMIT, then primary keys; the only sorts
-- are of what was claimed.
WITH q AS MATERIALIZED (
  SELECT t.now, t.now - make_interval(secs => greatest(q.delayed_processing, 0)) AS visible_before,
         make_interval(secs => greatest(q.delayed_processing, q.window_buffer, 0)) AS hold,
         make_interval(secs => CASE WHEN @lease_seconds::int > 0 THEN @lease_seconds::int
                                    WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END) AS lease
  FROM queen.queues q, (SELECT queen.clock() AS now) t
  WHERE q.id = @queue_id
),
budget AS MATERIALIZED (SELECT @max_messages::bigint AS messages, @max_bytes::bigint AS bytes),
oldest AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at
  FROM queen.cursors c
  WHERE NOT @pinned::bool AND c.queue_id = @queue_id AND c.group_id = @group_id
    AND c.ready_at >= @floor AND c.ready_at <= queen.clock()
  ORDER BY c.ready_at LIMIT @max_partitions
  FOR NO KEY UPDATE SKIP LOCKED
),
named AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at
  FROM (
    SELECT p.id FROM queen.partitions p
    WHERE @pinned::bool AND p.queue_id = @queue_id AND p.name >= @partition_name AND p.name <= @partition_name
    ORDER BY p.name DESC LIMIT 1
  ) p
  CROSS JOIN LATERAL (
    SELECT c.partition_id, c.committed, c.ready_at FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = @group_id AND c.ready_at <= queen.clock()
    ORDER BY c.committed DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) c
),
candidate AS MATERIALIZED (
  SELECT o.partition_id, o.committed, o.ready_at FROM oldest o
  UNION ALL
  SELECT n.partition_id, n.committed, n.ready_at FROM named n
),
span AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at, p.name, p.last_offset,
         greatest(c.committed + 1, p.log_start) AS first_offset,
         (sum(greatest(p.last_offset - greatest(c.committed + 1, p.log_start) + 1, 0))
           OVER (ORDER BY c.ready_at, c.partition_id)
           - greatest(p.last_offset - greatest(c.committed + 1, p.log_start) + 1, 0))::bigint AS ahead
  FROM candidate c
  CROSS JOIN LATERAL (
    SELECT p.name, p.last_offset, p.log_start FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = c.partition_id
    ORDER BY p.epoch DESC LIMIT 1
  ) p
),
want AS MATERIALIZED (
  SELECT s.partition_id, s.committed, s.ready_at, s.name, s.last_offset, s.first_offset,
         least(s.last_offset - s.first_offset + 1, b.messages - s.ahead)::bigint AS n
  FROM span s, budget b WHERE s.ahead < b.messages
),
piece AS MATERIALIZED (
  SELECT w.partition_id, w.ready_at, w.name, w.last_offset, w.first_offset, w.n, q.now, q.lease, q.hold,
         q.visible_before, s.end_offset, s.message_count, s.created_at, s.ends, s.marks, s.body,
         (sum(octet_length(s.body)) OVER (ORDER BY w.ready_at, w.partition_id, s.end_offset)
           - octet_length(s.body))::bigint AS bytes_ahead
  FROM want w CROSS JOIN q CROSS JOIN LATERAL (
    SELECT s.end_offset, s.message_count, s.created_at, s.ends, s.marks, s.body
    FROM queen.segments s
    WHERE s.queue_id = @queue_id AND s.partition_id = w.partition_id AND s.end_offset >= w.first_offset
    ORDER BY s.end_offset LIMIT greatest(w.n, 0)
  ) s
),
head AS MATERIALIZED (
  SELECT DISTINCT ON (p.partition_id) p.partition_id, p.created_at + p.hold AS due, p.created_at + p.hold <= p.now AS open
  FROM piece p ORDER BY p.partition_id, p.end_offset
),
part AS MATERIALIZED (
  SELECT p.partition_id, p.ready_at, p.name, p.last_offset, p.now, p.lease, p.end_offset, p.message_count,
         p.created_at, p.ends, p.marks, p.body,
         greatest(p.first_offset - (p.end_offset - p.message_count + 1), 0)::int AS from_pos,
         (least(p.end_offset, p.first_offset + p.n - 1) - (p.end_offset - p.message_count + 1))::int AS to_pos
  FROM piece p JOIN head h ON h.partition_id = p.partition_id AND h.open CROSS JOIN budget b
  WHERE p.created_at <= p.visible_before AND p.bytes_ahead < b.bytes
    AND p.end_offset - p.message_count + 1 < p.first_offset + p.n
),
grant_ AS MATERIALIZED (
  SELECT p.partition_id, min(p.now) AS now, min(p.lease) AS lease, min(p.last_offset) AS last_offset,
         min(p.end_offset - p.message_count + 1 + p.from_pos) AS first_offset,
         max(p.end_offset - p.message_count + 1 + p.to_pos) AS batch_end,
         sum(p.to_pos - p.from_pos + 1)::int AS n,
         bit_xor(('x' || encode(substring(p.marks FROM 8 * p.to_pos + 1 FOR 8), 'hex'))::bit(64)::bigint
           # CASE WHEN p.from_pos > 0
                  THEN ('x' || encode(substring(p.marks FROM 8 * p.from_pos - 7 FOR 8), 'hex'))::bit(64)::bigint
                  ELSE 0 END) AS mark
  FROM part p GROUP BY p.partition_id
),
settled AS MATERIALIZED ( -- drained by this call, and provably no push in flight
  SELECT w.partition_id
  FROM (
    SELECT w.partition_id, g.batch_end AS upto FROM want w JOIN grant_ g ON g.partition_id = w.partition_id
    WHERE @auto_commit::bool
    UNION ALL
    SELECT w.partition_id, w.first_offset - 1 FROM want w
    WHERE NOT EXISTS (SELECT FROM head h WHERE h.partition_id = w.partition_id)
  ) w
  CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = w.partition_id AND p.last_offset <= w.upto
    ORDER BY p.epoch DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) p
),
taken AS (
  INSERT INTO queen.cursors AS c (queue_id, partition_id, group_id, committed, consumed_at, batch_end, lease_id,
    lease_expires_at, lease_count, lease_mark, attempt_offset, ready_at)
  SELECT @queue_id, g.partition_id, @group_id, w.committed, g.now,
         g.batch_end, CASE WHEN NOT @auto_commit THEN @lease_id::uuid END,
         CASE WHEN NOT @auto_commit THEN g.now + g.lease END, CASE WHEN @auto_commit THEN 0 ELSE g.n END, g.mark,
         CASE WHEN NOT @auto_commit THEN g.first_offset END,
         CASE WHEN NOT @auto_commit THEN g.now + g.lease WHEN s.partition_id IS NULL THEN g.now END
  FROM grant_ g JOIN want w ON w.partition_id = g.partition_id LEFT JOIN settled s ON s.partition_id = g.partition_id
  ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
  SET committed = CASE WHEN @auto_commit THEN excluded.batch_end ELSE c.committed END,
      consumed_at = CASE WHEN @auto_commit THEN excluded.consumed_at ELSE c.consumed_at END,
      batch_end = CASE WHEN NOT @auto_commit THEN excluded.batch_end END, lease_id = excluded.lease_id, lease_expires_at = excluded.lease_expires_at,
      lease_count = excluded.lease_count, lease_mark = excluded.lease_mark, lease_conflated = false,
      attempt_offset = excluded.attempt_offset,
      attempt_count = CASE WHEN @auto_commit THEN 0
                           WHEN c.attempt_offset = excluded.attempt_offset THEN c.attempt_count + 1 ELSE 1 END,
      retry_count = CASE WHEN @auto_commit THEN 0 ELSE c.retry_count END,
      ready_at = excluded.ready_at
  RETURNING c.partition_id, c.attempt_count
),
idle AS (
  INSERT INTO queen.cursors AS c (queue_id, partition_id, group_id, committed, batch_end, ready_at)
  SELECT @queue_id, w.partition_id, @group_id, w.committed, w.first_offset - 1,
         CASE WHEN s.partition_id IS NOT NULL THEN NULL
              WHEN h.due > q.now THEN h.due
              ELSE q.now + interval '50 milliseconds' END
  FROM want w CROSS JOIN q
  LEFT JOIN head h ON h.partition_id = w.partition_id
  LEFT JOIN settled s ON s.partition_id = w.partition_id
  -- What there was no room for stays as ready as it is.
  WHERE h.open IS NOT TRUE AND NOT EXISTS (SELECT FROM grant_ g WHERE g.partition_id = w.partition_id)
  -- A drained cursor is not behind what retention removed.
  ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
  SET committed = CASE WHEN excluded.ready_at IS NULL THEN excluded.batch_end ELSE c.committed END,
      ready_at = excluded.ready_at
)
SELECT p.partition_id, p.name, p.ready_at::timestamptz AS ready_at, t.attempt_count, p.end_offset, p.message_count, p.from_pos, p.to_pos,
       p.created_at, p.ends, p.body
FROM part p JOIN taken t ON t.partition_id = p.partition_id
ORDER BY p.ready_at, p.partition_id, p.end_offset;

-- name: ClaimNewest :many
-- Caller: broker pop of a conflating group (last value). As ClaimPartitions, but
-- each partition hands out its newest visible message only and leases the whole
-- span up to it.
WITH q AS MATERIALIZED (
  SELECT t.now, t.now - make_interval(secs => greatest(q.delayed_processing, 0)) AS visible_before,
         make_interval(secs => greatest(q.delayed_processing, q.window_buffer, 0)) AS hold,
         make_interval(secs => CASE WHEN @lease_seconds::int > 0 THEN @lease_seconds::int
                                    WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END) AS lease
  FROM queen.queues q, (SELECT queen.clock() AS now) t
  WHERE q.id = @queue_id
),
oldest AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at
  FROM queen.cursors c
  WHERE NOT @pinned::bool AND c.queue_id = @queue_id AND c.group_id = @group_id
    AND c.ready_at >= @floor AND c.ready_at <= queen.clock()
  ORDER BY c.ready_at LIMIT @max_partitions
  FOR NO KEY UPDATE SKIP LOCKED
),
named AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at
  FROM (
    SELECT p.id FROM queen.partitions p
    WHERE @pinned::bool AND p.queue_id = @queue_id AND p.name >= @partition_name AND p.name <= @partition_name
    ORDER BY p.name DESC LIMIT 1
  ) p
  CROSS JOIN LATERAL (
    SELECT c.partition_id, c.committed, c.ready_at FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = p.id AND c.group_id = @group_id AND c.ready_at <= queen.clock()
    ORDER BY c.committed DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) c
),
candidate AS MATERIALIZED (
  SELECT o.partition_id, o.committed, o.ready_at FROM oldest o
  UNION ALL
  SELECT n.partition_id, n.committed, n.ready_at FROM named n
),
span AS MATERIALIZED (
  SELECT c.partition_id, c.committed, c.ready_at, p.name, greatest(c.committed + 1, p.log_start) AS first_offset
  FROM candidate c
  CROSS JOIN LATERAL (
    SELECT p.name, p.log_start FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = c.partition_id
    ORDER BY p.epoch DESC LIMIT 1
  ) p
),
head AS MATERIALIZED (
  SELECT w.partition_id, h.created_at + q.hold AS due
  FROM span w CROSS JOIN q CROSS JOIN LATERAL (
    SELECT s.created_at FROM queen.segments s
    WHERE s.queue_id = @queue_id AND s.partition_id = w.partition_id AND s.end_offset >= w.first_offset
    ORDER BY s.end_offset LIMIT 1
  ) h
),
newest AS MATERIALIZED (
  SELECT w.partition_id, w.committed, w.ready_at, w.name, w.first_offset, q.now, q.lease,
         s.end_offset, s.message_count, s.created_at, s.ends, s.marks, s.body
  FROM span w CROSS JOIN q JOIN head h ON h.partition_id = w.partition_id AND h.due <= q.now
  CROSS JOIN LATERAL (
    SELECT s.end_offset, s.message_count, s.created_at, s.ends, s.marks, s.body
    FROM queen.segments s
    WHERE s.queue_id = @queue_id AND s.partition_id = w.partition_id AND s.end_offset >= w.first_offset
      AND s.created_at <= q.visible_before
    ORDER BY s.end_offset DESC LIMIT 1
  ) s
),
settled AS MATERIALIZED (
  SELECT w.partition_id
  FROM span w
  CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = w.partition_id AND p.last_offset < w.first_offset
    ORDER BY p.epoch DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) p
  WHERE NOT EXISTS (SELECT FROM head h WHERE h.partition_id = w.partition_id)
),
taken AS (
  INSERT INTO queen.cursors AS c (queue_id, partition_id, group_id, committed, batch_end, lease_id, lease_expires_at,
    lease_count, lease_mark, lease_conflated, attempt_offset, ready_at)
  SELECT @queue_id, n.partition_id, @group_id, n.committed, n.end_offset, @lease_id::uuid, n.now + n.lease, 1,
         ('x' || encode(substring(n.marks FROM 8 * n.message_count - 7 FOR 8), 'hex'))::bit(64)::bigint
           # CASE WHEN n.message_count > 1
                  THEN ('x' || encode(substring(n.marks FROM 8 * n.message_count - 15 FOR 8), 'hex'))::bit(64)::bigint
                  ELSE 0 END,
         true, n.first_offset, n.now + n.lease
  FROM newest n
  ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
  SET batch_end = excluded.batch_end, lease_id = excluded.lease_id, lease_expires_at = excluded.lease_expires_at,
      lease_count = excluded.lease_count, lease_mark = excluded.lease_mark, lease_conflated = true,
      attempt_offset = excluded.attempt_offset,
      attempt_count = CASE WHEN c.attempt_offset = excluded.attempt_offset THEN c.attempt_count + 1 ELSE 1 END,
      ready_at = excluded.ready_at
  RETURNING c.partition_id, c.attempt_count
),
idle AS (
  INSERT INTO queen.cursors AS c (queue_id, partition_id, group_id, committed, batch_end, ready_at)
  SELECT @queue_id, w.partition_id, @group_id, w.committed, w.first_offset - 1,
         CASE WHEN s.partition_id IS NOT NULL THEN NULL
              WHEN h.due > q.now THEN h.due
              ELSE q.now + interval '50 milliseconds' END
  FROM span w CROSS JOIN q
  LEFT JOIN head h ON h.partition_id = w.partition_id
  LEFT JOIN settled s ON s.partition_id = w.partition_id
  WHERE NOT EXISTS (SELECT FROM newest g WHERE g.partition_id = w.partition_id)
  -- A drained cursor is not behind what retention removed.
  ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
  SET committed = CASE WHEN excluded.ready_at IS NULL THEN excluded.batch_end ELSE c.committed END,
      ready_at = excluded.ready_at
)
SELECT n.partition_id, n.name, n.ready_at, t.attempt_count, n.end_offset, n.message_count,
       (n.message_count - 1)::int AS from_pos, (n.message_count - 1)::int AS to_pos, n.created_at, n.ends, n.body
FROM newest n JOIN taken t ON t.partition_id = n.partition_id
ORDER BY n.ready_at, n.partition_id;
