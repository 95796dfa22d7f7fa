package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// defaultFetchBytes is what an entry may bring when it names no limit.
const defaultFetchBytes = 1 << 20

// entries reads an array of at most MaxReadEntries elements.
func entries[T any](d *decoder, at place, into *[]T, read func(at place, e *T) error) error {
	*into = []T{}
	return d.list(at, func(i int) error {
		if i == mq.MaxReadEntries {
			return badRequest("entries", "entries holds more than %d elements", mq.MaxReadEntries)
		}
		var e T
		if err := read(place{list: "entries", index: i}, &e); err != nil {
			return err
		}
		*into = append(*into, e)
		return nil
	})
}

// queueName reads the name of a queue that an entry reads from.
func (d *decoder) queueName(at place) (string, error) {
	name, set, err := d.name(at, "")
	if err == nil && !set {
		err = badRequest(at.String(), "%s is required", at)
	}
	return name, err
}

// partitionName reads a name that may be written as a number, which then is
// its own decimal name.
func (d *decoder) partitionName(at place) (string, error) {
	if d.dec.PeekKind() == '0' {
		v, err := d.value()
		return string(v), err
	}
	name, _, err := d.name(at, "")
	return name, err
}

func partitionOrDefault(name string) string {
	if name == "" {
		return mq.DefaultPartition
	}
	return name
}

var fetchFields = []field[mq.Fetch]{
	{"entries", func(d *decoder, at place, f *mq.Fetch) error {
		return entries(d, at, &f.Entries, d.fetchEntry)
	}},
	{"maxWaitMs", func(d *decoder, at place, f *mq.Fetch) error {
		n, _, err := d.integer(at)
		f.Wait = time.Duration(min(max(n, 0), int64(mq.MaxFetchWait/time.Millisecond))) * time.Millisecond
		return err
	}},
	{"minBytes", func(d *decoder, at place, f *mq.Fetch) error {
		n, set, err := d.integer(at)
		if set {
			f.MinBytes = int(min(max(n, 0), mq.MaxFetchTotal))
		}
		return err
	}},
}

var fetchEntryFields = []field[mq.FetchEntry]{
	{"queue", func(d *decoder, at place, e *mq.FetchEntry) (err error) {
		e.Queue, err = d.queueName(at)
		return err
	}},
	{"partition", func(d *decoder, at place, e *mq.FetchEntry) (err error) {
		e.Partition, err = d.partitionName(at)
		return err
	}},
	{"offset", func(d *decoder, at place, e *mq.FetchEntry) error {
		n, set, err := d.integer(at)
		switch {
		case err != nil:
			return err
		case set && n < 0:
			return badRequest(at.String(), "%s must not be negative", at)
		case set:
			e.Offset = n
		}
		return nil
	}},
	{"maxBytes", func(d *decoder, at place, e *mq.FetchEntry) error {
		n, set, err := d.integer(at)
		if set {
			e.MaxBytes = int(min(max(n, 1), mq.MaxFetchBytes))
		}
		return err
	}},
}

func (d *decoder) fetchEntry(at place, e *mq.FetchEntry) error {
	e.MaxBytes, e.Offset = defaultFetchBytes, -1
	seen, err := object(d, at, fetchEntryFields, e)
	if err != nil {
		return err
	}
	if err := requireQueue(at, seen); err != nil {
		return err
	}
	if e.Offset < 0 {
		at.key = "offset"
		return badRequest(at.String(), "%s is required", at)
	}
	e.Partition = partitionOrDefault(e.Partition)
	return nil
}

// requireQueue checks that the first field of an entry's table was there.
func requireQueue(at place, seen uint32) error {
	if seen&1 == 0 {
		at.key = "queue"
		return badRequest(at.String(), "%s is required", at)
	}
	return nil
}

func requireEntries[T any](list []T) error {
	if list == nil {
		return badRequest("entries", "entries is required")
	}
	return nil
}

func (s *server) fetch(w *response, r *http.Request) error {
	f := mq.Fetch{Tenant: callerOf(r).Tenant, MinBytes: 1}
	err := s.decodeBody(w, r, func(d *decoder) error {
		if _, err := object(d, place{}, fetchFields, &f); err != nil {
			return err
		}
		return requireEntries(f.Entries)
	})
	if err != nil {
		return err
	}
	if f.Wait > 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	var results []mq.FetchResult
	if len(f.Entries) > 0 {
		if results, err = s.b.Fetch(r.Context(), f); err != nil {
			return err
		}
	}
	if len(results) != len(f.Entries) {
		return fmt.Errorf("fetch: %d results for %d entries", len(results), len(f.Entries))
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "entries"), '[')
		for i := range results {
			b = append(appendFetched(append(elem(b), '{'), &f.Entries[i], &results[i]), '}')
		}
		return append(b, "]}"...)
	})
}

