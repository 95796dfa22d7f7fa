-- While a transaction somewhere holds an old snapshot, no version of a row that
-- changed since can be removed, and a lookup by a key that never changes walks
-- all of them. Partitions and cursors change with every push, claim and ack, so
-- their keys get a part that moves along: what is looked up, locked and updated
-- is then found among a few versions, however old the snapshot is.

-- +goose Up
SET LOCAL lock_timeout = '50ms';

-- A function in SQL that says STABLE of something volatile cannot be inlined,
-- and is then parsed and planned again wherever a statement calls it.
CREATE OR REPLACE FUNCTION queen.clock() RETURNS timestamptz
  LANGUAGE plpgsql STABLE PARALLEL SAFE
  AS 'BEGIN RETURN clock_timestamp(); END';

-- last_offset / 1024. In the key below instead of last_offset, so that most
-- updates of the row touch no index.
ALTER TABLE queen.partitions ADD COLUMN epoch bigint NOT NULL DEFAULT 0;

-- As before, without the conflict that a new partition cannot have.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queen.create_partition(queue_number bigint, partition text) RETURNS void
  LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM q.id FROM queen.queues q WHERE q.id = queue_number FOR SHARE;
  WITH made AS (
    INSERT INTO queen.partitions (queue_id, name, created_at)
    SELECT q.id, create_partition.partition, queen.clock() FROM queen.queues q WHERE q.id = queue_number
    ON CONFLICT ON CONSTRAINT partitions_name_key DO NOTHING
    RETURNING id
  )
  INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed)
  SELECT queue_number, m.id, g.id, -1 FROM made m, queen.consumer_groups g WHERE g.queue_id = queue_number;
END
$$;
-- +goose StatementEnd

