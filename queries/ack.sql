-- Acknowledgements. A whole batch is recognised by count and fingerprint and
-- needs one statement; everything else resolves ids and is decided in the
-- broker under the cursor's lock.

-- name: AckBatches :many
-- Caller: broker ack, gathered. Completes the leases whose count and
-- fingerprint are those of the ids acknowledged. A cursor without a row in the
-- answer was not touched: take the way below. Cursors differ from each other.
-- Locks: cursors in (partition, group) order; partition rows of drained cursors
-- with SKIP LOCKED (see ClaimPartitions). Plan: primary keys only.
WITH held AS MATERIALIZED (
  SELECT i.ord, i.partition_id, i.group_id, c.committed, c.batch_end, c.lease_expires_at
  FROM (
    SELECT j.ord, j.partition_id, j.group_id, j.lease_id, j.message_count, j.mark
    FROM (
      SELECT unnest(@ords::int[]) AS ord, unnest(@partition_ids::bigint[]) AS partition_id,
             unnest(@group_ids::bigint[]) AS group_id, unnest(@lease_ids::uuid[]) AS lease_id,
             unnest(@counts::int[]) AS message_count, unnest(@marks::bigint[]) AS mark
    ) j
    ORDER BY j.partition_id, j.group_id
  ) i
  CROSS JOIN LATERAL (
    SELECT c.committed, c.batch_end, c.lease_expires_at FROM queen.cursors c
    WHERE c.queue_id = @queue_id AND c.partition_id = i.partition_id AND c.group_id = i.group_id
      -- Not =, which could choose the index of leases: a lease may span 64 cursors.
      AND c.lease_id IS NOT DISTINCT FROM i.lease_id AND c.lease_count = i.message_count AND c.lease_mark = i.mark
      AND NOT c.lease_conflated
    ORDER BY c.committed DESC LIMIT 1
    FOR NO KEY UPDATE
  ) c
),
drained AS MATERIALIZED (
  SELECT h.ord
  FROM held h
  CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = h.partition_id AND p.last_offset <= h.batch_end
    ORDER BY p.epoch DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) p
)
INSERT INTO queen.cursors AS c (queue_id, partition_id, group_id, committed, batch_end, consumed_at, ready_at)
SELECT @queue_id, h.partition_id, h.group_id, h.committed, h.batch_end, t.now, CASE WHEN d.ord IS NULL THEN t.now END
FROM held h LEFT JOIN drained d ON d.ord = h.ord, (SELECT queen.clock() AS now) t
WHERE h.lease_expires_at > t.now
ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
SET committed = excluded.batch_end, consumed_at = excluded.consumed_at, batch_end = NULL, lease_id = NULL,
    lease_expires_at = NULL, lease_count = 0, attempt_offset = NULL, attempt_count = 0, retry_count = 0,
    ready_at = excluded.ready_at
RETURNING c.partition_id, c.group_id, (c.ready_at IS NOT NULL)::bool AS more;

-- name: LockCursors :many
-- Caller: broker ack, the way of single messages. Locks: cursors in (partition,
-- group) order, before anything is decided.
SELECT i.ord::int AS ord, c.committed, c.batch_end, c.lease_id, c.lease_expires_at, c.lease_conflated,
       c.lease_count, c.lease_mark, c.attempt_offset, c.attempt_count, c.retry_count
FROM (
  SELECT j.ord, j.partition_id, j.group_id
  FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@partition_ids::bigint[]) AS partition_id,
               unnest(@group_ids::bigint[]) AS group_id) j
  ORDER BY j.partition_id, j.group_id
) i
CROSS JOIN LATERAL (
  SELECT c.committed, c.batch_end, c.lease_id, c.lease_expires_at, c.lease_conflated,
         c.lease_count, c.lease_mark, c.attempt_offset, c.attempt_count, c.retry_count
  FROM queen.cursors c
  WHERE c.queue_id = @queue_id AND c.partition_id = i.partition_id AND c.group_id = i.group_id
  ORDER BY c.committed DESC LIMIT 1
  FOR NO KEY UPDATE
) c;

-- name: ResolveIDs :many
-- Caller: broker ack, after LockCursors. Every stored offset of each id.
-- Plan: the id index, a slice each.
SELECT i.ord::int AS ord, d.message_offset
FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@partition_ids::bigint[]) AS partition_id,
             unnest(@hashes::uuid[]) AS id_hash) i
CROSS JOIN LATERAL (
  SELECT d.message_offset FROM queen.message_ids d
  WHERE d.queue_id = @queue_id AND d.partition_id = i.partition_id AND d.id_hash = i.id_hash
  OFFSET 0
) d;

-- name: ReadAckRules :one
-- Caller: broker ack, after LockCursors: the clock a lease is judged by, read
-- after the lock, and the queue's retry rules.
SELECT q.retry_limit, (q.dead_letter_queue OR q.dlq_after_max_retries)::bool AS dead_letters, t.now::timestamptz AS now
FROM queen.queues q, (SELECT queen.clock() AS now) t
WHERE q.id = @queue_id;

