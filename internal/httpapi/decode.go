package httpapi

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// maxKeptItems is how many items a decoder may have room for when it is kept.
const maxKeptItems = 4096

// decoder reads one request body. It walks the JSON once; a payload comes out
// as a slice of the body.
//
// The syntax layer is told to let duplicate names and lone surrogate escapes
// pass, because both are legal inside a payload, which is not ours to judge.
// Our own objects are checked here instead.
type decoder struct {
	dec     jsontext.Decoder
	src     bytes.Buffer
	body    []byte
	scratch []byte
	missed  []byte        // the name that member knew nothing of, until the next read
	items   []mq.PushItem // see decodePush
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

var (
	lenientNames = jsontext.AllowDuplicateNames(true)
	lenientUTF8  = jsontext.AllowInvalidUTF8(true)
)

// decode runs read over the body and refuses what follows the first value.
func decode(body []byte, read func(d *decoder) error) error {
	if !utf8.Valid(body) {
		return notUTF8(body)
	}
	d := decoders.Get().(*decoder)
	defer d.free()
	d.body = body
	d.src = *bytes.NewBuffer(body)
	d.dec.Reset(&d.src, lenientNames, lenientUTF8)
	if err := read(d); err != nil {
		return err
	}
	switch _, err := d.dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return d.syntax(err)
	default:
		return badBody("", "bad body: more than one JSON value")
	}
}

// free drops every reference into the body before the decoder is kept.
func (d *decoder) free() {
	d.body, d.missed, d.src = nil, nil, bytes.Buffer{}
	d.dec.Reset(&d.src)
	clear(d.items)
	if d.items = d.items[:0]; cap(d.items) > maxKeptItems {
		d.items = nil
	}
	decoders.Put(d)
}

// place names a member for an error: items[3].queue. It is only put into
// words when something is wrong.
type place struct {
	list  string
	index int
	key   string
}

func (p place) String() string {
	if p.list == "" {
		return p.key
	}
	s := p.list + "[" + strconv.Itoa(p.index) + "]"
	if p.key != "" {
		s += "." + p.key
	}
	return s
}

// field is a known member of a request object. Names are case-sensitive.
type field[T any] struct {
	name string
	read func(d *decoder, at place, into *T) error
}

// object reads an object by its table of known members and returns the set of
// those that were there. Unknown members are skipped, known ones may come once.
func object[T any](d *decoder, at place, fields []field[T], into *T) (seen uint32, err error) {
	return objectOf(d, at, fields, into, func(place, []byte) error { return nil })
}

