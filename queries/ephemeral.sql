-- Declarations of ephemeral queues. Brokers keep all of them in memory; what
-- changes here is announced, and read again now and then.

-- name: ListEphemeralQueues :many
-- Caller: brokers, now and then. Plan: the whole table, which is small: one row
-- a declared queue.
SELECT e.tenant, e.name, e.version, e.max_bytes, e.max_length, e.policy, e.ttl_seconds, e.lease_seconds,
       e.retry_limit, e.window_set, e.window_ms, e.window_count
FROM queen.ephemeral_queues e;

-- name: FindEphemeralQueue :one
-- Caller: brokers, when a change of the queue is announced. Plan: primary key.
SELECT e.tenant, e.name, e.version, e.max_bytes, e.max_length, e.policy, e.ttl_seconds, e.lease_seconds,
       e.retry_limit, e.window_set, e.window_ms, e.window_count
FROM queen.ephemeral_queues e
WHERE e.tenant = @tenant AND e.name = @name;

-- name: ListEphemeralGrants :many
-- Caller: brokers, now and then, along with the declarations.
SELECT g.tenant, g.enabled, g.max_bytes, g.max_queues, g.messages_per_second FROM queen.ephemeral_grants g;

-- name: LockEphemeralQueue :exec
-- Caller: configure and delete, before anything else. Locks: the name, by a
-- hash, until the transaction ends; what is not declared has no row to lock,
-- hence advisory. It takes one such lock, so it cannot deadlock with others.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(' ', 'ephemeral', @tenant::uuid, @name::text), 0));

-- name: PutEphemeralQueue :one
-- Caller: configure, under LockEphemeralQueue. Replaces all of a declaration.
INSERT INTO queen.ephemeral_queues (tenant, name, version, max_bytes, max_length, policy, ttl_seconds, lease_seconds,
                                    retry_limit, window_set, window_ms, window_count, created_at, updated_at)
VALUES (@tenant, @name, nextval('queen.ephemeral_version'), sqlc.narg(max_bytes), sqlc.narg(max_length), sqlc.narg(policy),
        sqlc.narg(ttl_seconds), sqlc.narg(lease_seconds), sqlc.narg(retry_limit), @window_set, sqlc.narg(window_ms),
        sqlc.narg(window_count), queen.clock(), queen.clock())
ON CONFLICT ON CONSTRAINT ephemeral_queues_pkey DO UPDATE
SET version = excluded.version, max_bytes = excluded.max_bytes, max_length = excluded.max_length, policy = excluded.policy,
    ttl_seconds = excluded.ttl_seconds, lease_seconds = excluded.lease_seconds, retry_limit = excluded.retry_limit,
    window_set = excluded.window_set, window_ms = excluded.window_ms, window_count = excluded.window_count,
    updated_at = excluded.updated_at
RETURNING version;

-- name: DeleteEphemeralQueue :one
-- Caller: delete, under LockEphemeralQueue. A version is drawn even when there
-- was nothing: it tells brokers that whatever they know is older.
WITH gone AS (
  DELETE FROM queen.ephemeral_queues e WHERE e.tenant = @tenant AND e.name = @name RETURNING e.name
)
SELECT nextval('queen.ephemeral_version')::bigint AS version, EXISTS (SELECT FROM gone g)::boolean AS existed;