-- name: ReadSegmentsAt :many
-- Caller: broker ack, to dead-letter (the poison message itself) or to compare a
-- whole span; reads of single messages. The segments that hold the offsets.
-- Plan: one forward probe of the primary key per offset.
SELECT i.ord::int AS ord, s.end_offset, s.message_count, s.created_at, s.ends, s.body
FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@partition_ids::bigint[]) AS partition_id,
             unnest(@offsets::bigint[]) AS message_offset) i
CROSS JOIN LATERAL (
  SELECT s.end_offset, s.message_count, s.created_at, s.ends, s.body
  FROM queen.segments s
  WHERE s.queue_id = @queue_id AND s.partition_id = i.partition_id AND s.end_offset >= i.message_offset
  ORDER BY s.end_offset LIMIT 1
) s
WHERE s.end_offset - s.message_count < i.message_offset;

-- name: ReadSegmentIDs :many
-- Caller: broker ack of a batch in which an id occurs twice: the stored
-- elements of a leased span. Plan: range scan of the primary key.
SELECT s.end_offset, s.message_count, s.ends, s.body FROM queen.segments s
WHERE s.queue_id = @queue_id AND s.partition_id = @partition_id
  AND s.end_offset > @committed AND s.end_offset < @until_offset
ORDER BY s.end_offset;

-- name: SaveCursors :exec
-- Caller: broker ack, after LockCursors. Writes what was decided. @releases: the
-- lease ends; else it is kept, its expiry unchanged. A released cursor is ready
-- at once when anything is left, else drained (see ClaimPartitions for the lock
-- on the partition row).
WITH input AS MATERIALIZED (
  SELECT unnest(@partition_ids::bigint[]) AS partition_id, unnest(@group_ids::bigint[]) AS group_id,
         unnest(@committed::bigint[]) AS committed, unnest(@releases::bool[]) AS release,
         unnest(@attempt_offsets::bigint[]) AS attempt_offset, unnest(@attempt_counts::int[]) AS attempt_count,
         unnest(@retry_counts::int[]) AS retry_count
),
drained AS MATERIALIZED (
  SELECT i.partition_id, i.group_id
  FROM input i
  CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p
    WHERE p.queue_id = @queue_id AND p.id = i.partition_id AND p.last_offset <= i.committed
    ORDER BY p.epoch DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) p
)
INSERT INTO queen.cursors AS u (queue_id, partition_id, group_id, committed, batch_end, consumed_at, lease_id,
  lease_expires_at, lease_conflated, attempt_offset, attempt_count, retry_count, ready_at)
SELECT @queue_id, i.partition_id, i.group_id, c.committed, i.committed, t.now,
       CASE WHEN NOT i.release THEN c.lease_id END,
       CASE WHEN NOT i.release THEN c.lease_expires_at END, c.lease_conflated AND NOT i.release,
       CASE WHEN i.attempt_count > 0 THEN i.attempt_offset END, i.attempt_count, i.retry_count,
       CASE WHEN NOT i.release THEN c.ready_at WHEN d.partition_id IS NULL THEN t.now END
FROM input i
CROSS JOIN LATERAL (
  SELECT c.committed, c.lease_id, c.lease_expires_at, c.lease_conflated, c.ready_at FROM queen.cursors c
  WHERE c.queue_id = @queue_id AND c.partition_id = i.partition_id AND c.group_id = i.group_id
  ORDER BY c.committed DESC LIMIT 1
) c
LEFT JOIN drained d ON d.partition_id = i.partition_id AND d.group_id = i.group_id
CROSS JOIN (SELECT queen.clock() AS now) t
ON CONFLICT ON CONSTRAINT cursors_committed_pkey DO UPDATE
SET committed = excluded.batch_end, consumed_at = excluded.consumed_at,
    batch_end = CASE WHEN excluded.lease_id IS NOT NULL THEN u.batch_end END, lease_id = excluded.lease_id,
    lease_expires_at = excluded.lease_expires_at, lease_count = 0, lease_conflated = excluded.lease_conflated,
    attempt_offset = excluded.attempt_offset, attempt_count = excluded.attempt_count,
    retry_count = excluded.retry_count, ready_at = excluded.ready_at;

-- name: FileDeadLetters :exec
-- Caller: broker ack, in the transaction that moves the cursor past the message.
INSERT INTO queen.dead_letters (queue_id, id, partition_id, message_offset, message_id, id_hash, created_at, failed_at,
  retry_count, group_name, transaction_id, trace_id, producer_sub, error, payload)
SELECT @queue_id, unnest(@ids::uuid[]), unnest(@partition_ids::bigint[]), unnest(@offsets::bigint[]),
       unnest(@message_ids::uuid[]), unnest(@id_hashes::uuid[]), unnest(@created_ats::timestamptz[]), queen.clock(),
       unnest(@retry_counts::int[]), unnest(@group_names::text[]), unnest(@transaction_ids::text[]),
       nullif(unnest(@trace_ids::uuid[]), '00000000-0000-0000-0000-000000000000'),
       nullif(unnest(@producer_subs::text[]), ''), unnest(@errors::text[]), unnest(@payloads::text[]);
