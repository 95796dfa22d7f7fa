package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var (
	errNotAppended = errors.New("push was not appended")
	errNotAcked    = errors.New("batch was not acknowledged")
	errBadSegment  = errors.New("segment does not hold what it says")
)

// popBytes is the byte budget of one claim.
const popBytes = 16 << 20

// pushLoop appends one batch to one partition per transaction until pushing ends.
func (f *floor) pushLoop(ctx, pushing context.Context, conn *pgx.Conn, worker int) error {
	seqs := make(map[int]int64)
	for i := worker; pushing.Err() == nil; i += f.cfg.floorPushers {
		if i >= len(f.names) {
			i = worker
			if i >= len(f.names) {
				return nil
			}
		}
		count := f.take()
		if count == 0 {
			return nil
		}
		seg := f.segment(i, seqs[i], count)
		seqs[i] += int64(count)
		began := time.Now()
		if err := f.append(ctx, conn, f.names[i], &seg); err != nil {
			return err
		}
		f.push.record(time.Since(began))
		f.pushed.Add(int64(count))
		f.lastPush.Store(int64(time.Since(f.start)))
	}
	return nil
}

func (f *floor) take() int {
	if f.cfg.messages == 0 {
		return f.cfg.batch
	}
	left := f.budget.Add(-int64(f.cfg.batch)) + int64(f.cfg.batch)
	return int(min(max(left, 0), int64(f.cfg.batch)))
}

// segment is the columns of one row of messages, as the broker stores them.
type segment struct {
	body      []byte
	ends      []byte
	marks     []byte
	runs      []int32
	positions []int32
	hashes    [][16]byte
	probes    []bool
}

func (f *floor) segment(lane int, first int64, count int) segment {
	s := segment{
		runs: make([]int32, count), positions: make([]int32, count),
		hashes: make([][16]byte, count), probes: make([]bool, count),
	}
	var mark uint64
	at := int64(time.Since(f.start))
	s.body = append(s.body, '[')
	for i := range count {
		seq := first + int64(i)
		if i > 0 {
			s.body = append(s.body, ',')
		}
		id := f.transactionID(lane, seq)
		s.body = append(s.body, `{"id":"`...)
		s.body = append(s.body, uuid.NewString()...)
		s.body = append(s.body, `","transactionId":"`...)
		s.body = append(s.body, id...)
		s.body = append(s.body, `","traceId":null,"producerSub":null,"data":`...)
		s.body = f.payloads.append(s.body, int64(lane), seq, at)
		s.body = append(s.body, '}')
		s.ends = binary.BigEndian.AppendUint32(s.ends, uint32(len(s.body)))
		var one uint64
		s.hashes[i], one = hashID(id)
		mark ^= one
		s.marks = binary.BigEndian.AppendUint64(s.marks, mark)
		s.positions[i] = int32(i)
		s.probes[i] = f.cfg.dedup
	}
	s.body = append(s.body, ']')
	return s
}

func (f *floor) transactionID(lane int, seq int64) []byte {
	b := strconv.AppendInt(nil, f.payloads.run, 36)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(lane), 10)
	b = append(b, '-')
	return strconv.AppendInt(b, seq, 10)
}

// hashID is what the id index stores of a transaction id, and the mark that goes into a batch's fingerprint.
func hashID(id []byte) (key [16]byte, mark uint64) {
	sum := sha256.Sum256(id)
	return [16]byte(sum[:16]), binary.BigEndian.Uint64(sum[16:24])
}

func (f *floor) append(ctx context.Context, conn *pgx.Conn, partition string, s *segment) error {
	appended := false
	count := int32(len(s.runs))
	err := f.stmts.run(ctx, conn, func(rows pgx.Rows) error {
		var pos int32
		if err := scan(rows, named{"pos": &pos}); err != nil {
			return err
		}
		appended = appended || pos == -1
		return nil
	}, call{"LockPartitions", named{"queue_id": f.queue.id, "names": []string{partition}}},
		call{"AppendSegments", f.appendArgs(partition, count, s)})
	if err == nil && !appended {
		return errNotAppended
	}
	return err
}

func (f *floor) appendArgs(partition string, count int32, s *segment) named {
	return named{
		"queue_id": f.queue.id, "version": f.queue.version,
		"runs": []int32{0}, "run_names": []string{partition}, "run_counts": []int32{count},
		"item_runs": s.runs, "item_positions": s.positions, "item_hashes": s.hashes, "item_probes": s.probes,
		"id_class": f.queue.idClass, "id_class_before": f.queue.idClass, "dedup_seconds": f.dedupSeconds(),
		"segment_runs": []int32{0}, "segment_last_positions": []int32{count - 1}, "segment_counts": []int32{count},
		"segment_ends": [][]byte{s.ends}, "segment_marks": [][]byte{s.marks}, "segment_bodies": []string{string(s.body)},
	}
}

// scanFloor is the lower bound of the claim scan: the oldest ready_at claimed last, less a margin, dropped once a
// second. It skips index entries that died since. The broker keeps one per group.
type scanFloor struct {
	at    time.Time
	reset time.Time
}

