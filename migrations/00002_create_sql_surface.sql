-- +goose Up
-- The queue as seen from inside the database: the view queen.messages to read
-- and the function queen.push to write as part of one's own transaction. Both
-- are public and keep their columns and arguments within a major version; the
-- other functions here are theirs and internal.
--
-- All of them run with the rights of the caller. queen.push stores exactly what
-- the broker stores, so the comments on queen.segments hold for it too.

-- Whether this transaction holds the lock on a row, told by the xmax of the row.
-- Two statements of a transaction see different rows: one that was committed in
-- between was not there when the first of them locked, and must not be written
-- by the second as if it were locked. (An argument from the row makes sure that
-- it is asked where the row is, also when tables are distributed.)
CREATE FUNCTION queen.locked_here(xmax xid) RETURNS boolean
  LANGUAGE sql STABLE PARALLEL RESTRICTED
  AS 'SELECT $1 = pg_current_xact_id()::xid';

-- Where the message at a position of a segment ends in its body, in bytes.
CREATE FUNCTION queen.segment_end(ends bytea, pos integer) RETURNS integer
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT ('x' || encode(substring(ends FROM 4 * pos + 1 FOR 4), 'hex'))::bit(32)::integer $$;

-- The text a JSON string stands for; raw is what is between its quotes. text
-- cannot hold U+0000, and one such string must not make a whole queue
-- unreadable: it is left out.
CREATE FUNCTION queen.json_text(raw text) RETURNS text
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$
    SELECT CASE WHEN strpos(raw, '\') = 0 THEN raw
                WHEN strpos(raw, '\u0000') = 0 THEN ('"' || raw || '"')::json #>> '{}'
                ELSE ('"' || regexp_replace(raw, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g') || '"')::json #>> '{}' END
  $$;

-- Takes a segment apart. Elements are found by the bytes of ends and their
-- parts by the text between them, never by a JSON operator: the payload has to
-- come out as it was pushed, and those operators choke on "\u0000".
-- +goose StatementBegin
CREATE FUNCTION queen.segment_messages(body text, ends bytea)
  RETURNS TABLE (pos integer, message_id uuid, transaction_id text, trace_id uuid, producer_sub text, payload json)
  LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE ROWS 100 AS $$
DECLARE
  raw   bytea := convert_to(body, 'UTF8'); -- once: substring of text counts characters from its start
  start integer := 1;
  stop  integer;
  rest  text;
  cut   integer;
BEGIN
  FOR i IN 0 .. octet_length(ends) / 4 - 1 LOOP
    stop := queen.segment_end(ends, i);
    rest := convert_from(substring(raw FROM start + 1 FOR stop - start), 'UTF8');
    start := stop + 1;
    pos := i;
    -- {"id":"<36>","transactionId":"…
    message_id := substr(rest, 8, 36)::uuid;
    rest := substr(rest, 63);
    -- A quote inside a string is escaped, so the first of these is its end.
    cut := strpos(rest, '","traceId":');
    transaction_id := queen.json_text(left(rest, cut - 1));
    rest := substr(rest, cut + 12);
    IF starts_with(rest, 'null') THEN
      trace_id := NULL;
      rest := substr(rest, 5);
    ELSE
      trace_id := substr(rest, 2, 36)::uuid;
      rest := substr(rest, 39);
    END IF;
    -- ,"producerSub":
    rest := substr(rest, 16);
    IF starts_with(rest, 'null') THEN
      producer_sub := NULL;
      rest := substr(rest, 13);
    ELSE
      cut := strpos(rest, '","data":');
      producer_sub := queen.json_text(substr(rest, 2, cut - 2));
      rest := substr(rest, cut + 9);
    END IF;
    payload := left(rest, -1)::json;
    RETURN NEXT;
  END LOOP;
END
$$;
-- +goose StatementEnd

CREATE VIEW queen.messages AS
SELECT q.tenant, q.name AS queue, p.name AS partition,
       s.end_offset - s.message_count + 1 + m.pos AS "offset",
       m.message_id, m.transaction_id, m.trace_id, m.producer_sub, m.payload, s.created_at
FROM queen.queues q
JOIN queen.partitions p ON p.queue_id = q.id
JOIN queen.segments s ON s.queue_id = q.id AND s.partition_id = p.id
CROSS JOIN LATERAL queen.segment_messages(s.body, s.ends) AS m (pos, message_id, transaction_id, trace_id, producer_sub, payload);

COMMENT ON VIEW queen.messages IS 'Every retained message. Name a queue, and a partition if you can.';

-- A version-7 UUID: milliseconds, then random bits.
CREATE FUNCTION queen.new_message_id() RETURNS uuid
  LANGUAGE sql VOLATILE PARALLEL SAFE
  AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
             PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
             52, 1), 53, 1), 'hex')::uuid
  $$;

-- Refuses what the broker refuses at its edge, with the same limits.
-- +goose StatementBegin
CREATE FUNCTION queen.check_push(tenant uuid, queue text, partition text, payload json, transaction_id text) RETURNS void
  LANGUAGE plpgsql STABLE AS $$
DECLARE
  wrong text;
BEGIN
  -- With one snapshot for the whole transaction we could neither see the ids
  -- nor the cursors that were written while we waited for the partition, and a
  -- message could stay behind unseen.
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = 'queen.push: needs isolation level read committed, this transaction is ' || current_setting('transaction_isolation');
  END IF;
  wrong := CASE
    WHEN tenant IS NULL THEN 'tenant is null'
    WHEN queue IS NULL THEN 'queue is null'
    WHEN partition IS NULL THEN 'partition is null'
    WHEN payload IS NULL THEN 'payload is null'
    WHEN queue COLLATE "C" ~ '[\x01-\x1f]' THEN 'queue holds a control character'
    WHEN partition COLLATE "C" ~ '[\x01-\x1f]' THEN 'partition holds a control character'
    WHEN transaction_id COLLATE "C" ~ '[\x01-\x1f]' THEN 'transaction_id holds a control character'
    WHEN octet_length(transaction_id) > 65535 THEN 'transaction_id is longer than 65535 bytes'
    WHEN 36 + octet_length(queue) + octet_length(partition) > 447 THEN
      'names are too long: tenant, queue and partition together take '
      || 36 + octet_length(queue) + octet_length(partition) || ' bytes, the limit is 447'
    END;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'queen.push: ' || wrong;
  END IF;
END
$$;
-- +goose StatementEnd

-- A queue as its first use makes it; one that exists is left alone.
CREATE FUNCTION queen.create_implicit_queue(tenant uuid, queue text) RETURNS void
  LANGUAGE sql VOLATILE
  AS $$
    INSERT INTO queen.queues (tenant, name, created_at, namespace, task, priority, lease_time, retry_limit,
      retry_delay, max_size, ttl, dead_letter_queue, dlq_after_max_retries, delayed_processing, window_buffer,
      retention_enabled, retention_seconds, completed_retention_seconds, max_wait_time_seconds, min_pop_wait_time,
      encryption_enabled, dedup_window_seconds, retention_sink_hold, retention_sink_hold_max_seconds,
      id_class, id_class_before)
    VALUES ($1, $2, queen.clock(), split_part($2, '.', 1), split_part($2, '.', 2), 0, 60, 3,
      1000, 0, 3600, true, true, 0, 0,
      false, 0, 0, 0, 0,
      false, 3600, '', 604800,
      0, 0)
    ON CONFLICT ON CONSTRAINT queues_tenant_name_key DO NOTHING
  $$;

-- A partition with a cursor of every group. The lock on the queue comes in a
-- statement before, against a group that registers at the same time: the groups
-- read below are all there are.
-- +goose StatementBegin
CREATE FUNCTION queen.create_partition(queue_number bigint, partition text) RETURNS void
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

-- Locks a partition for an append, making it and its queue when they are new,
-- and answers it as it is under the lock.
-- +goose StatementBegin
CREATE FUNCTION queen.lock_partition(tenant uuid, queue text, partition text) RETURNS queen.partitions
  LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  queue_number bigint;
  found_part   queen.partitions;
BEGIN
  -- More than two rounds only while others delete what this makes.
  FOR round IN 1 .. 8 LOOP
    SELECT q.id INTO queue_number FROM queen.queues q
    WHERE q.tenant = lock_partition.tenant AND q.name = lock_partition.queue;
    IF NOT FOUND THEN
      PERFORM queen.create_implicit_queue(tenant, queue);
      CONTINUE;
    END IF;
    SELECT p.* INTO found_part FROM queen.partitions p
    WHERE p.queue_id = queue_number AND p.name = lock_partition.partition
    FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN found_part;
    END IF;
    PERFORM queen.create_partition(queue_number, partition);
  END LOOP;
  RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'queen.push: the queue kept changing';
END
$$;
-- +goose StatementEnd

-- The id of the message at an offset, all zeros when it is gone.
-- +goose StatementBegin
CREATE FUNCTION queen.message_id_at(queue_number bigint, partition_number bigint, message_offset bigint) RETURNS uuid
  LANGUAGE plpgsql STABLE AS $$
DECLARE
  seg   record;
  pos   integer;
  start integer := 1;
BEGIN
  SELECT s.end_offset, s.message_count, s.ends, s.body INTO seg FROM queen.segments s
  WHERE s.queue_id = queue_number AND s.partition_id = partition_number AND s.end_offset >= message_offset
  ORDER BY s.end_offset LIMIT 1;
  pos := message_offset - (seg.end_offset - seg.message_count + 1);
  IF pos IS NULL OR pos < 0 THEN
    RETURN '00000000-0000-0000-0000-000000000000';
  END IF;
  IF pos > 0 THEN
    start := queen.segment_end(seg.ends, pos - 1) + 1;
  END IF;
  RETURN convert_from(substring(convert_to(seg.body, 'UTF8') FROM start + 8 FOR 36), 'UTF8')::uuid;
END
$$;
-- +goose StatementEnd

-- Stores one message as a segment of its own in a partition that is locked.
-- What AppendSegments does in the broker.
-- +goose StatementBegin
CREATE FUNCTION queen.append_message(part queen.partitions, class smallint, hold interval, id uuid, transaction_id text, payload json)
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

-- Stores one message as part of the caller's transaction. See docs/sql.md.
-- Locks: the partition, until the caller's transaction ends; when it is new,
-- its queue too; cursors that become ready.
-- +goose StatementBegin
CREATE FUNCTION queen.push(
  queue text, partition text, payload json, transaction_id text DEFAULT NULL,
  tenant uuid DEFAULT '00000000-0000-0000-0000-000000000001'
) RETURNS TABLE (message_id uuid, partition_offset bigint, duplicate boolean)
  LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off -- a session keeps its plans, also those made while the tables were small
  AS $$
DECLARE
  part queen.partitions;
  opt  record;
BEGIN
  PERFORM queen.check_push(tenant, queue, partition, payload, transaction_id);
  partition := coalesce(nullif(partition, ''), 'Default');
  part := queen.lock_partition(tenant, queue, partition);

  -- Everything from here on is read after the lock, statement by statement.
  SELECT q.id_class, q.id_class_before, q.dedup_window_seconds,
         make_interval(secs => greatest(q.delayed_processing, q.window_buffer, 0)) AS hold
  INTO opt FROM queen.queues q WHERE q.id = part.queue_id;

  IF transaction_id <> '' AND opt.dedup_window_seconds > 0 THEN
    SELECT min(d.message_offset) INTO partition_offset FROM queen.message_ids d
    WHERE d.queue_id = part.queue_id AND d.partition_id = part.id
      AND d.id_hash = encode(substring(sha256(convert_to(push.transaction_id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
      AND (d.window_class = opt.id_class OR d.window_class = opt.id_class_before)
      AND d.created_at > queen.clock() - make_interval(secs => opt.dedup_window_seconds);
    IF partition_offset IS NOT NULL THEN
      message_id := queen.message_id_at(part.queue_id, part.id, partition_offset);
      duplicate := true;
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;

  message_id := queen.new_message_id();
  partition_offset := part.last_offset + 1;
  duplicate := false;
  PERFORM queen.append_message(part, opt.id_class, opt.hold, message_id,
                               coalesce(nullif(transaction_id, ''), message_id::text), payload);
  -- Sent when the transaction commits; only then is there something to see.
  PERFORM pg_notify('queen_wake', json_build_object('q', part.queue_id, 'p', json_build_array(partition))::text);
  RETURN NEXT;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION queen.push(text, text, json, text, uuid) IS
  'Stores a message as part of the caller''s transaction. Answers the original for an id that is stored already.';

-- +goose Down
DROP FUNCTION queen.push(text, text, json, text, uuid);
DROP FUNCTION queen.append_message(queen.partitions, smallint, interval, uuid, text, json);
DROP FUNCTION queen.message_id_at(bigint, bigint, bigint);
DROP FUNCTION queen.lock_partition(uuid, text, text);
DROP FUNCTION queen.create_partition(bigint, text);
DROP FUNCTION queen.create_implicit_queue(uuid, text);
DROP FUNCTION queen.check_push(uuid, text, text, json, text);
DROP FUNCTION queen.new_message_id();
DROP VIEW queen.messages;
DROP FUNCTION queen.segment_messages(text, bytea);
DROP FUNCTION queen.json_text(text);
DROP FUNCTION queen.segment_end(bytea, integer);
DROP FUNCTION queen.locked_here(xid);
