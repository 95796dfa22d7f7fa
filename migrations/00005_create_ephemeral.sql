-- Ephemeral queues: what was declared of them, and what tenants may use. Their
-- messages are never here: they are in Redis, and may be lost.

-- +goose Up
CREATE TABLE queen.ephemeral_queues (
  tenant        uuid NOT NULL,
  version       bigint NOT NULL,
  -- The options as they were sent; NULL: not sent, so the broker's default
  -- holds, whatever it is by then.
  max_bytes     bigint,
  max_length    bigint,
  ttl_seconds   bigint,
  lease_seconds bigint,
  retry_limit   bigint,
  window_ms     bigint,
  window_count  bigint,
  created_at    timestamptz NOT NULL,
  updated_at    timestamptz NOT NULL,
  window_set    boolean NOT NULL, -- a window without members is one too
  policy        text COLLATE "C",
  name          text COLLATE "C" NOT NULL,
  CONSTRAINT ephemeral_queues_pkey PRIMARY KEY (tenant, name)
);

-- Versions rise with every change of any declaration, deletions included, so
-- that of two announcements a broker can tell the later: a number is drawn
-- under the lock of its queue, and no session keeps numbers for later.
CREATE SEQUENCE queen.ephemeral_version AS bigint CACHE 1;

-- Filled by the operator. A limit that is NULL is none.
CREATE TABLE queen.ephemeral_grants (
  tenant              uuid NOT NULL,
  max_bytes           bigint,
  max_queues          bigint, -- declared ones, and undeclared ones that exist
  messages_per_second double precision,
  updated_at          timestamptz NOT NULL DEFAULT queen.clock(),
  enabled             boolean NOT NULL DEFAULT true,
  CONSTRAINT ephemeral_grants_pkey PRIMARY KEY (tenant)
);

-- +goose Down
DELETE FROM queen.settings WHERE name = 'ephemeral';
DROP TABLE queen.ephemeral_grants;
DROP SEQUENCE queen.ephemeral_version;
DROP TABLE queen.ephemeral_queues;
