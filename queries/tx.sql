-- A bundle: acks, pushes and riders in one transaction. Its lock order is that
-- of the whole broker: kv keys, timers, partitions by (queue, id), cursors.

-- name: ProbeIDs :many
-- Caller: broker bundle, after LockPartitions, so that nobody can store one of
-- the ids meanwhile. Answers a row per item: its partition (NULL: it does not
-- exist, or was not there to be locked), the offset of a message that holds its
-- id inside the dedup window (NULL: none), and the class its id goes to. Plan:
-- partitions_name_key and the id index.
SELECT i.ord::int AS ord, p.id AS partition_id, d.message_offset, q.id_class
FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@names::text[]) AS name,
             unnest(@hashes::uuid[]) AS id_hash, unnest(@probes::bool[]) AS probe) i
CROSS JOIN queen.queues q
LEFT JOIN LATERAL (
  SELECT p.id, queen.locked_here(p.xmax) AS here FROM queen.partitions p
  WHERE p.queue_id = @queue_id AND p.name >= i.name AND p.name <= i.name
  ORDER BY p.name DESC LIMIT 1
) p ON p.here
LEFT JOIN LATERAL (
  SELECT d.message_offset
  FROM queen.message_ids d
  WHERE i.probe AND q.dedup_window_seconds > 0
    AND d.queue_id = @queue_id AND d.partition_id = p.id AND d.id_hash = i.id_hash
    AND (d.window_class = q.id_class OR d.window_class = q.id_class_before)
    AND d.created_at > queen.clock() - make_interval(secs => q.dedup_window_seconds)
  ORDER BY d.message_offset LIMIT 1
) d ON true
WHERE q.id = @queue_id;
