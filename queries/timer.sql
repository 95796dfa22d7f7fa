-- Timers. Whoever writes one locks its identity first, present or not, then the
-- row, and decides in a later statement, whose snapshot is newer than the wait.
-- The place of timers in the lock order of a transaction: after kv keys, before
-- partitions.

-- name: LockTimerKeys :exec
-- Caller: schedule and cancel, first. Locks identities, in the order of the
-- numbers, which the caller sorted: rows that do not exist cannot be locked.
SELECT pg_advisory_xact_lock(k.id) FROM (SELECT unnest(@ids::bigint[]) AS id) k;

-- name: LockTimers :exec
-- Caller: schedule and cancel, second. Waits for a fire that is under way.
-- Locks: the rows there are, in the order given. Plan: timers_pkey.
SELECT t.attempts
FROM (SELECT unnest(@queues::text[]) AS queue, unnest(@timer_keys::text[]) AS timer_key) i
CROSS JOIN LATERAL (
  SELECT t.attempts FROM queen.timers t
  WHERE t.tenant = @tenant AND t.queue = i.queue AND t.timer_key = i.timer_key
  FOR UPDATE
) t;

-- name: ScheduleTimers :many
-- Caller: schedule, after the locks. One instant for all of them.
WITH instant AS MATERIALIZED (SELECT queen.clock() AS now),
item AS MATERIALIZED (
  SELECT i.*, c.now, c.now + i.delay_us * interval '1 microsecond' AS deliver_at
  FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@queues::text[]) AS queue, unnest(@timer_keys::text[]) AS timer_key,
               unnest(@partitions::text[]) AS partition, unnest(@delays_us::bigint[]) AS delay_us,
               unnest(@txns::text[]) AS txn, unnest(@message_ids::uuid[]) AS message_id,
               unnest(@payloads::bytea[]) AS payload, unnest(@encrypted::bool[]) AS encrypted) i
  CROSS JOIN instant c
),
kept AS MATERIALIZED (
  SELECT i.ord FROM item i
  CROSS JOIN LATERAL (
    SELECT t.tenant FROM queen.timers t
    WHERE t.tenant = @tenant AND t.queue = i.queue AND t.timer_key = i.timer_key LIMIT 1
  ) t
),
written AS (
  INSERT INTO queen.timers AS t (tenant, queue, timer_key, partition, deliver_at, due_at, txn, message_id, payload,
    encrypted, producer_sub, created_at, updated_at)
  SELECT @tenant, i.queue, i.timer_key, i.partition, i.deliver_at, i.deliver_at, i.txn, i.message_id, i.payload,
         i.encrypted, nullif(@producer_sub::text, ''), i.now, i.now
  FROM item i
  ON CONFLICT ON CONSTRAINT timers_pkey DO UPDATE
  SET partition = excluded.partition, deliver_at = excluded.deliver_at, due_at = excluded.due_at, txn = excluded.txn,
      message_id = excluded.message_id, payload = excluded.payload, encrypted = excluded.encrypted,
      producer_sub = excluded.producer_sub, attempts = 0, last_error = NULL, updated_at = excluded.updated_at
)
SELECT i.ord::int AS ord, i.deliver_at::timestamptz AS deliver_at, (i.ord = ANY (ARRAY(SELECT k.ord FROM kept k)))::bool AS kept
FROM item i;

-- name: CancelTimers :many
-- Caller: cancel, after the locks. A row per timer that was there.
WITH item AS MATERIALIZED (
  SELECT i.ord, t.row_id, t.txn
  FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@queues::text[]) AS queue, unnest(@timer_keys::text[]) AS timer_key) i
  CROSS JOIN LATERAL (
    SELECT t.ctid::tid AS row_id, t.txn FROM queen.timers t
    WHERE t.tenant = @tenant AND t.queue = i.queue AND t.timer_key = i.timer_key LIMIT 1
  ) t
),
gone AS (
  -- They are locked, so that their places in the table stay what they are.
  DELETE FROM queen.timers t WHERE t.ctid = ANY (ARRAY(SELECT i.row_id FROM item i))
)
SELECT i.ord::int AS ord, i.txn::text AS txn FROM item i;

-- name: ReadTimer :one
-- Caller: peek.
SELECT t.queue, t.timer_key, t.partition, t.deliver_at, t.txn, t.message_id, t.encrypted, t.producer_sub, t.attempts,
       t.last_error, t.created_at, t.updated_at, t.payload
FROM queen.timers t WHERE t.tenant = @tenant AND t.queue = @queue AND t.timer_key = @timer_key;

-- name: ListTimers :many
-- Caller: list. Plan: timers_pkey, from the cursor on.
SELECT t.timer_key, t.partition, t.deliver_at, t.txn, t.message_id, t.encrypted, t.producer_sub, t.attempts,
       t.last_error, t.created_at, t.updated_at
FROM queen.timers t
WHERE t.tenant = @tenant AND t.queue = @queue AND t.timer_key > @after::text
ORDER BY t.timer_key LIMIT @max_rows;

-- name: CountTimers :one
-- Caller: count. The keys that begin with a prefix are those between two
-- bounds. Plan: timers_pkey.
SELECT count(*) FROM queen.timers t
WHERE t.tenant = @tenant AND t.queue = @queue AND t.timer_key >= @prefix::text
  AND (@prefix_end::text = '' OR t.timer_key < @prefix_end::text);

