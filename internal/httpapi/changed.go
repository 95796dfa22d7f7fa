package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/http"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// changedEntry is an entry while it is read, with its cursor as sent.
type changedEntry struct {
	mq.ChangedEntry
	after string
	bad   bool // the cursor belongs to another sweep or to nobody
}

var changedFields = []field[[]changedEntry]{
	{"entries", func(d *decoder, at place, list *[]changedEntry) error {
		return entries(d, at, list, d.changedEntry)
	}},
}

var changedEntryFields = []field[changedEntry]{
	{"queue", func(d *decoder, at place, e *changedEntry) (err error) {
		e.Queue, err = d.queueName(at)
		return err
	}},
	{"since", func(d *decoder, at place, e *changedEntry) (err error) {
		e.Since, err = d.timestamp(at)
		return err
	}},
	{"after", func(d *decoder, at place, e *changedEntry) (err error) {
		e.after, e.AfterSet, err = d.text(at, "", true)
		return err
	}},
	{"limit", func(d *decoder, at place, e *changedEntry) error {
		n, set, err := d.integer(at)
		if set {
			e.Limit = int(min(max(n, 1), mq.MaxChangedLimit))
		}
		return err
	}},
}

func (d *decoder) changedEntry(at place, e *changedEntry) error {
	e.Limit = mq.MaxChangedLimit
	if _, err := object(d, at, changedEntryFields, e); err != nil {
		return err
	}
	if e.Queue == "" {
		at.key = "queue"
		return badRequest(at.String(), "%s is required", at)
	}
	if e.AfterSet {
		var ok bool
		e.After, ok = readCursor(e.after, sweepKind(&e.ChangedEntry))
		e.bad = !ok
	}
	return nil
}

// sweepKind tells a sweep over all partitions from one over changed ones. The
// cursor carries it, because continuing one as the other would lose rows.
func sweepKind(e *mq.ChangedEntry) byte {
	if e.Since.IsZero() {
		return 'a'
	}
	return 's'
}

func appendCursor(b []byte, kind byte, after string) []byte {
	return append(base64.RawURLEncoding.AppendEncode(append(b, '"', kind), []byte(after)), '"')
}

func readCursor(cursor string, kind byte) (after string, ok bool) {
	if cursor == "" || cursor[0] != kind {
		return "", false
	}
	name, err := base64.RawURLEncoding.DecodeString(cursor[1:])
	if err != nil || mq.CheckName("", string(name)) != nil {
		return "", false
	}
	return string(name), true
}

func (s *server) partitionsChanged(w *response, r *http.Request) error {
	var list []changedEntry
	err := s.decodeBody(w, r, func(d *decoder) error {
		if _, err := object(d, place{}, changedFields, &list); err != nil {
			return err
		}
		return requireEntries(list)
	})
	if err != nil {
		return err
	}
	var ask []mq.ChangedEntry
	for i := range list {
		if !list[i].bad {
			ask = append(ask, list[i].ChangedEntry)
		}
	}
	// Asked even without entries: the safe time is an answer of its own.
	safe, results, err := s.b.PartitionsChanged(r.Context(), callerOf(r).Tenant, ask)
	if err != nil {
		return err
	}
	if len(results) != len(ask) {
		return fmt.Errorf("partitions changed: %d results for %d entries", len(results), len(ask))
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = instant(key(append(b, '{'), "safeTime"), safe.Time)
		b = boolean(key(b, "safeTimeDegraded"), safe.Degraded)
		b = append(key(b, "entries"), '[')
		next := 0
		for i := range list {
			res := &mq.ChangedResult{Err: mq.ReadErrBadCursor}
			if !list[i].bad {
				res = &results[next]
				next++
			}
			b = append(appendChanged(append(elem(b), '{'), &list[i].ChangedEntry, res), '}')
		}
		return append(b, "]}"...)
	})
}

func appendChanged(b []byte, e *mq.ChangedEntry, res *mq.ChangedResult) []byte {
	b = str(key(b, "queue"), e.Queue)
	b = append(key(b, "partitions"), '[')
	for i := range res.Partitions {
		p := &res.Partitions[i]
		b = str(key(append(elem(b), '{'), "name"), p.Name)
		b = uuid(key(b, "id"), p.ID.UUID())
		b = num(key(b, "lastOffset"), p.LastOffset)
		b = num(key(b, "logStart"), p.LogStart)
		b = append(instantOrNull(key(b, "lastWriteAt"), p.LastWrite), '}')
	}
	b = append(b, ']')
	b = key(b, "next")
	if n := len(res.Partitions); res.More && n > 0 {
		b = appendCursor(b, sweepKind(e), res.Partitions[n-1].Name)
	} else {
		b = null(b)
	}
	if res.Err != "" {
		b = str(key(b, "error"), res.Err)
	}
	return b
}
