package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// ReadLog reads records of one partition from an offset on: up to maxRecords
// and about maxBytes of payload, at least one if any exists.
func (s *Store) ReadLog(ctx context.Context, info *mq.QueueInfo, e mq.FetchEntry, maxRecords int) (mq.FetchResult, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	var out mq.FetchResult
	q := db.New(s.cold)
	p, err := q.FindPartition(ctx, db.FindPartitionParams{QueueID: info.ID, Name: e.Partition})
	if errors.Is(err, pgx.ErrNoRows) {
		if e.Offset > 0 {
			out.Err = mq.ReadErrOutOfRange
		}
		return out, nil
	}
	if err != nil {
		return out, translate(err)
	}
	out.HighWatermark, out.LogStart = p.LastOffset+1, p.LogStart
	if e.Offset < p.LogStart || e.Offset > p.LastOffset+1 {
		out.Err = mq.ReadErrOutOfRange
		return out, nil
	}
	rows, err := q.ReadLog(ctx, db.ReadLogParams{
		QueueID: info.ID, PartitionID: p.ID, FromOffset: e.Offset,
		MaxSegments: int32(maxRecords), MaxBytes: int64(e.MaxBytes),
	})
	if err != nil {
		return out, translate(err)
	}
	out.Records, err = records(rows, e.Offset, maxRecords, e.MaxBytes)
	return out, translate(err)
}

func records(rows []db.ReadLogRow, from int64, maxRecords, maxBytes int) ([]mq.Record, error) {
	var out []mq.Record
	size := 0
	for i := range rows {
		r := &rows[i]
		first := r.EndOffset - int64(r.MessageCount) + 1
		seg := mq.NewSegment(first, r.CreatedAt, []byte(r.Body)[1:], r.Ends, 1)
		for j := int(max(from-first, 0)); j < seg.Len(); j++ {
			e, err := parseElement(seg.Message(j))
			if err != nil {
				return nil, err
			}
			if len(out) > 0 && (len(out) >= maxRecords || size+len(e.Payload) > maxBytes) {
				return out, nil
			}
			size += len(e.Payload)
			out = append(out, mq.Record{Offset: first + int64(j), TransactionID: e.TransactionID, Payload: e.Payload, CreatedAt: r.CreatedAt})
		}
	}
	return out, nil
}

// OffsetAt finds the first message of a partition stored at or after a time.
func (s *Store) OffsetAt(ctx context.Context, info *mq.QueueInfo, e mq.OffsetEntry) (mq.OffsetResult, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	var out mq.OffsetResult
	var partition int64
	var found *int64
	err := s.cold.QueryRow(ctx, db.FindOffsetAt, e.Time, info.ID, e.Partition).
		Scan(&partition, &out.HighWatermark, &out.LogStart, &found)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, nil
	}
	if err != nil {
		return out, translate(err)
	}
	out.HighWatermark++
	if found == nil {
		return out, nil
	}
	out.Offset = *found
	err = readElements(ctx, s.cold, info.ID, []mq.OffsetRef{{Partition: partition, Offset: *found}},
		func(_ int, head mq.Segment, _ []byte) error {
			out.Found, out.CreatedAt = true, head.CreatedAt
			return nil
		})
	return out, translate(err)
}

// Changed lists a page of a queue's partitions by name, all or those written
// since a time.
func (s *Store) Changed(ctx context.Context, info *mq.QueueInfo, e mq.ChangedEntry) ([]mq.ChangedPartition, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	rows, err := db.New(s.cold).ListChanged(ctx, db.ListChangedParams{
		QueueID: info.ID, AfterSet: e.AfterSet, AfterName: e.After, Since: optional(e.Since), MaxRows: int32(e.Limit),
	})
	out := make([]mq.ChangedPartition, len(rows))
	for i := range rows {
		r := &rows[i]
		out[i] = mq.ChangedPartition{
			ID: mq.PartitionID{Queue: info.ID, Partition: r.ID}, Name: r.Name,
			LastOffset: r.LastOffset, LogStart: r.LogStart,
		}
		if r.LastWriteAt != nil {
			out[i].LastWrite = *r.LastWriteAt
		}
	}
	return out, translate(err)
}

// safeGuard is taken off the start of the oldest transaction: a message is
// stamped before its transaction shows in the activity view at the earliest.
const safeGuard = 5 * time.Second

// SafeTime returns an instant below which no message can still appear. It must
// be read before the partitions it is to vouch for.
func (s *Store) SafeTime(ctx context.Context, floor time.Duration) (mq.SafeTime, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	r, err := db.New(s.cold).ReadSafeTime(ctx)
	if err != nil {
		return mq.SafeTime{}, translate(err)
	}
	if r.Masked {
		return mq.SafeTime{Time: r.Now.Add(-floor), Degraded: true}, nil
	}
	return mq.SafeTime{Time: r.Oldest.Add(-safeGuard)}, nil
}

// MessageDetail reads one message from outside any group: the newest with this
// transaction id. NotFound when none is known; a nil payload when it is known
// but no longer stored.
func (s *Store) MessageDetail(ctx context.Context, info *mq.QueueInfo, p mq.PartitionID, transactionID string) (*mq.MessageDetail, error) {
	ctx, cancel := s.detach(ctx)
	defer cancel()
	q := db.New(s.cold)
	part, err := q.FindPartitionByID(ctx, db.FindPartitionByIDParams{QueueID: p.Queue, ID: p.Partition})
	if err != nil {
		return nil, translate(err)
	}
	offsets, err := q.FindMessage(ctx, db.FindMessageParams{QueueID: p.Queue, PartitionID: p.Partition, IDHash: mq.HashID(transactionID).Key})
	if err != nil {
		return nil, translate(err)
	}
	d := &mq.MessageDetail{
		TransactionID: transactionID, PartitionID: p, Queue: info.Name, Partition: part.Name,
		Options: info.Options, Offset: -1,
	}
	for _, off := range offsets {
		err = readElements(ctx, s.cold, p.Queue, []mq.OffsetRef{{Partition: p.Partition, Offset: off}},
			func(_ int, head mq.Segment, raw []byte) error {
				e, err := parseElement(raw)
				if err != nil || e.TransactionID != transactionID {
					return err
				}
				d.MessageID, d.TraceID, d.ProducerSub, d.Payload = e.ID, e.TraceID, e.ProducerSub, e.Payload
				d.Offset, d.CreatedAt = off, head.CreatedAt
				return nil
			})
		if err != nil {
			return nil, translate(err)
		}
		if d.Payload != nil {
			break
		}
	}
	if d.Payload == nil {
		return d, nil
	}
	groups, err := q.ListMessageGroups(ctx, db.ListMessageGroupsParams{QueueID: p.Queue, PartitionID: p.Partition})
	for i := range groups {
		g := &groups[i]
		mg := mq.MessageGroup{Group: g.Name, Consumed: g.Committed >= d.Offset}
		if g.LeaseExpiresAt != nil && g.LeaseExpiresAt.After(g.Now) && g.BatchEnd != nil && !mg.Consumed && *g.BatchEnd >= d.Offset {
			mg.LeaseExpires = *g.LeaseExpiresAt
		}
		d.Groups = append(d.Groups, mg)
	}
	return d, translate(err)
}
