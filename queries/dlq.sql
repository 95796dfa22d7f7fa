-- Dead letters. The id of a record carries its queue.

-- name: ListDeadLetters :many
-- Caller: the dead-letter list: newest first, paged in the query. The queues
-- are those of the tenant; an empty name matches all.
SELECT d.id, d.queue_id, d.partition_id, q.name AS queue, coalesce(p.name, '')::text AS partition, d.group_name, d.message_offset,
       d.message_id, d.transaction_id, d.created_at, d.failed_at, d.retry_count, d.producer_sub, d.error, d.payload
FROM queen.queues q
JOIN queen.dead_letters d ON d.queue_id = q.id
LEFT JOIN queen.partitions p ON p.queue_id = d.queue_id AND p.id = d.partition_id
WHERE q.tenant = @tenant AND (@queue::text = '' OR q.name = @queue)
  AND (@group_name::text = '' OR d.group_name = @group_name)
  AND (@partition::text = '' OR p.name = @partition)
  AND (@transaction_id::text = '' OR d.transaction_id = @transaction_id)
  AND (sqlc.narg(from_at)::timestamptz IS NULL OR d.failed_at >= sqlc.narg(from_at)::timestamptz)
  AND (sqlc.narg(to_at)::timestamptz IS NULL OR d.failed_at < sqlc.narg(to_at)::timestamptz)
ORDER BY d.failed_at DESC, d.id DESC LIMIT @max_rows OFFSET @skip_rows;

-- name: LockDeadLetter :one
-- Caller: replay, first. Of two at once the second finds nothing.
SELECT d.id, d.partition_id, d.group_name, d.message_offset, d.message_id, d.transaction_id, d.created_at, d.failed_at,
       d.retry_count, d.producer_sub, d.trace_id, d.error, d.payload, coalesce(p.name, '')::text AS partition
FROM queen.dead_letters d
LEFT JOIN queen.partitions p ON p.queue_id = @queue_id AND p.id = d.partition_id
WHERE d.queue_id = @queue_id AND d.id = @id
FOR UPDATE OF d;

-- name: NewestDeadLetter :one
-- Caller: replay and detail by address.
SELECT d.id FROM queen.dead_letters d
WHERE d.queue_id = @queue_id AND d.partition_id = @partition_id AND d.id_hash = @id_hash
ORDER BY d.failed_at DESC, d.id DESC LIMIT 1;

-- name: DeleteDeadLetter :execrows
DELETE FROM queen.dead_letters d WHERE d.queue_id = @queue_id AND d.id = @id;

-- name: DeleteDeadLettersAt :execrows
DELETE FROM queen.dead_letters d
WHERE d.queue_id = @queue_id AND d.partition_id = @partition_id AND d.id_hash = @id_hash;

-- name: PurgeDeadLetters :execrows
DELETE FROM queen.dead_letters d
WHERE d.queue_id = @queue_id AND (@group_name::text = '' OR d.group_name = @group_name);

-- name: CountDeadLetters :many
-- Caller: queue detail.
SELECT d.partition_id, count(*) AS letters FROM queen.dead_letters d WHERE d.queue_id = @queue_id GROUP BY d.partition_id;
