-- Reads by offset: no lease, no cursor, no write.

-- name: ReadLog :many
-- Caller: fetch. Segments of one partition from an offset on, until @max_bytes
-- of bodies are ahead (so at least one). Plan: range scan of the primary key.
SELECT r.end_offset, r.message_count, r.created_at, r.ends, r.body
FROM (
  SELECT s.end_offset, s.message_count, s.created_at, s.ends, s.body,
         (sum(octet_length(s.body)) OVER (ORDER BY s.end_offset) - octet_length(s.body))::bigint AS bytes_ahead
  FROM (
    SELECT g.end_offset, g.message_count, g.created_at, g.ends, g.body FROM queen.segments g
    WHERE g.queue_id = @queue_id AND g.partition_id = @partition_id AND g.end_offset >= @from_offset
    ORDER BY g.end_offset LIMIT @max_segments
  ) s
) r
WHERE r.bytes_ahead < @max_bytes::bigint
ORDER BY r.end_offset;

-- name: FindOffsetAt :one
-- Caller: fetch/offsets. The first offset stored at or after an instant.
SELECT p.id, p.last_offset, p.log_start,
       queen.first_offset_at(p.queue_id, p.id, @at::timestamptz)::bigint AS found
FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.name = @name;

-- name: ListChanged :many
-- Caller: partitions/changed. A page of partitions by name; with @since those
-- written at or after it. Plan: partitions_name_key in order.
SELECT p.id, p.name, p.last_offset, p.log_start, p.last_write_at FROM queen.partitions p
WHERE p.queue_id = @queue_id AND (NOT @after_set::bool OR p.name > @after_name)
  AND (sqlc.narg(since)::timestamptz IS NULL OR p.last_write_at >= sqlc.narg(since)::timestamptz)
ORDER BY p.name LIMIT @max_rows;

-- name: ReadSafeTime :one
-- Caller: partitions/changed, before ListChanged and in a snapshot of its own.
-- The start of the oldest open transaction of this database; masked tells that
-- our role cannot see into some session. (The state of one that is just being
-- opened is not known either, but that one has no transaction.)
SELECT coalesce(min(a.xact_start), queen.clock())::timestamptz AS oldest, queen.clock()::timestamptz AS now,
       (count(*) FILTER (WHERE a.query = '<insufficient privilege>' AND a.usesysid IS NOT NULL) > 0)::bool AS masked
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid();

-- name: FindMessage :many
-- Caller: message detail. Offsets of a transaction id in one partition, the
-- newest first. Plan: the id index, a slice each.
SELECT d.message_offset FROM queen.message_ids d
WHERE d.queue_id = @queue_id AND d.partition_id = @partition_id AND d.id_hash = @id_hash
ORDER BY d.message_offset DESC;

-- name: FindPartitionByID :one
SELECT p.name, p.last_offset, p.log_start FROM queen.partitions p WHERE p.queue_id = @queue_id AND p.id = @id;

-- name: ListMessageGroups :many
-- Caller: message detail. What every group did with an offset.
SELECT g.name, c.committed, c.batch_end, c.lease_expires_at, queen.clock()::timestamptz AS now
FROM queen.cursors c JOIN queen.consumer_groups g ON g.queue_id = @queue_id AND g.id = c.group_id
WHERE c.queue_id = @queue_id AND c.partition_id = @partition_id
ORDER BY g.name;
