package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// bar is a progress bar on one line of a terminal. Without a writer it does nothing.
type bar struct {
	mu    sync.Mutex
	w     io.Writer
	name  string
	total int
	done  int
	shown int // percent
}

const barWidth = 40

// terminal returns the file when a person is likely to watch it, else nil.
func terminal(f *os.File) io.Writer {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return f
}

func newBar(w io.Writer, name string, total int) *bar {
	b := &bar{w: w, name: name, total: total, shown: -1}
	b.add(0)
	return b
}

func (b *bar) add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	if b.w == nil || b.total == 0 {
		return
	}
	percent := min(100*b.done/b.total, 100)
	if percent == b.shown {
		return
	}
	b.shown = percent
	full := barWidth * percent / 100
	_, _ = fmt.Fprintf(b.w, "\r%-8s [%s%s] %3d%% %d/%d", b.name,
		strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), percent, b.done, b.total)
}

func (b *bar) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w != nil && b.total > 0 {
		_, _ = fmt.Fprintln(b.w)
	}
}