-- name: ListDueTimers :many
-- Caller: firing. What is due or nearly, oldest first; locks nothing.
-- Plan: timers_due_at_idx.
SELECT t.tenant, t.queue, t.timer_key, t.partition, t.message_id, octet_length(t.payload)::int AS size,
       (extract(epoch FROM t.due_at - queen.clock()) * 1000000)::bigint AS due_in_us
FROM queen.timers t
WHERE t.due_at <= queen.clock() + interval '2 seconds' AND t.queue <> ''
ORDER BY t.due_at LIMIT @max_rows;

-- name: ListDueTimersOfOthers :many
-- Caller: firing, beside a backlog: a few due timers of each of the next tenants
-- with any, going round by @after. A tenant that has nothing due is a row
-- without a queue. Plan: timers_tenant_due_at_idx, two probes a tenant.
WITH RECURSIVE holder AS (
  (SELECT t.tenant, 1 AS n FROM queen.timers t WHERE t.tenant > @after::uuid AND t.timer_key <> '' ORDER BY t.tenant LIMIT 1)
  UNION ALL
  SELECT x.tenant, h.n + 1
  FROM holder h
  CROSS JOIN LATERAL (
    SELECT t.tenant FROM queen.timers t WHERE t.tenant > h.tenant AND t.timer_key <> '' ORDER BY t.tenant LIMIT 1
  ) x
  WHERE h.n < @max_tenants::int
)
SELECT h.tenant::uuid AS tenant, coalesce(t.queue, '')::text AS queue, coalesce(t.timer_key, '')::text AS timer_key,
       coalesce(t.partition, '')::text AS partition,
       coalesce(t.message_id, '00000000-0000-0000-0000-000000000000')::uuid AS message_id, coalesce(t.size, 0)::int AS size
FROM holder h
LEFT JOIN LATERAL (
  SELECT t.queue, t.timer_key, t.partition, t.message_id, octet_length(t.payload) AS size
  FROM queen.timers t
  WHERE t.tenant = h.tenant AND t.timer_key <> '' AND t.due_at <= queen.clock() AND h.tenant <> ALL (@busy::uuid[])
  ORDER BY t.due_at LIMIT @each
) t ON true;

-- name: LimitIdleTransaction :exec
-- Caller: firing. A broker that stands still in the middle must not keep its
-- timers from the others.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: ClaimTimers :many
-- Caller: firing. Locks those of the timers that are due and free, and passes
-- over destinations that another broker is firing into, so that one partition
-- gets its timers in their order. Plan: timers_pkey.
WITH place AS MATERIALIZED (
  SELECT p.id FROM (SELECT unnest(@places::bigint[]) AS id) p WHERE pg_try_advisory_xact_lock(p.id)
),
mine AS MATERIALIZED (
  SELECT i.ord, i.tenant, i.queue, i.timer_key, i.message_id
  FROM (SELECT unnest(@ords::int[]) AS ord, unnest(@tenants::uuid[]) AS tenant, unnest(@queues::text[]) AS queue,
               unnest(@timer_keys::text[]) AS timer_key, unnest(@message_ids::uuid[]) AS message_id,
               unnest(@timer_places::bigint[]) AS place) i
  WHERE i.place = ANY (ARRAY(SELECT p.id FROM place p))
)
SELECT m.ord::int AS ord, t.partition, t.txn, t.payload, t.producer_sub, t.attempts, t.deliver_at, t.created_at
FROM mine m
CROSS JOIN LATERAL (
  SELECT t.partition, t.txn, t.payload, t.producer_sub, t.attempts, t.deliver_at, t.created_at
  FROM queen.timers t
  WHERE t.tenant = m.tenant AND t.queue = m.queue AND t.timer_key = m.timer_key
    AND t.message_id = m.message_id AND t.due_at - queen.clock() <= interval '0' -- not a bound of an index
  FOR UPDATE SKIP LOCKED
) t;

-- name: DeleteTimers :execrows
-- Caller: firing, with the rows locked, in the transaction that appends.
DELETE FROM queen.timers t WHERE t.ctid = ANY (ARRAY(
  SELECT r.row_id
  FROM (SELECT unnest(@tenants::uuid[]) AS tenant, unnest(@queues::text[]) AS queue, unnest(@timer_keys::text[]) AS timer_key) i
  CROSS JOIN LATERAL (
    SELECT t.ctid::tid AS row_id FROM queen.timers t
    WHERE t.tenant = i.tenant AND t.queue = i.queue AND t.timer_key = i.timer_key LIMIT 1
  ) r
));

-- name: PostponeTimer :execrows
-- Caller: firing, after a failure. A timer that was replaced meanwhile is left
-- alone: its message id is another one.
UPDATE queen.timers t
SET due_at = queen.clock() + make_interval(secs => @delay_seconds::float8), attempts = t.attempts + @attempts::int,
    last_error = coalesce(sqlc.narg(last_error)::text, t.last_error)
WHERE t.tenant = @tenant AND t.queue = @queue AND t.timer_key = @timer_key AND t.message_id = @message_id;

-- name: TakeTimer :one
-- Caller: firing, to give a timer up: with its dead letter in one transaction.
DELETE FROM queen.timers t
WHERE t.tenant = @tenant AND t.queue = @queue AND t.timer_key = @timer_key AND t.message_id = @message_id
RETURNING t.partition, t.txn, t.payload, t.producer_sub, t.attempts, t.created_at;
