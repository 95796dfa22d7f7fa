package httpapi

import (
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// The writer of answers: functions that append to a byte slice. A comma goes
// in by looking at the byte before, so objects and arrays are built without
// any state beside the slice.

// maxKeptBuffer is how large a buffer may be to go back to its pool.
const maxKeptBuffer = 1 << 20

type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 4096)} }}

func getBuffer() *buffer { return buffers.Get().(*buffer) }

func (p *buffer) free() {
	if cap(p.b) > maxKeptBuffer {
		return
	}
	p.b = p.b[:0]
	buffers.Put(p)
}

// elem prepares for the next element of an array.
func elem(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] != '[' {
		b = append(b, ',')
	}
	return b
}

// key adds a member's name. Names are ours and need no escaping.
func key(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

// str adds a string. What is not UTF-8 becomes the replacement character; the
// error only says that it happened.
func str(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// strOrNull adds a string, null when it is empty.
func strOrNull(b []byte, s string) []byte {
	if s == "" {
		return null(b)
	}
	return str(b, s)
}

func null(b []byte) []byte { return append(b, "null"...) }

func num[N ~int | ~int32 | ~int64](b []byte, n N) []byte { return strconv.AppendInt(b, int64(n), 10) }

func boolean(b []byte, v bool) []byte { return strconv.AppendBool(b, v) }

func uuid(b []byte, u mq.UUID) []byte {
	b = append(b, '"')
	b = u.Append(b)
	return append(b, '"')
}

func uuidOrNull(b []byte, u mq.UUID) []byte {
	if u.IsZero() {
		return null(b)
	}
	return uuid(b, u)
}

// raw adds stored JSON as it is, null when there is none.
func raw(b, value []byte) []byte {
	if len(value) == 0 {
		return null(b)
	}
	return append(b, value...)
}

const timeLayout = "2006-01-02T15:04:05.000000Z"

func instant(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, timeLayout)
	return append(b, '"')
}

func instantOrNull(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return null(b)
	}
	return instant(b, t)
}
