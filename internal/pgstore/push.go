package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// Append stores the runs of a gathered push in one transaction and one round
// trip, and writes each run's verdict into it. Queues must differ from each
// other, and the partitions of a queue too.
func (s *Store) Append(ctx context.Context, parts []mq.Append) error {
	slices.SortFunc(parts, func(a, b mq.Append) int { return int(min(max(a.Queue.ID-b.Queue.ID, -1), 1)) })
	err := s.append(ctx, parts)
	if errors.Is(err, errNoSlice) {
		if err = s.EnsureIDSlices(ctx); err == nil {
			err = s.append(ctx, parts)
		}
	}
	return translate(err)
}

func (s *Store) append(ctx context.Context, parts []mq.Append) error {
	var b batch
	b.gathered = len(parts) > 1 || len(parts[0].Runs) > 1
	q := b.queries()
	// All partition locks of all queues come before the first append: one lock
	// order for every transaction of the fleet.
	for i := range parts {
		names := make([]string, len(parts[i].Runs))
		for j := range parts[i].Runs {
			names[j] = parts[i].Runs[j].Partition
		}
		_ = q.LockPartitions(ctx, db.LockPartitionsParams{QueueID: parts[i].Queue.ID, Names: names})
	}
	for i := range parts {
		_, _ = q.AppendSegments(ctx, appendParams(&parts[i]))
	}
	return s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		for range parts {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		for i := range parts {
			if err := readVerdicts(br, parts[i].Runs); err != nil {
				return err
			}
		}
		return nil
	})
}

func appendParams(a *mq.Append) db.AppendSegmentsParams {
	n := 0
	for i := range a.Runs {
		n += len(a.Runs[i].Messages)
	}
	runs := len(a.Runs)
	p := db.AppendSegmentsParams{
		QueueID: a.Queue.ID, Version: a.Queue.Version, DedupSeconds: a.Queue.Options.DedupWindowSeconds,
		IDClass: a.Queue.IDClass, IDClassBefore: a.Queue.IDClassBefore,
		Runs: make([]int32, runs), RunNames: make([]string, runs), RunCounts: make([]int32, runs),
		ItemRuns: make([]int32, 0, n), ItemPositions: make([]int32, 0, n),
		ItemHashes: make([][16]byte, 0, n), ItemProbes: make([]bool, 0, n),
		SegmentRuns: make([]int32, 0, runs), SegmentLastPositions: make([]int32, 0, runs),
		SegmentCounts: make([]int32, 0, runs), SegmentEnds: make([][]byte, 0, runs),
		SegmentMarks: make([][]byte, 0, runs), SegmentBodies: make([]string, 0, runs),
	}
	for i := range a.Runs {
		r, run := &a.Runs[i], int32(i)
		r.Appended, r.Stored = false, nil
		p.Runs[i], p.RunNames[i], p.RunCounts[i] = run, r.Partition, int32(len(r.Messages))
		for pos, m := range r.Messages {
			p.ItemRuns = append(p.ItemRuns, run)
			p.ItemPositions = append(p.ItemPositions, int32(pos))
			p.ItemHashes = append(p.ItemHashes, m.Hash.Key)
			p.ItemProbes = append(p.ItemProbes, m.Probe && a.Queue.Options.DedupWindowSeconds > 0)
		}
		last := int32(-1)
		for _, seg := range buildSegments(r.Messages) {
			last += int32(seg.count)
			p.SegmentRuns = append(p.SegmentRuns, run)
			p.SegmentLastPositions = append(p.SegmentLastPositions, last)
			p.SegmentCounts = append(p.SegmentCounts, int32(seg.count))
			p.SegmentEnds = append(p.SegmentEnds, seg.ends)
			p.SegmentMarks = append(p.SegmentMarks, seg.marks)
			// The body is ours and is not written to again: no copy.
			p.SegmentBodies = append(p.SegmentBodies, unsafe.String(unsafe.SliceData(seg.body), len(seg.body)))
		}
	}
	return p
}

func readVerdicts(br pgx.BatchResults, runs []mq.Run) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	var run, pos int32
	var partition, offset int64
	_, err = pgx.ForEachRow(rows, []any{&run, &pos, &partition, &offset}, func() error {
		r := &runs[run]
		r.PartitionID = partition
		if pos < 0 {
			r.Appended, r.First = true, offset
		} else {
			r.Stored = append(r.Stored, mq.StoredID{Pos: int(pos), Offset: offset})
		}
		return nil
	})
	return err
}

// MessageIDs returns the ids of the messages at the given offsets, zero where
// one can no longer be read.
func (s *Store) MessageIDs(ctx context.Context, queue int64, refs []mq.OffsetRef) ([]mq.UUID, error) {
	ids := make([]mq.UUID, len(refs))
	err := s.readElements(ctx, queue, refs, func(i int, _ mq.Segment, e []byte) error {
		id, _, err := parseIdentity(e)
		ids[i] = id
		return err
	})
	return ids, err
}

// readElements reads the stored elements at the given offsets. Those that are
// gone are passed over.
func (s *Store) readElements(ctx context.Context, queue int64, refs []mq.OffsetRef, each func(i int, head mq.Segment, element []byte) error) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	c, err := s.acquire(ctx, s.hot)
	if err != nil {
		return translate(err)
	}
	defer c.Release()
	return translate(readElements(ctx, c, queue, refs, each))
}

func readElements(ctx context.Context, q db.DBTX, queue int64, refs []mq.OffsetRef, each func(int, mq.Segment, []byte) error) error {
	p := db.ReadSegmentsAtParams{QueueID: queue}
	for i, r := range refs {
		p.Ords = append(p.Ords, int32(i))
		p.PartitionIds = append(p.PartitionIds, r.Partition)
		p.Offsets = append(p.Offsets, r.Offset)
	}
	rows, err := db.New(q).ReadSegmentsAt(ctx, p)
	if err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		at := int(refs[r.Ord].Offset - (r.EndOffset - int64(r.MessageCount) + 1))
		first, part, ends, base, err := cut(r.EndOffset, r.MessageCount, r.Ends, []byte(r.Body), at, at)
		if err != nil {
			return err
		}
		seg := mq.NewSegment(first, r.CreatedAt, part, ends, base)
		if err := each(int(r.Ord), seg, seg.Message(0)); err != nil {
			return err
		}
	}
	return nil
}

// EnsurePartitions makes the partitions of a queue that do not exist yet.
func (s *Store) EnsurePartitions(ctx context.Context, queue int64, names []string) error {
	names = slices.Clone(names)
	slices.SortFunc(names, strings.Compare)
	names = slices.Compact(names)
	var b batch
	q := b.queries()
	_ = q.ShareQueue(ctx, queue)
	_ = q.CreatePartitions(ctx, db.CreatePartitionsParams{QueueID: queue, Names: names})
	return s.run(ctx, s.hot, &b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		_, err := br.Exec()
		return err
	})
}

// EnsureIDSlices makes sure that ids of every class can be stored now and for
// a while.
func (s *Store) EnsureIDSlices(ctx context.Context) error {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	for class := range int16(3) {
		if err := db.New(s.cold).EnsureIDSlices(ctx, class); err != nil {
			return translate(err)
		}
	}
	return nil
}
