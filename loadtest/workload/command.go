package workload

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

const (
	exitOK     = 0
	exitFailed = 1 // a promise was broken
	exitUsage  = 2
	exitError  = 3 // the run itself did not work
)

// Summary is what a run comes to.
type Summary struct {
	Seed       uint64                      `json:"seed"`
	History    string                      `json:"history,omitempty"`
	Messages   map[history.Role]int64      `json:"messages"`
	Counts     Counts                      `json:"operations"`
	Drained    bool                        `json:"drained"`
	Violations int                         `json:"violations"`
	By         map[history.Guarantee]int64 `json:"violationsByGuarantee,omitempty"`
	Found      []history.Violation         `json:"found,omitempty"`
	Undecided  []string                    `json:"undecided,omitempty"`
	Refusals   map[string]int64            `json:"refusals,omitempty"`
	OK         bool                        `json:"ok"`
}

// maxPrinted bounds the violations that are printed and listed; all are counted.
const maxPrinted = 20

// Main is the command. It returns the exit code.
func Main(args []string, out, errOut io.Writer) int {
	cfg, err := Parse(args, errOut)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest verify:", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second interrupt ends the program
	code, err := verify(ctx, cfg, out, errOut)
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest verify:", err)
	}
	return code
}

func verify(ctx context.Context, cfg *Config, out, errOut io.Writer) (int, error) {
	path := cfg.Check
	s := &Summary{}
	var runErr error
	cleanUp := func() {}
	if path == "" {
		if path = cfg.History; path == "" {
			file, err := os.CreateTemp("", "verify-*.jsonl")
			if err != nil {
				return exitError, fmt.Errorf("history: %w", err)
			}
			path = file.Name()
			_ = file.Close()
			defer func() { _ = os.Remove(path) }()
		}
		var progress io.Writer
		if !cfg.Quiet {
			progress = errOut
		}
		var left *Remains
		if left, runErr = Run(ctx, cfg, path, progress); left == nil {
			return exitError, runErr
		}
		s.Counts, s.Refusals, cleanUp = left.Counts, left.Refusals, left.CleanUp
	}
	h, err := load(path)
	if err != nil {
		return exitError, errors.Join(runErr, err)
	}
	if cfg.Check != "" {
		s.Counts = count(h)
	}
	s.judge(h)
	s.History = cfg.History
	s.print(out, &h.Run)
	if cfg.JSON != "" {
		if err := s.write(cfg.JSON); err != nil {
			return exitError, err
		}
	}
	switch {
	case s.Violations > 0:
		return exitFailed, runErr // the queues stay: they may tell more
	case runErr != nil:
		return exitError, runErr
	case !h.End.Reached:
		return exitError, errors.New("the final state was not read: nothing can be said about what is missing")
	}
	if !cfg.Keep {
		cleanUp()
	}
	return exitOK, nil
}

func load(path string) (*history.History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { _ = file.Close() }()
	h, err := history.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

func count(h *history.History) Counts {
	c := Counts{Operations: int64(len(h.Ops))}
	for _, op := range h.Ops {
		switch op.Outcome {
		case history.Fail:
			c.Failed++
		case history.Unknown:
			c.Unknown++
		case history.OK:
		}
		if op.Try > 1 {
			c.Retries++
		}
	}
	return c
}

// judge checks the history and counts what there is.
func (s *Summary) judge(h *history.History) {
	res := history.Check(h)
	s.Seed, s.Drained, s.Undecided = h.Run.Seed, h.End.Drained, res.Undecided
	s.Found, s.Violations = res.Violations, len(res.Violations)
	s.Messages = map[history.Role]int64{}
	roles := map[string]history.Role{}
	for _, q := range h.Run.Queues {
		roles[q.Name] = q.Role
	}
	type id struct{ queue, id string }
	seen := map[id]bool{}
	for _, op := range h.Ops {
		for i := range op.Popped {
			m := id{op.Queue, op.Popped[i].ID}
			if !seen[m] {
				seen[m] = true
				s.Messages[roles[op.Queue]]++
			}
		}
	}
	for i := range s.Found {
		if s.By == nil {
			s.By = map[history.Guarantee]int64{}
		}
		s.By[s.Found[i].Guarantee]++
	}
	s.OK = s.Violations == 0 && h.End.Reached
}

func (s *Summary) print(out io.Writer, run *history.Run) {
	for i := range s.Found[:min(len(s.Found), maxPrinted)] {
		s.Found[i].Print(out, run)
	}
	if len(s.Found) > maxPrinted {
		_, _ = fmt.Fprintf(out, "and %d more violations\n", len(s.Found)-maxPrinted)
		s.Found = s.Found[:maxPrinted]
	}
	if len(s.Undecided) > 0 {
		slices.Sort(s.Undecided)
		_, _ = fmt.Fprintf(out, "undecided: %s\n", strings.Join(s.Undecided, ", "))
	}
	_, _ = fmt.Fprintf(out,
		"verify: seed %d, %d messages in, %d out, %d by timer, %d operations, %d unknown outcomes, %d retries, %d violations\n",
		s.Seed, s.Messages[history.Input], s.Messages[history.Output], s.Messages[history.Timed],
		s.Counts.Operations, s.Counts.Unknown, s.Counts.Retries, s.Violations)
}

func (s *Summary) write(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	return nil
}
