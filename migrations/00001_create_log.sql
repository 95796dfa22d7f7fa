-- +goose Up
-- The log: queues, partitions, segments, message ids, consumer groups,
-- cursors and dead letters.
--
-- Every key of a data table starts with queue_id, so one queue's rows sit
-- together and the schema can be distributed by queue_id without changing a
-- statement. There are no foreign keys from message rows to a hot parent.

CREATE SCHEMA IF NOT EXISTS queen;

-- +goose StatementBegin
DO $$
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'QueenMQ needs a database with encoding UTF8, this one has %', current_setting('server_encoding');
  END IF;
END
$$;
-- +goose StatementEnd

-- The only clock the statements use. STABLE over a volatile function on
-- purpose: "ready_at <= queen.clock()" can then be an index bound, and the
-- value is still the wall clock of each statement, not of the transaction.
CREATE FUNCTION queen.clock() RETURNS timestamptz
  LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT clock_timestamp()';

CREATE TABLE queen.queues (
  id                              bigint GENERATED ALWAYS AS IDENTITY,
  tenant                          uuid NOT NULL,
  -- Rises with every change of the options; a push carries the version it was
  -- prepared for and is refused (then repeated) when it is stale.
  version                         integer NOT NULL DEFAULT 1,
  created_at                      timestamptz NOT NULL,
  priority                        integer NOT NULL,
  lease_time                      integer NOT NULL, -- seconds
  retry_limit                     integer NOT NULL,
  retry_delay                     integer NOT NULL, -- milliseconds
  max_size                        integer NOT NULL,
  ttl                             integer NOT NULL, -- seconds
  delayed_processing              integer NOT NULL, -- seconds
  window_buffer                   integer NOT NULL, -- seconds
  retention_seconds               integer NOT NULL,
  completed_retention_seconds     integer NOT NULL,
  max_wait_time_seconds           integer NOT NULL,
  min_pop_wait_time               integer NOT NULL, -- milliseconds
  dedup_window_seconds            integer NOT NULL,
  retention_sink_hold_max_seconds integer NOT NULL,
  -- Which slices of message_ids new ids go to (see there), and where older
  -- ids of this queue may still be until then.
  id_class                        smallint NOT NULL,
  id_class_before                 smallint NOT NULL,
  id_class_until                  timestamptz, -- NULL: id_class_before holds nothing
  dead_letter_queue               boolean NOT NULL,
  dlq_after_max_retries           boolean NOT NULL,
  retention_enabled               boolean NOT NULL,
  encryption_enabled              boolean NOT NULL,
  name                            text COLLATE "C" NOT NULL,
  namespace                       text COLLATE "C" NOT NULL,
  task                            text COLLATE "C" NOT NULL,
  retention_sink_hold             text COLLATE "C" NOT NULL,
  CONSTRAINT queues_pkey PRIMARY KEY (id),
  CONSTRAINT queues_tenant_name_key UNIQUE (tenant, name)
);