// objectOf is object that asks about unknown members before it skips them.
func objectOf[T any](d *decoder, at place, fields []field[T], into *T, unknown func(at place, name []byte) error) (seen uint32, err error) {
	if d.dec.PeekKind() != '{' {
		return 0, d.mismatch(at, "an object")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return 0, d.syntax(err)
	}
	for d.dec.PeekKind() != '}' {
		i, err := d.member(len(fields), func(i int) string { return fields[i].name })
		if err != nil {
			return 0, err
		}
		if i < 0 {
			if err := unknown(at, d.missed); err != nil {
				return 0, err
			}
			if err := d.dec.SkipValue(); err != nil {
				return 0, d.syntax(err)
			}
			continue
		}
		at.key = fields[i].name
		if seen&(1<<i) != 0 {
			return 0, badBody(at.String(), "%s is given twice", at)
		}
		seen |= 1 << i
		if err := fields[i].read(d, at, into); err != nil {
			return 0, err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return 0, d.syntax(err)
	}
	return seen, nil
}

// member reads a member's name and finds it among n known ones.
func (d *decoder) member(n int, name func(int) string) (int, error) {
	v, err := d.dec.ReadValue()
	if err != nil {
		return -1, d.syntax(err)
	}
	k := v[1 : len(v)-1]
	if bytes.IndexByte(k, '\\') >= 0 {
		// A lone surrogate in a name makes it an unknown one.
		d.scratch, _ = jsontext.AppendUnquote(d.scratch[:0], v)
		k = d.scratch
	}
	for i := range n {
		if string(k) == name(i) {
			return i, nil
		}
	}
	d.missed = k
	return -1, nil
}

// list reads an array, calling read for every element.
func (d *decoder) list(at place, read func(i int) error) error {
	if d.dec.PeekKind() != '[' {
		return d.mismatch(at, "an array")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.syntax(err)
	}
	for i := 0; d.dec.PeekKind() != ']'; i++ {
		if err := read(i); err != nil {
			return err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.syntax(err)
	}
	return nil
}

// null reads a null if there is one.
func (d *decoder) null() (bool, error) {
	if d.dec.PeekKind() != 'n' {
		return false, nil
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return false, d.syntax(err)
	}
	return true, nil
}

// name reads an optional string that addresses something: a queue, an id, a
// group. Control characters and lone surrogates are refused. When the value
// equals last, last itself is returned, so runs of one name share its memory.
func (d *decoder) name(at place, last string) (s string, set bool, err error) {
	s, set, err = d.text(at, last, false)
	if err == nil && set && mq.CheckName("", s) != nil {
		err = mq.CheckName(at.String(), s)
	}
	return s, set, err
}

// text reads an optional string; lone says whether lone surrogates are
// replaced rather than refused.
func (d *decoder) text(at place, last string, lone bool) (s string, set bool, err error) {
	if isNull, err := d.null(); isNull || err != nil {
		return "", false, err
	}
	if d.dec.PeekKind() != '"' {
		return "", false, d.mismatch(at, "a string")
	}
	v, err := d.dec.ReadValue()
	if err != nil {
		return "", false, d.syntax(err)
	}
	b := []byte(v[1 : len(v)-1])
	if bytes.IndexByte(b, '\\') >= 0 {
		d.scratch, err = jsontext.AppendUnquote(d.scratch[:0], v)
		if err != nil && !lone {
			return "", false, badBody(at.String(), "%s holds a lone surrogate", at)
		}
		b = d.scratch
	}
	if string(b) == last {
		return last, true, nil
	}
	return string(b), true, nil
}

// integer reads an optional integer.
func (d *decoder) integer(at place) (n int64, set bool, err error) {
	if isNull, err := d.null(); isNull || err != nil {
		return 0, false, err
	}
	if d.dec.PeekKind() != '0' {
		return 0, false, d.mismatch(at, "an integer")
	}
	v, err := d.dec.ReadValue()
	if err != nil {
		return 0, false, d.syntax(err)
	}
	n, err = strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0, false, badBody(at.String(), "%s must be an integer", at)
	}
	return n, true, nil
}

// isoTime reads an optional time; null and the empty string give the zero one.
func (d *decoder) isoTime(at place) (time.Time, error) {
	s, _, err := d.text(at, "", false)
	if err != nil || s == "" {
		return time.Time{}, err
	}
	t, ok := parseTime(s)
	if !ok {
		return time.Time{}, badRequest(at.String(), "%s is not a time", at)
	}
	if t.IsZero() {
		t = t.Add(time.Microsecond) // the year 1 was sent; zero means that nothing was
	}
	return t, nil
}

// boolean reads an optional boolean.
func (d *decoder) boolean(at place) (v, set bool, err error) {
	if isNull, err := d.null(); isNull || err != nil {
		return false, false, err
	}
	k := d.dec.PeekKind()
	if k != 't' && k != 'f' {
		return false, false, d.mismatch(at, "a boolean")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return false, false, d.syntax(err)
	}
	return k == 't', true, nil
}

// value reads any value and returns its bytes in the body, which stay good as
// long as the body does.
func (d *decoder) value() ([]byte, error) {
	v, err := d.dec.ReadValue()
	if err != nil {
		return nil, d.syntax(err)
	}
	end := int(d.dec.InputOffset())
	return d.body[end-len(v) : end : end], nil
}

// payload reads a value that is kept as it is, up to the allowed depth.
func (d *decoder) payload(at place) ([]byte, error) {
	// Peeking finds out what is wrong before the value.
	if d.dec.PeekKind() == 0 {
		_, err := d.value()
		return nil, err
	}
	from := int(d.dec.InputOffset())
	p, err := d.value()
	if err != nil {
		// The syntax layer has a bound of its own; past it, the depth is
		// what the caller has to hear about.
		if tooDeep(d.body[from:]) {
			return nil, depthError(at)
		}
		return nil, err
	}
	if tooDeep(p) {
		return nil, depthError(at)
	}
	return p, nil
}

func depthError(at place) error {
	return badRequest(at.String(), "%s nests deeper than %d", at, mq.MaxPayloadDepth)
}

// tooDeep reports whether arrays and objects nest deeper than a payload may,
// before the text ends or stops being balanced.
func tooDeep(p []byte) bool {
	if bytes.Count(p, []byte{'['})+bytes.Count(p, []byte{'{'}) <= mq.MaxPayloadDepth {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case quoted:
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '[' || c == '{':
			if depth++; depth > mq.MaxPayloadDepth {
				return true
			}
		case c == ']' || c == '}':
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return false
}

// mismatch reports a value of another type than wanted, or what made the
// value unreadable.
func (d *decoder) mismatch(at place, want string) error {
	if d.dec.PeekKind() == 0 {
		if _, err := d.dec.ReadToken(); err != nil {
			return d.syntax(err)
		}
	}
	if at == (place{}) {
		return badBody("", "bad body: must be %s", want)
	}
	return badBody(at.String(), "%s must be %s", at, want)
}

// syntax reports text that is not JSON, and where.
func (d *decoder) syntax(err error) error {
	var se *jsontext.SyntacticError
	switch {
	case errors.As(err, &se):
		return badBody(pointed(se.JSONPointer), "bad body: %v at byte %d", se.Err, se.ByteOffset)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badBody("", "bad body: unexpected end of JSON")
	default:
		return badBody("", "bad body: %v", err)
	}
}

// notUTF8 names the member that holds the first byte that is not UTF-8.
func notUTF8(body []byte) error {
	bad := 0
	for bad < len(body) {
		r, n := utf8.DecodeRune(body[bad:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		bad += n
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), lenientNames, lenientUTF8)
	var at jsontext.Pointer
	for dec.InputOffset() <= int64(bad) {
		if _, err := dec.ReadToken(); err != nil {
			break
		}
		at = dec.StackPointer()
	}
	return badBody(pointed(at), "bad body: byte %d is not UTF-8", bad)
}

// pointed turns a JSON pointer into our spelling, cut where a payload begins.
func pointed(p jsontext.Pointer) string {
	var b strings.Builder
	n := 0
	for token := range p.Tokens() {
		if n++; n > 3 || len(token) > 64 {
			break
		}
		if _, err := strconv.Atoi(token); err == nil && n > 1 {
			b.WriteString("[" + token + "]")
			continue
		}
		if n > 1 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
