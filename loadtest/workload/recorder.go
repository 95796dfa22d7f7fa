package workload

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// recorder writes the history while it happens, so that a run that is killed leaves what it saw.
type recorder struct {
	start time.Time // instants of the history count from here, by the monotonic clock

	mu      sync.Mutex
	file    *os.File
	out     *history.Writer
	lastID  int64
	err     error
	counts  Counts
	lastOK  time.Time
	reasons map[string]int64
}

// Counts are totals over a history.
type Counts struct {
	Operations int64 `json:"operations"`
	Failed     int64 `json:"failed"`
	Unknown    int64 `json:"unknown"`
	Retries    int64 `json:"retries"`
}

func newRecorder(path string, run *history.Run) (*recorder, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	r := &recorder{start: time.Now(), file: file, reasons: map[string]int64{}}
	run.Started = r.start.UTC().Format(time.RFC3339Nano)
	if r.out, err = history.NewWriter(file, run); err != nil {
		return nil, err
	}
	return r, nil
}

// now is the present instant of the history.
func (r *recorder) now() int64 { return time.Since(r.start).Microseconds() }

// add numbers the operation and writes it. Nobody changes it afterwards.
func (r *recorder) add(op *history.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	op.ID = r.lastID
	r.counts.Operations++
	switch op.Outcome {
	case history.OK:
		r.lastOK = time.Now()
	case history.Fail:
		r.counts.Failed++
		r.reasons[string(op.Kind)+": "+shorten(op.Reason)]++
	case history.Unknown:
		r.counts.Unknown++
	}
	if op.Try > 1 {
		r.counts.Retries++
	}
	if err := r.out.Add(op); err != nil && r.err == nil {
		r.err = err
	}
}

// shorten keeps of a reason what does not differ from case to case.
func shorten(reason string) string {
	for i, c := range reason {
		if i >= 60 || c == '{' && i > 0 || c >= '0' && c <= '9' {
			return reason[:i]
		}
	}
	return reason
}

// silence is the time since anything was answered.
func (r *recorder) silence() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastOK.IsZero() {
		return time.Since(r.start)
	}
	return time.Since(r.lastOK)
}

func (r *recorder) snapshot() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

func (r *recorder) close(end history.End) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	end.At = r.now()
	if err := r.out.Close(end); err != nil {
		return err
	}
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}
