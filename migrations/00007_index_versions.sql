-- +goose NO TRANSACTION
-- The indexes of the step before, built beside the work. One that was given up
-- half way is begun again.

-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS queen.partitions_epoch_pkey;
CREATE UNIQUE INDEX CONCURRENTLY partitions_epoch_pkey ON queen.partitions (queue_id, id, epoch);

-- committed moves with every batch. That there is one cursor of a group in a
-- partition follows from how cursors are made: with the partition, or under the
-- lock of the group.
DROP INDEX CONCURRENTLY IF EXISTS queen.cursors_committed_pkey;
CREATE UNIQUE INDEX CONCURRENTLY cursors_committed_pkey ON queen.cursors (queue_id, partition_id, group_id, committed);

-- Which groups wait for a push to a partition: those that are drained, and
-- whoever is drained has everything there was before.
DROP INDEX CONCURRENTLY IF EXISTS queen.cursors_queue_id_partition_id_committed_group_id_idx;
CREATE INDEX CONCURRENTLY cursors_queue_id_partition_id_committed_group_id_idx ON queen.cursors (queue_id, partition_id, committed, group_id)
  WHERE ready_at IS NULL;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS queen.cursors_queue_id_partition_id_committed_group_id_idx;
DROP INDEX CONCURRENTLY IF EXISTS queen.cursors_committed_pkey;
DROP INDEX CONCURRENTLY IF EXISTS queen.partitions_epoch_pkey;
