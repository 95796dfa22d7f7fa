package pgstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// The stored form of messages: see the comment on queen.segments. Elements are
// written here once and from then on only copied; the parsers below read the
// fixed prefix of an element and never look into a payload.

const (
	// Longer runs are split: a pop that wants one message of a segment reads
	// all of its body.
	maxSegmentBytes    = 256 << 10
	maxSegmentMessages = 1000

	idPrefix   = `{"id":"`
	txnPrefix  = `","transactionId":`
	tracePart  = `,"traceId":`
	subPart    = `,"producerSub":`
	dataPart   = `,"data":`
	idStart    = len(idPrefix)
	txnStart   = idStart + 36 + len(txnPrefix)
	elementMin = txnStart + 2
)

var errBadElement = errors.New("stored element is malformed")

// segment is a run of messages on its way into a row.
type segment struct {
	body  []byte
	ends  []byte
	marks []byte
	count int
	mark  int64
}

func (s *segment) add(m *mq.Message) {
	if s.count == 0 {
		s.body = append(s.body, '[')
	} else {
		s.body[len(s.body)-1] = ','
	}
	s.body = appendElement(s.body, m)
	s.ends = binary.BigEndian.AppendUint32(s.ends, uint32(len(s.body)))
	s.body = append(s.body, ']')
	s.mark ^= m.Hash.Mark
	s.marks = binary.BigEndian.AppendUint64(s.marks, uint64(s.mark))
	s.count++
}

func (s *segment) full(next int) bool {
	return s.count >= maxSegmentMessages || s.count > 0 && len(s.body)+next > maxSegmentBytes
}

// buildSegments lays messages out as one or more segments.
func buildSegments(ms []*mq.Message) []segment {
	size := 0
	for _, m := range ms {
		size += elementSize(m)
	}
	segs := make([]segment, 1, 1+size/maxSegmentBytes)
	cur := &segs[0]
	cur.body = make([]byte, 0, min(size, maxSegmentBytes+elementSize(ms[0]))+2)
	cur.ends = make([]byte, 0, 4*min(len(ms), maxSegmentMessages))
	cur.marks = make([]byte, 0, 8*min(len(ms), maxSegmentMessages))
	for _, m := range ms {
		if cur.full(elementSize(m)) {
			segs = append(segs, segment{})
			cur = &segs[len(segs)-1]
		}
		cur.add(m)
	}
	return segs
}

func elementSize(m *mq.Message) int {
	return 160 + len(m.TransactionID) + len(m.ProducerSub) + len(m.Payload)
}

func appendElement(b []byte, m *mq.Message) []byte {
	b = append(b, idPrefix...)
	b = m.ID.Append(b)
	b = append(b, txnPrefix...)
	b = appendString(b, m.TransactionID)
	b = append(b, tracePart...)
	if m.TraceID.IsZero() {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		b = m.TraceID.Append(b)
		b = append(b, '"')
	}
	b = append(b, subPart...)
	if m.ProducerSub == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, m.ProducerSub)
	}
	b = append(b, dataPart...)
	b = append(b, m.Payload...)
	return append(b, '}')
}

// appendString writes a JSON string with as few escapes as JSON allows.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// element is a stored message taken apart.
type element struct {
	ID            mq.UUID
	TransactionID string
	TraceID       mq.UUID
	ProducerSub   string
	Payload       []byte
}

// parseElement takes a stored element apart. The payload shares its bytes.
func parseElement(e []byte) (element, error) {
	var out element
	id, rest, err := parseIdentity(e)
	if err != nil {
		return out, err
	}
	out.ID = id
	if out.TransactionID, rest, err = cutString(rest); err != nil {
		return out, err
	}
	if rest, err = cutPrefix(rest, tracePart); err != nil {
		return out, err
	}
	var trace string
	if trace, rest, err = cutStringOrNull(rest); err != nil {
		return out, err
	}
	out.TraceID, _ = mq.ParseUUID(trace)
	if rest, err = cutPrefix(rest, subPart); err != nil {
		return out, err
	}
	if out.ProducerSub, rest, err = cutStringOrNull(rest); err != nil {
		return out, err
	}
	if rest, err = cutPrefix(rest, dataPart); err != nil {
		return out, err
	}
	if len(rest) < 2 || rest[len(rest)-1] != '}' {
		return out, errBadElement
	}
	out.Payload = rest[:len(rest)-1]
	return out, nil
}

func parseIdentity(e []byte) (mq.UUID, []byte, error) {
	if len(e) < elementMin || string(e[:idStart]) != idPrefix {
		return mq.UUID{}, nil, errBadElement
	}
	id, ok := mq.ParseUUID(string(e[idStart : idStart+36]))
	if !ok {
		return mq.UUID{}, nil, errBadElement
	}
	return id, e[txnStart:], nil
}

func cutPrefix(b []byte, prefix string) ([]byte, error) {
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return nil, errBadElement
	}
	return b[len(prefix):], nil
}

func cutStringOrNull(b []byte) (string, []byte, error) {
	if len(b) >= 4 && string(b[:4]) == "null" {
		return "", b[4:], nil
	}
	return cutString(b)
}

// cutString reads a JSON string off the front of b.
func cutString(b []byte) (string, []byte, error) {
	if len(b) == 0 || b[0] != '"' {
		return "", nil, errBadElement
	}
	escaped := false
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			raw := b[1:i]
			if !escaped && utf8.Valid(raw) {
				return string(raw), b[i+1:], nil
			}
			var s string
			if err := json.Unmarshal(b[:i+1], &s); err != nil {
				return "", nil, fmt.Errorf("%w: %w", errBadElement, err)
			}
			return s, b[i+1:], nil
		}
	}
	return "", nil, errBadElement
}

// cut returns the part of a stored segment from one position to another,
// copied out of the buffers of the connection.
func cut(endOffset int64, count int32, ends, body []byte, from, to int) (first int64, part, partEnds []byte, base uint32, err error) {
	if from < 0 || to < from || to >= int(count) || len(ends) != 4*int(count) {
		return 0, nil, nil, 0, errBadElement
	}
	start := uint32(1)
	if from > 0 {
		start = binary.BigEndian.Uint32(ends[4*(from-1):]) + 1
	}
	stop := binary.BigEndian.Uint32(ends[4*to:])
	if int(stop) > len(body) || start > stop {
		return 0, nil, nil, 0, errBadElement
	}
	buf := make([]byte, int(stop-start)+4*(to-from+1))
	n := copy(buf, body[start:stop])
	copy(buf[n:], ends[4*from:4*to+4])
	return endOffset - int64(count) + 1 + int64(from), buf[:n:n], buf[n:], start, nil
}
