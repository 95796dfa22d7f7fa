-- Spreads the tables over the workers of a Citus cluster, by queue. Read docs/scaling.md first: what was tried of this,
-- and what was not.
--
-- Once, on the coordinator, as the owner of the schema, with an up-to-date schema and no broker running:
--
--   queen migrate up
--   psql -X -v ON_ERROR_STOP=1 -1 -d queen -f deploy/citus/distribute.sql
--
-- It may be run again: what is placed already is left alone. A table that it does not know stops it before it has done
-- anything, so a migration that adds one has to say here where it goes.

-- All statements of this transaction over one connection to each worker: tables are distributed after functions.
SELECT set_config('citus.multi_shard_modify_mode', 'sequential', true);

CREATE TEMPORARY TABLE placement (
  step integer GENERATED ALWAYS AS IDENTITY,
  name text NOT NULL PRIMARY KEY,
  kind text NOT NULL CHECK (kind IN ('distributed', 'reference', 'local')),
  why  text NOT NULL
) ON COMMIT DROP;

-- Distributed by queue_id and co-located: all rows of a queue are on one worker, and every statement of the hot paths names
-- one queue. In this order; the first one makes the co-location group.
INSERT INTO placement (name, kind, why) VALUES
  ('partitions',       'distributed', 'locked by every push'),
  ('segments',         'distributed', 'the messages; partitioned by hash of the partition as well'),
  ('message_ids',      'distributed', 'one row a message; partitioned by time as well'),
  ('cursors',          'distributed', 'claimed and acknowledged with the partitions of their queue'),
  ('consumer_groups',  'distributed', 'read when a partition is made, in the statement that makes it'),
  ('dead_letters',     'distributed', 'filed in the transaction that moves the cursor');

-- Everywhere: the hot statements join it, and it changes with configuration only.
INSERT INTO placement (name, kind, why) VALUES
  ('queues',           'reference',   'options, read by every push and pop');

-- On the coordinator. No statement joins one of these with one of the above, which a test holds.
INSERT INTO placement (name, kind, why) VALUES
  ('kv',               'local',       'keys of many tenants in one statement, pruned by time across all of them'),
  ('timers',           'local',       'what is due is looked for across all queues, and addressed by ctid'),
  ('settings',         'local',       'a few rows'),
  ('dropped_queues',   'local',       'a few rows, looked at by the janitor only'),
  ('janitor_leases',   'local',       'a row for each background loop'),
  ('ephemeral_queues', 'local',       'declarations; the messages are in Redis'),
  ('ephemeral_grants', 'local',       'a row for each tenant, read by the brokers now and then'),
  ('goose_db_version', 'local',       'which migrations were applied'),
  ('goose_lock',       'local',       'one migration at a time');

DO $$
DECLARE
  wrong text;
BEGIN
  SELECT string_agg(coalesce(c.relname, p.name), ', ' ORDER BY 1) INTO wrong
  FROM (SELECT c.relname::text FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition) c
  FULL JOIN placement p ON p.name = c.relname
  WHERE c.relname IS NULL OR p.name IS NULL;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION 'the schema queen is not the one this script was written for: %', wrong;
  END IF;
END
$$;

-- Functions that statements call beside a distributed table are needed where the rows are. queen.clock() above all: it is
-- the only clock, and STABLE, without which it could be neither an index bound nor part of an UPDATE here.
DO $$
DECLARE
  fn text;
BEGIN
  FOREACH fn IN ARRAY ARRAY[
    'queen.clock()',
    'queen.locked_here(xid)',
    'queen.segment_end(bytea, integer)',
    'queen.json_text(text)',
    'queen.segment_messages(text, bytea)',
    'queen.first_offset_at(bigint, bigint, timestamp with time zone)'
  ] LOOP
    PERFORM create_distributed_function(fn::regprocedure);
  END LOOP;
END
$$;

DO $$
DECLARE
  p        record;
  relation regclass;
BEGIN
  FOR p IN SELECT * FROM placement WHERE kind <> 'local' ORDER BY kind DESC, step LOOP
    relation := ('queen.' || quote_ident(p.name))::regclass;
    CONTINUE WHEN EXISTS (SELECT FROM pg_dist_partition d WHERE d.logicalrelid = relation);
    IF p.kind = 'reference' THEN
      PERFORM create_reference_table(relation);
    ELSIF p.name = 'partitions' THEN
      -- More shards than workers, so that workers can be added: 32 go up to 32 of them.
      PERFORM create_distributed_table(relation, 'queue_id', shard_count => 32, colocate_with => 'none');
    ELSE
      PERFORM create_distributed_table(relation, 'queue_id', colocate_with => 'queen.partitions');
    END IF;
  END LOOP;
END
$$;

SELECT name, kind, why FROM placement ORDER BY step;
