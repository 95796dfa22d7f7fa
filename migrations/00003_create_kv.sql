-- The key/value store: what applications keep beside their queues, and the rows
-- that locks are made of.
--
-- A row is judged by the clock, not by its presence: one whose expires_at has
-- passed counts as absent everywhere, and the janitor removes it some time.

-- +goose Up
CREATE TABLE queen.kv (
  tenant     uuid NOT NULL,
  version    bigint NOT NULL,
  created_at timestamptz NOT NULL, -- of the row, not of what is in it
  updated_at timestamptz NOT NULL,
  expires_at timestamptz,          -- NULL: never
  ns         text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  -- JSON text without spaces, otherwise as it was sent. Not jsonb, which would
  -- respell numbers, drop members named twice and refuse "\u0000".
  value      text COLLATE "C" NOT NULL,
  CONSTRAINT kv_pkey PRIMARY KEY (tenant, ns, key)
) WITH (
  -- Counters and locks rewrite their rows: room for HOT updates, and vacuum by
  -- count as well as by share.
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- For the janitor only. A row without an end is not in it; renewing one with an
-- end moves it, so a lock that is renewed costs an index entry.
CREATE INDEX kv_expires_at_idx ON queen.kv (expires_at) WHERE expires_at IS NOT NULL;

-- Versions rise on every key, across delete, expiry and restart: a number is
-- drawn under the lock of its key, and no session keeps numbers for later.
CREATE SEQUENCE queen.kv_version AS bigint CACHE 1;

-- What an operator can change while the brokers run. Nothing stored: on.
CREATE TABLE queen.settings (
  name       text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT settings_pkey PRIMARY KEY (name)
);

-- +goose Down
DROP TABLE queen.settings;
DROP SEQUENCE queen.kv_version;
DROP TABLE queen.kv;
