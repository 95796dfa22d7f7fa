// Command loadtest drives a broker over its HTTP wire, in an open or a closed loop, and checks that every message
// arrives once, in order, at every consumer group. Its floor mode runs the broker's SQL statements without the
// broker, so that one run can tell how much of the database's speed comes through.
//
// It imports nothing of the broker: whatever it measures, another implementation of the same wire can be measured
// with the same program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/workload"
)

const (
	exitOK     = 0
	exitFailed = 1 // the broker broke a promise
	exitUsage  = 2
	exitError  = 3 // the run itself did not work
)

func main() { os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr)) }

func realMain(args []string, out, errOut io.Writer) int {
	if len(args) > 0 && args[0] == "verify" {
		return workload.Main(args[1:], out, errOut)
	}
	if len(args) > 0 && args[0] == "scale" {
		return scaleMain(args[1:], out, errOut)
	}
	if len(args) > 0 && args[0] == "ephemeral" {
		return ephemeralMain(args[1:], out, errOut)
	}
	cfg, err := parseFlags(args, errOut)
	if code, ok := flagsTaken(err, errOut); !ok {
		return code
	}
	ctx, stop := untilInterrupted()
	defer stop()

	rep, err := measure(ctx, cfg, errOut)
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest:", err)
		return exitError
	}
	rep.print(out)
	if cfg.jsonFile != "" {
		if err := rep.writeJSON(cfg.jsonFile); err != nil {
			_, _ = fmt.Fprintln(errOut, "loadtest:", err)
			return exitError
		}
	}
	if !rep.OK {
		return exitFailed
	}
	return exitOK
}

// flagsTaken says whether a command can go on after its flags were read, and else how it ends.
func flagsTaken(err error, errOut io.Writer) (code int, ok bool) {
	switch {
	case err == nil:
		return exitOK, true
	case errors.Is(err, flag.ErrHelp):
		return exitOK, false
	default:
		_, _ = fmt.Fprintln(errOut, "loadtest:", err)
		return exitUsage, false
	}
}

// untilInterrupted ends at the first interrupt, which stops producing and still checks what was pushed; the second one ends
// the program.
func untilInterrupted() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// measure does what the mode says. With a floor, the floor is measured before and after, because a machine's
// speed drifts and only figures that frame the run can be compared with it.
func measure(ctx context.Context, cfg *config, errOut io.Writer) (*report, error) {
	var progress io.Writer
	if !cfg.quiet {
		progress = errOut
	}
	if cfg.mode == modeFloor {
		return floorOnly(ctx, cfg, progress)
	}
	var before *floorRun
	if cfg.withFloor {
		var err error
		if before, err = measureFloor(ctx, cfg, cfg.floorDuration, progress); err != nil {
			return nil, err
		}
	}
	rep, err := measureBroker(ctx, cfg, progress, errOut)
	if err != nil || !cfg.withFloor {
		return rep, err
	}
	after, err := measureFloor(ctx, cfg, cfg.floorDuration, progress)
	if err != nil {
		return nil, err
	}
	rep.Floor = compareFloor(cfg, before, after, rep.Rates)
	return rep, nil
}

func measureBroker(ctx context.Context, cfg *config, progress, errOut io.Writer) (*report, error) {
	b, err := newBench(cfg, time.Now().UnixMicro())
	if err != nil {
		return nil, err
	}
	ph, err := b.execute(ctx, progress)
	if err != nil {
		b.client.close()
		return nil, err
	}
	rep := b.report(ph)
	if err := b.cleanup(ctx); err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest: clean up:", err)
	}
	return rep, nil
}

var secretFlag = regexp.MustCompile(`^--?token(=|$)`)

// commandLine is the command as given, without what must not end up in a report file.
func (c *config) commandLine() []string {
	out := make([]string, len(c.command))
	hide := false
	for i, arg := range c.command {
		switch {
		case hide:
			out[i], hide = "***", false
		case secretFlag.MatchString(arg):
			name, _, inline := strings.Cut(arg, "=")
			out[i] = name
			if inline {
				out[i] += "=***"
			}
			hide = !inline
		default:
			out[i] = maskPassword(arg)
		}
	}
	return out
}

var passwordInURL = regexp.MustCompile(`(://[^:/@]*):[^@/]*@`)

func maskPassword(s string) string { return passwordInURL.ReplaceAllString(s, "$1:***@") }