const scanMargin = time.Second

var beginning = time.Unix(0, 0)

func (s *scanFloor) bound() time.Time {
	if time.Since(s.reset) > time.Second {
		s.at, s.reset = beginning, time.Now()
	}
	return s.at
}

func (s *scanFloor) claimed(oldest time.Time) { s.at = oldest.Add(-scanMargin) }

// popLoop claims, reads and acknowledges until everything that was pushed is done.
func (f *floor) popLoop(ctx context.Context, conn *pgx.Conn) error {
	var bound scanFloor
	idle := minIdle
	for {
		claims, err := f.claim(ctx, conn, &bound)
		if err != nil {
			return err
		}
		if len(claims.counts) > 0 {
			idle = minIdle
			if err := f.acknowledge(ctx, conn, claims); err != nil {
				return err
			}
			continue
		}
		if f.done.Load() && f.acked.Load() >= f.pushed.Load() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		sleep(ctx, idle)
		idle = min(2*idle, maxIdle)
	}
}

// claim is what one pop took, a lease per partition.
type claim struct {
	lease      [16]byte
	partitions []int64
	counts     []int32
	marks      []int64
}

func (f *floor) claim(ctx context.Context, conn *pgx.Conn, bound *scanFloor) (*claim, error) {
	c := &claim{lease: uuid.Must(uuid.NewV7())}
	began := time.Now()
	var oldest time.Time
	err := f.stmts.run(ctx, conn, func(rows pgx.Rows) error {
		var partition int64
		var readyAt time.Time
		var from, to int32
		var ends []byte
		var body []byte
		err := scan(rows, named{
			"partition_id": &partition, "ready_at": &readyAt, "from_pos": &from, "to_pos": &to, "ends": &ends, "body": &body,
		})
		if err != nil {
			return err
		}
		if oldest.IsZero() || readyAt.Before(oldest) {
			oldest = readyAt
		}
		return c.add(partition, ends, body, int(from), int(to))
	}, call{"ClaimPartitions", f.claimArgs(c.lease, bound.bound())})
	if err != nil {
		return nil, err
	}
	if len(c.counts) > 0 {
		f.pop.record(time.Since(began))
		bound.claimed(oldest)
	}
	return c, nil
}

func (f *floor) claimArgs(lease [16]byte, bound time.Time) named {
	return named{
		"lease_seconds": 0, "queue_id": f.queue.id, "max_messages": f.cfg.popBatch, "max_bytes": popBytes,
		"pinned": false, "group_id": f.queue.group, "floor": bound, "max_partitions": f.cfg.popPartitions,
		"partition_name": "", "auto_commit": false, "lease_id": lease,
	}
}

// add reads the ids of the messages handed out of one segment, as a client would have to for its acknowledgement.
func (c *claim) add(partition int64, ends, body []byte, from, to int) error {
	if n := len(c.partitions); n == 0 || c.partitions[n-1] != partition {
		c.partitions = append(c.partitions, partition)
		c.counts = append(c.counts, 0)
		c.marks = append(c.marks, 0)
	}
	last := len(c.partitions) - 1
	for pos := from; pos <= to; pos++ {
		start := 1
		if pos > 0 {
			start = int(binary.BigEndian.Uint32(ends[4*(pos-1):])) + 1
		}
		end := int(binary.BigEndian.Uint32(ends[4*pos:]))
		if start >= end || end > len(body) {
			return errBadSegment
		}
		d := delivery{}
		s := scanner{b: body[start:end]}
		if err := s.message(&d); err != nil {
			return fmt.Errorf("%w: %w", errBadSegment, err)
		}
		_, mark := hashID(d.transactionID)
		c.counts[last]++
		c.marks[last] ^= int64(mark)
	}
	return nil
}

func (f *floor) acknowledge(ctx context.Context, conn *pgx.Conn, c *claim) error {
	began := time.Now()
	rowCount := 0
	err := f.stmts.run(ctx, conn, func(pgx.Rows) error {
		rowCount++
		return nil
	}, call{"AckBatches", f.ackArgs(c)})
	if err != nil {
		return err
	}
	if rowCount != len(c.counts) {
		return fmt.Errorf("%w: %d of %d leases", errNotAcked, rowCount, len(c.counts))
	}
	f.ack.record(time.Since(began))
	for _, n := range c.counts {
		f.acked.Add(int64(n))
	}
	f.lastAck.Store(int64(time.Since(f.start)))
	return nil
}

func (f *floor) ackArgs(c *claim) named {
	ords := make([]int32, len(c.counts))
	groups := make([]int64, len(c.counts))
	leases := make([][16]byte, len(c.counts))
	for i := range c.counts {
		ords[i], groups[i], leases[i] = int32(i), f.queue.group, c.lease
	}
	return named{
		"queue_id": f.queue.id, "ords": ords, "partition_ids": c.partitions, "group_ids": groups,
		"lease_ids": leases, "counts": c.counts, "marks": c.marks,
	}
}
