-- +goose Up
-- Timers: messages promised for later. Firing one is appending its message and
-- deleting its row in one transaction, so there is no state between the two.
--
-- Timers belong to a name, not to a queue row: the queue need not exist before
-- the message does.
CREATE TABLE queen.timers (
  tenant       uuid NOT NULL,
  message_id   uuid NOT NULL,        -- promised; a new one with every schedule
  deliver_at   timestamptz NOT NULL, -- the earliest instant allowed
  due_at       timestamptz NOT NULL, -- deliver_at, or when a failed fire is tried again
  created_at   timestamptz NOT NULL, -- of the first schedule of the key
  updated_at   timestamptz NOT NULL,
  attempts     integer NOT NULL DEFAULT 0,
  encrypted    boolean NOT NULL,
  queue        text COLLATE "C" NOT NULL,
  timer_key    text COLLATE "C" NOT NULL,
  partition    text COLLATE "C" NOT NULL,
  txn          text COLLATE "C" NOT NULL, -- the transaction id of the message
  producer_sub text,
  last_error   text,
  payload      bytea NOT NULL,
  CONSTRAINT timers_pkey PRIMARY KEY (tenant, queue, timer_key)
) WITH (
  -- Every row is deleted soon: vacuum by count, and keep the space.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- What is due, whoever's it is, and what is due of one tenant, for when another
-- one has a backlog. The conditions always hold. Only a statement that states
-- one can use its index, which keeps the planner from looking single timers up
-- there: it believes of a new table that a tenant has one.
CREATE INDEX timers_due_at_idx ON queen.timers (due_at) WHERE queue <> '';
CREATE INDEX timers_tenant_due_at_idx ON queen.timers (tenant, due_at) WHERE timer_key <> '';

-- +goose Down
DROP TABLE queen.timers;