func appendFetched(b []byte, e *mq.FetchEntry, res *mq.FetchResult) []byte {
	size := 0
	for i := range res.Records {
		size += len(res.Records[i].Payload) + len(res.Records[i].TransactionID) + 96
	}
	b = slices.Grow(b, size)
	b = str(key(b, "queue"), e.Queue)
	b = str(key(b, "partition"), e.Partition)
	b = append(key(b, "records"), '[')
	for i := range res.Records {
		rec := &res.Records[i]
		b = num(key(append(elem(b), '{'), "offset"), rec.Offset)
		b = str(key(b, "transactionId"), rec.TransactionID)
		b = raw(key(b, "payload"), rec.Payload)
		b = append(instant(key(b, "ts"), rec.CreatedAt), '}')
	}
	b = append(b, ']')
	return appendBounds(b, res.HighWatermark, res.LogStart, res.Err)
}

func appendBounds(b []byte, highWatermark, logStart int64, problem string) []byte {
	b = num(key(b, "highWatermark"), highWatermark)
	b = num(key(b, "logStartOffset"), logStart)
	if problem != "" {
		b = str(key(b, "error"), problem)
	}
	return b
}

var offsetFields = []field[[]mq.OffsetEntry]{
	{"entries", func(d *decoder, at place, list *[]mq.OffsetEntry) error {
		return entries(d, at, list, d.offsetEntry)
	}},
}

var offsetEntryFields = []field[mq.OffsetEntry]{
	{"queue", func(d *decoder, at place, e *mq.OffsetEntry) (err error) {
		e.Queue, err = d.queueName(at)
		return err
	}},
	{"partition", func(d *decoder, at place, e *mq.OffsetEntry) (err error) {
		e.Partition, err = d.partitionName(at)
		return err
	}},
	{"timestamp", func(d *decoder, at place, e *mq.OffsetEntry) (err error) {
		e.Time, err = d.timestamp(at)
		return err
	}},
}

// timestamp reads a time written as ISO-8601 text or as a number of
// milliseconds.
func (d *decoder) timestamp(at place) (time.Time, error) {
	if d.dec.PeekKind() != '0' {
		return d.isoTime(at)
	}
	v, err := d.value()
	if err != nil {
		return time.Time{}, err
	}
	ms, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || !inRange(time.UnixMilli(ms)) {
		return time.Time{}, badRequest(at.String(), "%s is not a time", at)
	}
	return time.UnixMilli(ms).UTC(), nil
}

func (d *decoder) offsetEntry(at place, e *mq.OffsetEntry) error {
	seen, err := object(d, at, offsetEntryFields, e)
	if err != nil {
		return err
	}
	if err := requireQueue(at, seen); err != nil {
		return err
	}
	if e.Time.IsZero() {
		at.key = "timestamp"
		return badRequest(at.String(), "%s is required", at)
	}
	e.Partition = partitionOrDefault(e.Partition)
	return nil
}

func (s *server) fetchOffsets(w *response, r *http.Request) error {
	var list []mq.OffsetEntry
	err := s.decodeBody(w, r, func(d *decoder) error {
		if _, err := object(d, place{}, offsetFields, &list); err != nil {
			return err
		}
		return requireEntries(list)
	})
	if err != nil {
		return err
	}
	var results []mq.OffsetResult
	if len(list) > 0 {
		if results, err = s.b.FetchOffsets(r.Context(), callerOf(r).Tenant, list); err != nil {
			return err
		}
	}
	if len(results) != len(list) {
		return fmt.Errorf("fetch offsets: %d results for %d entries", len(results), len(list))
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "entries"), '[')
		for i := range results {
			b = append(appendOffset(append(elem(b), '{'), &list[i], &results[i]), '}')
		}
		return append(b, "]}"...)
	})
}

func appendOffset(b []byte, e *mq.OffsetEntry, res *mq.OffsetResult) []byte {
	b = str(key(b, "queue"), e.Queue)
	b = str(key(b, "partition"), e.Partition)
	if res.Found {
		b = num(key(b, "offset"), res.Offset)
		b = instant(key(b, "ts"), res.CreatedAt)
	} else {
		b = null(key(b, "offset"))
		b = null(key(b, "ts"))
	}
	return appendBounds(b, res.HighWatermark, res.LogStart, res.Err)
}