-- As before, and keeps the epoch; cursors that wait are those that have
-- everything there was.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queen.append_message(part queen.partitions, class smallint, hold interval, id uuid, transaction_id text, payload json)
  RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  now    timestamptz := queen.clock();
  stamp  timestamptz := greatest(now, part.last_write_at);
  width  interval := (ARRAY['30 minutes', '6 hours', '7 days'])[class + 1];
  digest bytea := sha256(convert_to(transaction_id, 'UTF8'));
  body   text := '[{"id":"' || id || '","transactionId":"' || replace(replace(transaction_id, '\', '\\'), '"', '\"')
                 || '","traceId":null,"producerSub":null,"data":' || payload || '}]';
BEGIN
  INSERT INTO queen.segments (queue_id, partition_id, end_offset, created_at, message_count, ends, marks, body)
  VALUES (part.queue_id, part.id, part.last_offset + 1, stamp, 1,
          int4send(octet_length(body) - 1), substring(digest FROM 17 FOR 8), body);

  -- The janitor makes slices ahead of time; this is for a fleet that was down.
  IF to_regclass(format('queen.message_ids_%s_%s', class,
       to_char(date_bin(width, stamp, timestamptz '2020-01-06 00:00:00+00') AT TIME ZONE 'UTC', 'YYYYMMDDHH24MI'))) IS NULL THEN
    PERFORM queen.ensure_id_slices(class, stamp);
  END IF;
  INSERT INTO queen.message_ids (window_class, created_at, queue_id, partition_id, message_offset, id_hash)
  VALUES (class, stamp, part.queue_id, part.id, part.last_offset + 1, encode(substring(digest FROM 1 FOR 16), 'hex')::uuid);

  UPDATE queen.partitions p
  SET last_offset = p.last_offset + 1, last_write_at = stamp, epoch = (p.last_offset + 1) / 1024,
      oldest_at = CASE WHEN p.last_offset < p.log_start THEN stamp ELSE p.oldest_at END
  WHERE p.queue_id = part.queue_id AND p.id = part.id AND p.epoch = part.epoch;

  WITH idle AS MATERIALIZED (
    SELECT c.group_id, c.committed FROM queen.cursors c
    WHERE c.queue_id = part.queue_id AND c.partition_id = part.id AND c.ready_at IS NULL
      AND c.committed >= part.last_offset
    ORDER BY c.committed, c.group_id FOR NO KEY UPDATE
  )
  UPDATE queen.cursors c SET ready_at = now + hold
  FROM idle i
  WHERE c.queue_id = part.queue_id AND c.partition_id = part.id AND c.group_id = i.group_id
    AND c.committed = i.committed;
END
$$;
-- +goose StatementEnd

-- +goose Down
SET LOCAL lock_timeout = '50ms';
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queen.append_message(part queen.partitions, class smallint, hold interval, id uuid, transaction_id text, payload json)
  RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  now    timestamptz := queen.clock();
  stamp  timestamptz := greatest(now, part.last_write_at);
  width  interval := (ARRAY['30 minutes', '6 hours', '7 days'])[class + 1];
  digest bytea := sha256(convert_to(transaction_id, 'UTF8'));
  body   text := '[{"id":"' || id || '","transactionId":"' || replace(replace(transaction_id, '\', '\\'), '"', '\"')
                 || '","traceId":null,"producerSub":null,"data":' || payload || '}]';
BEGIN
  INSERT INTO queen.segments (queue_id, partition_id, end_offset, created_at, message_count, ends, marks, body)
  VALUES (part.queue_id, part.id, part.last_offset + 1, stamp, 1,
          int4send(octet_length(body) - 1), substring(digest FROM 17 FOR 8), body);

  -- The janitor makes slices ahead of time; this is for a fleet that was down.
  IF to_regclass(format('queen.message_ids_%s_%s', class,
       to_char(date_bin(width, stamp, timestamptz '2020-01-06 00:00:00+00') AT TIME ZONE 'UTC', 'YYYYMMDDHH24MI'))) IS NULL THEN
    PERFORM queen.ensure_id_slices(class, stamp);
  END IF;
  INSERT INTO queen.message_ids (window_class, created_at, queue_id, partition_id, message_offset, id_hash)
  VALUES (class, stamp, part.queue_id, part.id, part.last_offset + 1, encode(substring(digest FROM 1 FOR 16), 'hex')::uuid);

  UPDATE queen.partitions p
  SET last_offset = p.last_offset + 1, last_write_at = stamp,
      oldest_at = CASE WHEN p.last_offset < p.log_start THEN stamp ELSE p.oldest_at END
  WHERE p.queue_id = part.queue_id AND p.id = part.id;

  WITH idle AS MATERIALIZED (
    SELECT c.group_id FROM queen.cursors c
    WHERE c.queue_id = part.queue_id AND c.partition_id = part.id AND c.ready_at IS NULL
    ORDER BY c.group_id FOR NO KEY UPDATE
  )
  UPDATE queen.cursors c SET ready_at = now + hold
  FROM idle i
  WHERE c.queue_id = part.queue_id AND c.partition_id = part.id AND c.group_id = i.group_id;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queen.create_partition(queue_number bigint, partition text) RETURNS void
  LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM q.id FROM queen.queues q WHERE q.id = queue_number FOR SHARE;
  WITH made AS (
    INSERT INTO queen.partitions (queue_id, name, created_at)
    SELECT q.id, create_partition.partition, queen.clock() FROM queen.queues q WHERE q.id = queue_number
    ON CONFLICT ON CONSTRAINT partitions_name_key DO NOTHING
    RETURNING id
  )
  INSERT INTO queen.cursors (queue_id, partition_id, group_id, committed)
  SELECT queue_number, m.id, g.id, -1 FROM made m, queen.consumer_groups g WHERE g.queue_id = queue_number
  ON CONFLICT ON CONSTRAINT cursors_pkey DO NOTHING;
END
$$;
-- +goose StatementEnd
ALTER TABLE queen.partitions DROP COLUMN epoch;
CREATE OR REPLACE FUNCTION queen.clock() RETURNS timestamptz
  LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT clock_timestamp()';
