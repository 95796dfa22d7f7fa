-- The functions of Citus that distribute.sql calls, for a PostgreSQL without it. They do nothing but refuse what Citus
-- refuses in its documentation, and write down what they were asked for.
CREATE TABLE public.pg_dist_partition (
  logicalrelid  regclass PRIMARY KEY,
  partkey       text,
  colocated     regclass,
  step          integer GENERATED ALWAYS AS IDENTITY
);

CREATE TABLE public.distributed_functions (name regprocedure PRIMARY KEY);

CREATE FUNCTION public.create_distributed_function(name regprocedure) RETURNS void
  LANGUAGE sql AS 'INSERT INTO public.distributed_functions VALUES ($1) ON CONFLICT DO NOTHING';

CREATE FUNCTION public.create_reference_table(relation regclass) RETURNS void
  LANGUAGE sql AS 'INSERT INTO public.pg_dist_partition (logicalrelid) VALUES ($1)';

CREATE FUNCTION public.create_distributed_table(relation regclass, column_name text, distribution text DEFAULT 'hash',
                                                colocate_with text DEFAULT 'default', shard_count integer DEFAULT NULL)
  RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  attribute smallint;
  bad       text;
BEGIN
  SELECT a.attnum INTO STRICT attribute FROM pg_attribute a
  WHERE a.attrelid = relation AND a.attname = column_name AND a.attnotnull;

  SELECT i.indexrelid::regclass::text INTO bad FROM pg_index i
  WHERE i.indrelid = relation AND i.indisunique AND attribute <> ALL (i.indkey) LIMIT 1;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'unique index % does not include %', bad, column_name;
  END IF;

  SELECT c.conname INTO bad FROM pg_constraint c WHERE relation IN (c.conrelid, c.confrelid) AND c.contype = 'f' LIMIT 1;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'foreign key % on a distributed table', bad;
  END IF;

  SELECT t.tgname INTO bad FROM pg_trigger t WHERE t.tgrelid = relation AND NOT t.tgisinternal LIMIT 1;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'trigger % on a distributed table', bad;
  END IF;

  -- Identity columns have to be bigint: each worker numbers from a range of its own.
  SELECT a.attname INTO bad FROM pg_attribute a
  WHERE a.attrelid = relation AND a.attidentity <> '' AND a.atttypid <> 'bigint'::regtype LIMIT 1;
  IF bad IS NOT NULL THEN
    RAISE EXCEPTION 'identity column % is no bigint', bad;
  END IF;

  IF colocate_with NOT IN ('default', 'none') AND
     NOT EXISTS (SELECT FROM public.pg_dist_partition d WHERE d.logicalrelid = colocate_with::regclass) THEN
    RAISE EXCEPTION '% is not distributed yet', colocate_with;
  END IF;
  INSERT INTO public.pg_dist_partition (logicalrelid, partkey, colocated)
  VALUES (relation, column_name, CASE WHEN colocate_with NOT IN ('default', 'none') THEN colocate_with::regclass END);
END
$$;
