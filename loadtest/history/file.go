package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// History is a whole run.
type History struct {
	Run Run
	Ops []*Op
	End End
}

// line is one line of the file; exactly one member is set.
type line struct {
	Run *Run `json:"run,omitempty"`
	Op  *Op  `json:"do,omitempty"`
	End *End `json:"end,omitempty"`
}

// ErrIncomplete tells of a history that stops before its end.
var ErrIncomplete = errors.New("the history has no end")

// LineError is a line that is no part of a history.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Writer writes a history. It is not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
	enc *json.Encoder
}

// NewWriter starts a history with its run.
func NewWriter(w io.Writer, run *Run) (*Writer, error) {
	out := bufio.NewWriterSize(w, 256<<10)
	hw := &Writer{out: out, enc: json.NewEncoder(out)}
	hw.enc.SetEscapeHTML(false)
	if err := hw.write(line{Run: run}); err != nil {
		return nil, err
	}
	return hw, nil
}

func (w *Writer) write(l line) error {
	if err := w.enc.Encode(l); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// Add appends an operation.
func (w *Writer) Add(op *Op) error { return w.write(line{Op: op}) }

// Close appends the end.
func (w *Writer) Close(end End) error {
	if err := w.write(line{End: &end}); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// maxLine bounds one operation: a pop of ten thousand messages fits.
const maxLine = 16 << 20

// Read loads a history and refuses what no client can have recorded.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	started, ended, n := false, false, 0
	for lines.Scan() {
		n++
		l, err := parseLine(lines.Bytes())
		if err != nil {
			return nil, &LineError{n, err}
		}
		switch {
		case ended:
			return nil, &LineError{n, errors.New("something follows the end")}
		case l.Run != nil && started, l.Run == nil && !started:
			return nil, &LineError{n, errors.New("a history starts with its run, once")}
		case l.Run != nil:
			h.Run, started = *l.Run, true
		case l.Op != nil:
			h.Ops = append(h.Ops, l.Op)
		default:
			h.End, ended = *l.End, true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, &LineError{n + 1, err}
	}
	if !ended {
		return nil, ErrIncomplete
	}
	h.sort()
	if err := h.unique(); err != nil {
		return nil, err
	}
	return h, nil
}

// sort brings operations, which are written as they end, into the order of their starts: so they read as they happened.
func (h *History) sort() { slices.SortStableFunc(h.Ops, byStart) }

func parseLine(text []byte) (line, error) {
	var l line
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return l, fmt.Errorf("no operation: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return l, errors.New("more than one value")
	}
	set := 0
	for _, is := range []bool{l.Run != nil, l.Op != nil, l.End != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return l, errors.New("want one of run, do and end")
	}
	if l.Op != nil {
		return l, l.Op.validate()
	}
	if l.Run != nil && (l.Run.Tolerance < 0 || l.Run.Tolerance > maxInstant) {
		return l, errors.New("a tolerance out of range")
	}
	if l.End != nil && (l.End.At < 0 || l.End.At > maxInstant) {
		return l, errors.New("an end out of range")
	}
	return l, nil
}

// maxInstant keeps sums of instants and lengths far from overflowing.
const maxInstant = 1 << 60

func (op *Op) validate() error {
	kinds := []Kind{Push, Pop, Ack, Extend, Tx, KV, Timers, Depth, Letters, Pending}
	if !slices.Contains(kinds, op.Kind) {
		return fmt.Errorf("kind %q", op.Kind)
	}
	if !slices.Contains([]Outcome{OK, Fail, Unknown}, op.Outcome) {
		return fmt.Errorf("outcome %q", op.Outcome)
	}
	if op.Start < 0 || op.End < op.Start || op.End > maxInstant {
		return fmt.Errorf("it ran from %d to %d", op.Start, op.End)
	}
	if op.Length < 0 || op.Length > maxInstant || op.Count < 0 || op.Count > maxInstant {
		return errors.New("a length or a count out of range")
	}
	for _, list := range [][]Message{op.Pushed, op.Popped, op.Acked} {
		for i := range list {
			if list[i].Offset < -1 || list[i].Offset > maxInstant {
				return fmt.Errorf("offset %d", list[i].Offset)
			}
		}
	}
	for i := range op.Timers {
		if t := &op.Timers[i]; t.Delay < -maxInstant || t.Delay > maxInstant || t.Due < 0 || t.Due > maxInstant {
			return errors.New("a timer out of range")
		}
	}
	return nil
}

func (h *History) unique() error {
	seen := make(map[int64]bool, len(h.Ops))
	for _, op := range h.Ops {
		if seen[op.ID] {
			return fmt.Errorf("operation %d is there twice", op.ID)
		}
		seen[op.ID] = true
	}
	return nil
}