CREATE TABLE queen.partitions (
  queue_id      bigint NOT NULL,
  id            bigint GENERATED ALWAYS AS IDENTITY,
  last_offset   bigint NOT NULL DEFAULT -1, -- of the newest message
  log_start     bigint NOT NULL DEFAULT 0,  -- of the oldest retained message
  created_at    timestamptz NOT NULL,
  last_write_at timestamptz,                -- created_at of the newest message
  oldest_at     timestamptz,                -- created_at of the oldest retained message, NULL when empty
  name          text COLLATE "C" NOT NULL,
  CONSTRAINT partitions_pkey PRIMARY KEY (queue_id, id),
  CONSTRAINT partitions_name_key UNIQUE (queue_id, name)
) WITH (
  -- The row is updated by every push: room for HOT updates, and vacuum by
  -- count, because a share of a million rows is far too late.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- What retention looks at. oldest_at changes when a partition gets its first
-- message and when retention removes some, never with an ordinary push.
CREATE INDEX partitions_queue_id_oldest_at_idx ON queen.partitions (queue_id, oldest_at)
  WHERE oldest_at IS NOT NULL;

-- One row per run of messages of one partition that were stored together.
--
-- body is a JSON array, each element in the shape a pop answers:
--   {"id":"…","transactionId":"…","traceId":…,"producerSub":…,"data":<payload>}
-- with data last, in exactly the bytes that were pushed. ends holds, per
-- message, a big-endian 4-byte integer: where its element ends in body, in
-- bytes. marks holds, per message, a big-endian 8-byte integer: the XOR of the
-- id marks of this and all earlier messages of the row, so the fingerprint of
-- any run inside it is the XOR of two of them.
CREATE TABLE queen.segments (
  queue_id      bigint NOT NULL,
  partition_id  bigint NOT NULL,
  end_offset    bigint NOT NULL, -- of the last message
  created_at    timestamptz NOT NULL,
  message_count integer NOT NULL,
  ends          bytea NOT NULL,
  marks         bytea NOT NULL,
  body          text NOT NULL,
  CONSTRAINT segments_pkey PRIMARY KEY (queue_id, partition_id, end_offset)
) PARTITION BY HASH (partition_id);

-- +goose StatementBegin
DO $$
DECLARE
  has_lz4 boolean := (SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression');
BEGIN
  FOR i IN 0..7 LOOP
    EXECUTE format('CREATE TABLE queen.segments_%s PARTITION OF queen.segments '
      'FOR VALUES WITH (MODULUS 8, REMAINDER %s) '
      -- A compressed run of a hundred small messages fits the page it is in.
      'WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05, '
      'autovacuum_vacuum_insert_scale_factor = 0.2)', i, i);
    EXECUTE format('ALTER TABLE queen.segments_%s ALTER ends SET STORAGE MAIN, ALTER marks SET STORAGE MAIN', i);
    IF has_lz4 THEN
      EXECUTE format('ALTER TABLE queen.segments_%s ALTER body SET COMPRESSION lz4', i);
    END IF;
  END LOOP;
END
$$;
-- +goose StatementEnd

-- One row per message: serves dedup, acks of single messages and lookups.
-- Expiry is the DROP of a slice of time, never DELETE. One long window must not
-- keep everybody's ids, so a queue's ids live in one of three classes:
--   0  kept for an hour at the most,  slices of 30 minutes
--   1  kept for a day at the most,    slices of 6 hours
--   2  kept longer,                   slices of 7 days
CREATE TABLE queen.message_ids (
  window_class   smallint NOT NULL,
  created_at     timestamptz NOT NULL,
  queue_id       bigint NOT NULL,
  partition_id   bigint NOT NULL,
  message_offset bigint NOT NULL,
  id_hash        uuid NOT NULL -- first 16 bytes of the SHA-256 of the transaction id
) PARTITION BY RANGE (window_class, created_at);

CREATE INDEX message_ids_queue_id_partition_id_id_hash_idx
  ON queen.message_ids (queue_id, partition_id, id_hash);

-- Makes sure that ids of a class can be stored at an instant and for two
-- slices after it. Attaching takes no lock that a push waits for.
-- +goose StatementBegin
CREATE FUNCTION queen.ensure_id_slices(class smallint, at timestamptz) RETURNS integer
  LANGUAGE plpgsql AS $$
DECLARE
  width  interval := (ARRAY['30 minutes', '6 hours', '7 days'])[class + 1];
  slice  timestamptz := date_bin(width, at, timestamptz '2020-01-06 00:00:00+00');
  name   text;
  made   integer := 0;
BEGIN
  FOR i IN 0..2 LOOP
    name := format('message_ids_%s_%s', class, to_char(slice AT TIME ZONE 'UTC', 'YYYYMMDDHH24MI'));
    IF to_regclass('queen.' || name) IS NULL THEN
      -- One maker at a time; the others find the slice made.
      PERFORM pg_advisory_xact_lock(hashtextextended('queen.ensure_id_slices', 0));
      IF to_regclass('queen.' || name) IS NULL THEN
        EXECUTE format('CREATE TABLE queen.%I (LIKE queen.message_ids INCLUDING INDEXES) '
          'WITH (autovacuum_vacuum_insert_scale_factor = 0.5)', name);
        EXECUTE format('ALTER TABLE queen.message_ids ATTACH PARTITION queen.%I '
          'FOR VALUES FROM (%s, %L) TO (%s, %L)', name, class, slice, class, slice + width);
        made := made + 1;
      END IF;
    END IF;
    slice := slice + width;
  END LOOP;
  RETURN made;
END
$$;
-- +goose StatementEnd

SELECT queen.ensure_id_slices(class::smallint, queen.clock()) FROM generate_series(0, 2) AS class;

CREATE TABLE queen.consumer_groups (
  queue_id       bigint NOT NULL,
  id             bigint GENERATED ALWAYS AS IDENTITY,
  created_at     timestamptz NOT NULL,     -- the instant of registration
  start_at       timestamptz,              -- start_mode 2 only
  -- Partitions up to this id have their cursor. Later ones get it when they
  -- are made, once seeding has passed every partition there was.
  seeded_through bigint NOT NULL DEFAULT -1,
  seeded         boolean NOT NULL DEFAULT false,
  start_mode     smallint NOT NULL,        -- 0 new, 1 all, 2 from start_at
  conflation     boolean NOT NULL,
  name           text COLLATE "C" NOT NULL,
  CONSTRAINT consumer_groups_pkey PRIMARY KEY (queue_id, id),
  CONSTRAINT consumer_groups_name_key UNIQUE (queue_id, name)
);

-- One row per (partition, group). ready_at decides who is claimable: NULL when
-- the partition is drained for the group, a past instant when there is work, a
-- future one while a batch is leased (then it is the end of the lease) or while
-- messages are held back.
CREATE TABLE queen.cursors (
  queue_id         bigint NOT NULL,
  partition_id     bigint NOT NULL,
  group_id         bigint NOT NULL,
  committed        bigint NOT NULL,           -- last completed offset
  batch_end        bigint,                    -- last offset handed out under the lease
  attempt_offset   bigint,                    -- where the last hand-out started
  lease_mark       bigint NOT NULL DEFAULT 0, -- XOR of the id marks handed out
  lease_id         uuid,
  lease_expires_at timestamptz,
  ready_at         timestamptz,
  consumed_at      timestamptz,               -- when committed last moved
  lease_count      integer NOT NULL DEFAULT 0, -- messages handed out, 0 once it no longer fits lease_mark
  attempt_count    integer NOT NULL DEFAULT 0,
  retry_count      integer NOT NULL DEFAULT 0,
  lease_conflated  boolean NOT NULL DEFAULT false,
  CONSTRAINT cursors_pkey PRIMARY KEY (queue_id, partition_id, group_id)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- The claim index. It changes with every claim and ack, which costs those
-- updates HOT; it replaces every scan and every in-memory candidate list.
CREATE INDEX cursors_queue_id_group_id_ready_at_idx ON queen.cursors (queue_id, group_id, ready_at)
  WHERE ready_at IS NOT NULL;

-- For the extension of a lease, which names nothing but the lease.
CREATE INDEX cursors_queue_id_lease_id_idx ON queen.cursors (queue_id, lease_id)
  WHERE lease_id IS NOT NULL;

CREATE TABLE queen.dead_letters (
  queue_id       bigint NOT NULL,
  id             uuid NOT NULL,
  partition_id   bigint NOT NULL,
  message_offset bigint NOT NULL,
  message_id     uuid NOT NULL,
  id_hash        uuid NOT NULL,
  created_at     timestamptz NOT NULL, -- when the message was stored
  failed_at      timestamptz NOT NULL,
  retry_count    integer NOT NULL,
  group_name     text COLLATE "C" NOT NULL,
  transaction_id text COLLATE "C" NOT NULL,
  trace_id       uuid,
  producer_sub   text,
  error          text NOT NULL,
  payload        text NOT NULL,        -- the JSON text as it was pushed
  CONSTRAINT dead_letters_pkey PRIMARY KEY (queue_id, id)
);

CREATE INDEX dead_letters_queue_id_failed_at_idx ON queen.dead_letters (queue_id, failed_at DESC);
CREATE INDEX dead_letters_queue_id_partition_id_id_hash_idx ON queen.dead_letters (queue_id, partition_id, id_hash);

-- Queues that are gone but whose segments the janitor still has to remove, in
-- bounded steps. Queue numbers are never used again, so nobody can see them.
CREATE TABLE queen.dropped_queues (
  queue_id   bigint NOT NULL,
  dropped_at timestamptz NOT NULL,
  CONSTRAINT dropped_queues_pkey PRIMARY KEY (queue_id)
);

-- Which broker runs which background loop. A lease row instead of a session
-- lock: it survives transaction pooling and ends by itself.
CREATE TABLE queen.janitor_leases (
  loop_name  text COLLATE "C" NOT NULL,
  holder     text NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT janitor_leases_pkey PRIMARY KEY (loop_name)
);

-- The smallest offset of a partition stored at or after an instant, NULL when
-- nothing is that late. created_at never falls along the offsets, so this is a
-- binary search over the primary key; a scan would read every segment.
-- +goose StatementBegin
CREATE FUNCTION queen.first_offset_at(queue bigint, part bigint, at timestamptz) RETURNS bigint
  LANGUAGE plpgsql STABLE AS $$
DECLARE
  low   bigint;
  high  bigint;
  found bigint;
  seg   record;
BEGIN
  SELECT p.log_start, p.last_offset INTO low, high
  FROM queen.partitions p WHERE p.queue_id = queue AND p.id = part;
  WHILE low <= high LOOP
    SELECT s.end_offset, s.end_offset - s.message_count + 1 AS first_offset, s.created_at INTO seg
    FROM queen.segments s
    WHERE s.queue_id = queue AND s.partition_id = part AND s.end_offset >= (low + high) / 2
    ORDER BY s.end_offset LIMIT 1;
    EXIT WHEN seg.end_offset IS NULL;
    IF seg.created_at >= at THEN
      found := greatest(seg.first_offset, low);
      high := seg.first_offset - 1;
    ELSE
      low := seg.end_offset + 1;
    END IF;
  END LOOP;
  RETURN found;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION queen.first_offset_at(bigint, bigint, timestamptz);
DROP FUNCTION queen.ensure_id_slices(smallint, timestamptz);
DROP TABLE queen.janitor_leases, queen.dropped_queues, queen.dead_letters, queen.cursors,
  queen.consumer_groups, queen.message_ids, queen.segments, queen.partitions, queen.queues;
DROP FUNCTION queen.clock();
