-- The key/value store. A writing call locks its keys, reads, is judged in the
-- broker and writes, in two round trips; a reading one is one statement.

-- name: LockKV :exec
-- Caller: broker kv and transactions, before anything else. Locks: the keys, by
-- a hash of (tenant, ns, key), until the transaction ends; hashes come in
-- ascending order. A key that does not exist has no row to lock, hence advisory.
SELECT pg_advisory_xact_lock(h.hash)
FROM (SELECT unnest(@hashes::bigint[]) AS hash) h;

-- name: ReadKV :many
-- Caller: broker kv and transactions, after LockKV; reads without it. Always at
-- least one row, for the instant of the call. Rows of single keys (ord 0) come
-- expired or not, and whole. Those of other reads are judged as a whole: once
-- their values exceed @budget bytes, the rest comes as cut, without a value.
-- Plan: primary key, one probe a key and one scan a range.
WITH t AS MATERIALIZED (SELECT queen.clock() AS now),
found AS (
  SELECT w.ord, k.ns, k.key, k.value, k.version, k.updated_at, k.expires_at, false AS keys_only
  FROM (
    SELECT unnest(@key_ords::int[]) AS ord, unnest(@key_namespaces::text[]) AS ns, unnest(@keys::text[]) AS key
  ) w
  CROSS JOIN LATERAL (
    SELECT k.ns, k.key, k.value, k.version, k.updated_at, k.expires_at FROM queen.kv k
    WHERE k.tenant = @tenant AND k.ns = w.ns AND k.key = w.key
    OFFSET 0
  ) k
  UNION ALL
  SELECT r.ord, k.ns, k.key, k.value, k.version, k.updated_at, k.expires_at, r.keys_only
  FROM (
    SELECT unnest(@range_ords::int[]) AS ord, unnest(@range_namespaces::text[]) AS ns,
           unnest(@range_firsts::text[]) AS first_key, unnest(@range_ends::text[]) AS end_key,
           unnest(@range_limits::int[]) AS row_limit, unnest(@range_keys_only::bool[]) AS keys_only,
           unnest(@range_expired::bool[]) AS with_expired
  ) r
  CROSS JOIN t
  CROSS JOIN LATERAL (
    SELECT k.ns, k.key, k.value, k.version, k.updated_at, k.expires_at FROM queen.kv k
    WHERE k.tenant = @tenant AND k.ns = r.ns AND k.key >= r.first_key AND k.key < r.end_key
      AND (k.expires_at IS NULL OR k.expires_at > t.now OR r.with_expired)
    ORDER BY k.key LIMIT r.row_limit
  ) k
),
weighed AS (
  -- octet_length does not fetch a value that is stored out of line.
  SELECT f.ord, f.ns, f.key, f.value, f.version, f.updated_at, f.expires_at, f.keys_only,
         coalesce(sum(CASE WHEN f.ord = 0 OR f.keys_only THEN 0 ELSE octet_length(f.value) END)
           OVER (ORDER BY f.ord, f.key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) >= @budget::bigint
           AND f.ord > 0 AND NOT f.keys_only AS cut
  FROM found f
)
SELECT t.now::timestamptz AS now, coalesce(w.ord, -1)::int AS ord, coalesce(w.ns, '')::text AS ns,
       coalesce(w.key, '')::text AS key,
       (CASE WHEN w.keys_only OR w.cut THEN '' ELSE coalesce(w.value, '') END)::text AS value,
       coalesce(w.version, 0)::bigint AS version, w.updated_at, w.expires_at, coalesce(w.cut, false)::bool AS cut
FROM t LEFT JOIN weighed w ON true
ORDER BY w.ord, w.key;

-- name: DrawKVVersions :many
-- Caller: broker kv and transactions, after LockKV: numbers for the writes.
SELECT nextval('queen.kv_version')::bigint AS version FROM generate_series(1, @n::int);

-- name: PutKV :exec
-- Caller: broker kv and transactions, under LockKV. Zero time: without an end.
INSERT INTO queen.kv (tenant, ns, key, value, version, created_at, updated_at, expires_at)
SELECT @tenant, unnest(@namespaces::text[]), unnest(@keys::text[]), unnest(@values::text[]), unnest(@versions::bigint[]),
       @now::timestamptz, @now::timestamptz, nullif(unnest(@expires::timestamptz[]), '0001-01-01 00:00:00+00'::timestamptz)
ON CONFLICT ON CONSTRAINT kv_pkey DO UPDATE
SET value = excluded.value, version = excluded.version, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at;

-- name: DeleteKV :exec
-- Caller: broker kv and transactions, under LockKV. Plan: a probe of the primary
-- key each, then the rows by their place.
DELETE FROM queen.kv d
WHERE d.ctid = ANY (ARRAY(
  SELECT k.place
  FROM (SELECT unnest(@namespaces::text[]) AS ns, unnest(@keys::text[]) AS key) w
  CROSS JOIN LATERAL (
    SELECT k.ctid AS place FROM queen.kv k
    WHERE k.tenant = @tenant AND k.ns = w.ns AND k.key = w.key
    OFFSET 0
  ) k
));

-- name: ListKVNamespaces :many
-- Caller: the console. Counts expired rows that are still there.
SELECT k.ns, count(*) AS keys FROM queen.kv k WHERE k.tenant = @tenant GROUP BY k.ns ORDER BY k.ns;

-- name: PruneKV :execrows
-- Caller: janitor. Rows that a call holds are left for another time.
DELETE FROM queen.kv d
WHERE d.ctid = ANY (ARRAY(
  SELECT k.ctid FROM queen.kv k
  WHERE k.expires_at <= queen.clock()
  ORDER BY k.expires_at LIMIT @row_limit
  FOR UPDATE SKIP LOCKED
));

-- name: ReadSettings :many
-- Caller: broker, once a second at the most.
SELECT s.name, s.value FROM queen.settings s;

-- name: SaveSettings :exec
-- Caller: the operator's switches.
INSERT INTO queen.settings (name, value, updated_at)
SELECT unnest(@names::text[]), unnest(@values::text[]), queen.clock()
ON CONFLICT ON CONSTRAINT settings_pkey DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;
