-- The keys of the two steps before take the place of the old ones. Brokers that
-- were built before this step name constraints that are gone, and answer 500.

-- +goose Up
SET LOCAL lock_timeout = '50ms';

ALTER TABLE queen.partitions DROP CONSTRAINT partitions_pkey,
  ADD CONSTRAINT partitions_epoch_pkey PRIMARY KEY USING INDEX partitions_epoch_pkey;
ALTER TABLE queen.cursors DROP CONSTRAINT cursors_pkey,
  ADD CONSTRAINT cursors_committed_pkey PRIMARY KEY USING INDEX cursors_committed_pkey;

-- A cursor that was drained by retention stood behind what was removed. A claim
-- puts it right.
UPDATE queen.cursors c SET ready_at = queen.clock()
FROM queen.partitions p
WHERE p.queue_id = c.queue_id AND p.id = c.partition_id AND c.ready_at IS NULL AND c.committed < p.last_offset;

-- +goose Down
SET LOCAL lock_timeout = '50ms';
ALTER TABLE queen.cursors DROP CONSTRAINT cursors_committed_pkey,
  ADD CONSTRAINT cursors_pkey PRIMARY KEY (queue_id, partition_id, group_id);
CREATE UNIQUE INDEX cursors_committed_pkey ON queen.cursors (queue_id, partition_id, group_id, committed);
ALTER TABLE queen.partitions DROP CONSTRAINT partitions_epoch_pkey,
  ADD CONSTRAINT partitions_pkey PRIMARY KEY (queue_id, id);
CREATE UNIQUE INDEX partitions_epoch_pkey ON queen.partitions (queue_id, id, epoch);
