package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/queries"
)

// statements are the broker's queries the floor runs. They are read by name, and their parameters bound by name, so
// the floor always measures the statements of this build, or refuses to run.
type statements struct {
	byName map[string]queries.Statement
}

var floorQueries = []string{
	"CreateQueue", "FindQueue", "EnsureIDSlices",
	"ShareQueue", "CreatePartitions",
	"LockQueue", "RegisterGroup", "FindGroup", "LockPartitionsToSeed", "SeedCursors",
	"LockPartitions", "AppendSegments", "ClaimPartitions", "AckBatches",
	"LockAllPartitions", "DeleteQueueCursors", "DeleteQueuePartitions", "DeleteQueueGroups", "DropQueue", "DeleteQueue",
}

func loadStatements() (*statements, error) {
	s := &statements{byName: make(map[string]queries.Statement, len(floorQueries))}
	for _, name := range floorQueries {
		q, err := queries.Text(name)
		if err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		s.byName[name] = q
	}
	return s, nil
}

type named = map[string]any

// queue adds a statement to a batch. A batch without BEGIN is one transaction and one round trip.
func (s *statements) queue(b *pgx.Batch, name string, args named) error {
	q := s.byName[name]
	values, err := q.Args(args)
	if err != nil {
		return err
	}
	b.Queue(q.SQL, values...)
	return nil
}

// call is one statement of a transaction.
type call struct {
	name string
	args named
}

// run executes the calls in one transaction and one round trip, and hands the rows of the last one to each.
func (s *statements) run(ctx context.Context, conn *pgx.Conn, each func(pgx.Rows) error, calls ...call) error {
	var batch pgx.Batch
	for _, c := range calls {
		if err := s.queue(&batch, c.name, c.args); err != nil {
			return err
		}
	}
	results := conn.SendBatch(ctx, &batch)
	for i, c := range calls {
		rows, err := results.Query()
		if err == nil {
			for rows.Next() {
				if each == nil || i < len(calls)-1 {
					continue
				}
				if err = each(rows); err != nil {
					break
				}
			}
			rows.Close()
			if err == nil {
				err = rows.Err()
			}
		}
		if err != nil {
			_ = results.Close()
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("%s: %w", calls[len(calls)-1].name, err)
	}
	return nil
}

// scan reads the wanted columns of a row by name and leaves the others alone.
func scan(rows pgx.Rows, want named) error {
	fields := rows.FieldDescriptions()
	targets := make([]any, len(fields))
	found := 0
	for i := range fields {
		if to, ok := want[fields[i].Name]; ok {
			targets[i] = to
			found++
		}
	}
	if found != len(want) {
		return fmt.Errorf("row has %d of the %d columns wanted", found, len(want))
	}
	return rows.Scan(targets...)
}

// floorQueue is the queue the floor works on.
type floorQueue struct {
	id      int64
	version int32
	idClass int16
	group   int64
}

const (
	floorGroup   = "floor"
	seedStep     = 10_000
	startModeAll = 1
)

func createQueueArgs(name string, lease, dedupSeconds int) named {
	return named{
		"tenant": [16]byte{15: 1}, "name": name,
		"namespace": "loadtest", "task": "floor", "priority": 0, "lease_time": lease, "retry_limit": 3,
		"retry_delay": 1000, "max_size": 0, "ttl": 3600, "dead_letter_queue": true, "dlq_after_max_retries": true,
		"delayed_processing": 0, "window_buffer": 0, "retention_enabled": false, "retention_seconds": 0,
		"completed_retention_seconds": 0, "max_wait_time_seconds": 0, "min_pop_wait_time": 0,
		"encryption_enabled": false, "dedup_window_seconds": dedupSeconds, "retention_sink_hold": "",
		"retention_sink_hold_max_seconds": 604800, "id_class": 0,
	}
}

// setUp makes the queue, its partitions and the group the way the broker does on first contact.
func (f *floor) setUp(ctx context.Context, conn *pgx.Conn, name string) (floorQueue, error) {
	var q floorQueue
	create := createQueueArgs(name, int(f.cfg.lease.Seconds()), f.dedupSeconds())
	err := f.stmts.run(ctx, conn, func(rows pgx.Rows) error {
		return scan(rows, named{"id": &q.id, "version": &q.version, "id_class": &q.idClass})
	}, call{"CreateQueue", create}, call{"FindQueue", named{"tenant": create["tenant"], "name": name}})
	if err != nil {
		return q, err
	}
	if err := f.stmts.run(ctx, conn, nil, call{"EnsureIDSlices", named{"id_class": q.idClass}}); err != nil {
		return q, err
	}
	for part := range slices.Chunk(f.names, seedStep) {
		err := f.stmts.run(ctx, conn, nil, call{"ShareQueue", named{"id": q.id}},
			call{"CreatePartitions", named{"queue_id": q.id, "names": part}})
		if err != nil {
			return q, err
		}
	}
	err = f.stmts.run(ctx, conn, func(rows pgx.Rows) error { return scan(rows, named{"id": &q.group}) },
		call{"LockQueue", named{"id": q.id}},
		call{"RegisterGroup", named{
			"queue_id": q.id, "name": floorGroup, "start_mode": startModeAll, "start_at": nil, "conflation": false,
		}},
		call{"FindGroup", named{"queue_id": q.id, "name": floorGroup}})
	if err != nil {
		return q, err
	}
	for seeded := false; !seeded; {
		step := named{"queue_id": q.id, "group_id": q.group, "step": seedStep}
		err := f.stmts.run(ctx, conn, func(rows pgx.Rows) error { return scan(rows, named{"seeded": &seeded}) },
			call{"LockPartitionsToSeed", step}, call{"SeedCursors", step})
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

func (f *floor) tearDown(ctx context.Context, conn *pgx.Conn) error {
	id := named{"queue_id": f.queue.id}
	return f.stmts.run(ctx, conn, nil,
		call{"LockQueue", named{"id": f.queue.id}}, call{"LockAllPartitions", id},
		call{"DeleteQueueCursors", id}, call{"DeleteQueuePartitions", id}, call{"DeleteQueueGroups", id},
		call{"DropQueue", id}, call{"DeleteQueue", named{"id": f.queue.id}})
}

func (f *floor) dedupSeconds() int {
	if f.cfg.dedup {
		return 3600
	}
	return 0
}
