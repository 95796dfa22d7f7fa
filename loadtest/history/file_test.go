package history

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestReadGivesBackWhatWasWritten(t *testing.T) {
	t.Parallel()
	s := newStory()
	if h := s.loaded(t); !reflect.DeepEqual(*h, s.History) {
		t.Errorf("wrote %+v, read %+v", s.History, *h)
	}
}

// TestReadOrders: operations are written as they end and read as they started.
func TestReadOrders(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.Ops[0], s.Ops[5] = s.Ops[5], s.Ops[0]
	h := s.loaded(t)
	for i := range h.Ops[1:] {
		if h.Ops[i].Start > h.Ops[i+1].Start {
			t.Fatalf("operation %d is before %d", h.Ops[i].ID, h.Ops[i+1].ID)
		}
	}
}

const (
	runLine = `{"run":{"seed":1,"started":"","queues":null,"pipeline":"","marker":"","tolerance":0}}`
	endLine = `{"end":{"reached":true,"drained":true,"at":9}}`
	opLine  = `{"do":{"op":1,"kind":"pop","worker":"w","request":"r","try":1,"start":1,"end":2,"outcome":"ok"}}`
)

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		lines []string
		line  int // 0 when it is about no line
	}{
		{"no run", []string{opLine, endLine}, 1},
		{"an end alone", []string{endLine}, 1},
		{"two runs", []string{runLine, runLine, endLine}, 2},
		{"something after the end", []string{runLine, endLine, opLine}, 3},
		{"no JSON", []string{runLine, "x", endLine}, 2},
		{"nothing on a line", []string{runLine, "", endLine}, 2},
		{"a line of no kind", []string{runLine, "{}", endLine}, 2},
		{"a line of two kinds", []string{runLine, opLine[:len(opLine)-1] + "," + endLine[1:], endLine}, 2},
		{"two values on a line", []string{runLine, opLine + opLine, endLine}, 2},
		{"an unknown member", []string{runLine, strings.Replace(opLine, `"try"`, `"tri"`, 1), endLine}, 2},
		{"an unknown kind", []string{runLine, strings.Replace(opLine, "pop", "plop", 1), endLine}, 2},
		{"an unknown outcome", []string{runLine, strings.Replace(opLine, "ok", "maybe", 1), endLine}, 2},
		{"an end before the start", []string{runLine, strings.Replace(opLine, `"end":2`, `"end":0`, 1), endLine}, 2},
		{"a start before the run", []string{runLine, strings.Replace(opLine, `"start":1`, `"start":-1`, 1), endLine}, 2},
		{"an instant out of range", []string{runLine, strings.Replace(opLine, `"end":2`, `"end":9223372036854775807`, 1), endLine}, 2},
		{"an operation twice", []string{runLine, opLine, opLine, endLine}, 0},
		{"a number of the run out of range", []string{strings.Replace(runLine, `"tolerance":0`, `"tolerance":-1`, 1), endLine}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Read(strings.NewReader(strings.Join(c.lines, "\n") + "\n"))
			var at *LineError
			switch {
			case err == nil:
				t.Fatal("it was accepted")
			case errors.As(err, &at) != (c.line > 0), at != nil && at.Line != c.line:
				t.Errorf("%v, want line %d", err, c.line)
			}
		})
	}
	if _, err := Read(strings.NewReader(runLine + "\n" + opLine + "\n")); !errors.Is(err, ErrIncomplete) {
		t.Errorf("without an end: %v", err)
	}
	if _, err := Read(strings.NewReader("")); !errors.Is(err, ErrIncomplete) {
		t.Errorf("of nothing: %v", err)
	}
}

// maxFuzzOps keeps the search for an order small: the loader is what is tried here.
const maxFuzzOps = 10

// FuzzRead: whatever a file holds, it is refused, or it is a history that can be checked, printed, written and read
// again as the same.
func FuzzRead(f *testing.F) {
	f.Add([]byte(runLine + "\n" + opLine + "\n" + endLine + "\n"))
	var whole bytes.Buffer
	s := newStory()
	w, err := NewWriter(&whole, &s.Run)
	if err != nil {
		f.Fatal(err)
	}
	for _, op := range s.Ops {
		if err := w.Add(op); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(s.End); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	lines := strings.SplitAfter(whole.String(), "\n")
	end := lines[len(lines)-2]
	for _, line := range lines[1 : len(lines)-2] {
		f.Add([]byte(lines[0] + line + end))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		if len(h.Ops) <= maxFuzzOps {
			res := Check(h)
			for i := range res.Violations {
				var out strings.Builder
				res.Violations[i].Print(&out, &h.Run)
			}
		}
		again, err := reload(h)
		if err != nil {
			t.Fatalf("written again it is refused: %v", err)
		}
		if !reflect.DeepEqual(normal(h), normal(again)) {
			t.Errorf("read %+v, and again %+v", h, again)
		}
	})
}

// normal makes lists that are empty and lists that are missing the same.
func normal(h *History) *History {
	h = clone(h)
	if len(h.Run.Queues) == 0 {
		h.Run.Queues = nil
	}
	for i := range h.Run.Queues {
		if len(h.Run.Queues[i].Groups) == 0 {
			h.Run.Queues[i].Groups = nil
		}
	}
	for _, op := range h.Ops {
		for _, list := range []*[]Message{&op.Pushed, &op.Popped, &op.Acked} {
			if len(*list) == 0 {
				*list = nil
			}
		}
		if len(op.Keys) == 0 {
			op.Keys = nil
		}
		if len(op.Timers) == 0 {
			op.Timers = nil
		}
	}
	return h
}
