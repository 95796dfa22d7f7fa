package history

import (
	"fmt"
	"io"
	"strings"
)

// maxStory bounds what is printed of one violation. The file has the rest.
const maxStory = 200

// Print writes a violation with all that was done to its message, in the order of time.
func (v *Violation) Print(w io.Writer, run *Run) {
	var b strings.Builder
	fmt.Fprintf(&b, "VIOLATION %s (seed %d)\n ", v.Guarantee, run.Seed)
	for _, part := range []struct{ name, value string }{
		{"queue", v.Queue}, {"partition", v.Partition}, {"group", v.Group}, {"id", v.ID},
	} {
		if part.value != "" {
			fmt.Fprintf(&b, " %s %s", part.name, part.value)
		}
	}
	if v.Offset >= 0 {
		fmt.Fprintf(&b, " offset %d", v.Offset)
	}
	fmt.Fprintf(&b, "\n  %s\n", v.Text)
	for i, op := range v.Ops {
		if i == maxStory {
			fmt.Fprintf(&b, "    and %d more\n", len(v.Ops)-maxStory)
			break
		}
		b.WriteString("    ")
		op.describe(&b, v.ID)
		b.WriteByte('\n')
	}
	_, _ = io.WriteString(w, b.String())
}

// describe writes the operation on one line, with only what concerns the id.
func (op *Op) describe(b *strings.Builder, id string) {
	fmt.Fprintf(b, "%12.6f–%.6f  #%d %s %s %s", seconds(op.Start), seconds(op.End), op.ID, op.Worker, op.Kind, op.Outcome)
	if op.Status != 0 && op.Status/100 != 2 {
		fmt.Fprintf(b, " %d", op.Status)
	}
	for _, part := range []struct{ name, value string }{
		{"request", op.Request}, {"queue", op.Queue}, {"group", op.Group}, {"lease", op.Lease},
	} {
		if part.value != "" {
			fmt.Fprintf(b, " %s=%s", part.name, part.value)
		}
	}
	if op.Length > 0 {
		fmt.Fprintf(b, " for %.1fs", seconds(op.Length))
	}
	if op.Reason != "" {
		fmt.Fprintf(b, " (%s)", op.Reason)
	}
	for _, list := range []struct {
		name string
		of   []Message
	}{{"pushed", op.Pushed}, {"popped", op.Popped}, {"acked", op.Acked}} {
		describeMessages(b, list.name, list.of, id)
	}
	for i := range op.Keys {
		if k := &op.Keys[i]; len(op.Keys) == 1 || op.Kind == Tx || k.Key == id {
			describeKey(b, k)
		}
	}
	for i := range op.Timers {
		t := &op.Timers[i]
		fmt.Fprintf(b, " %s %s/%s id=%s delay=%.3fs %s", t.Op, t.Queue, t.Key, t.ID, seconds(t.Delay), t.Status)
		if t.Gone != "" {
			fmt.Fprintf(b, " of %s", t.Gone)
		}
	}
}

func seconds(us int64) float64 { return float64(us) / 1e6 }

func describeMessages(b *strings.Builder, what string, list []Message, id string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, " %s", what)
	others := 0
	for i := range list {
		m := &list[i]
		if m.ID != id && len(list) > 4 {
			others++
			continue
		}
		fmt.Fprintf(b, " %s@%s/%d", m.ID, m.Partition, m.Offset)
		if m.Attempt > 0 {
			fmt.Fprintf(b, " attempt %d", m.Attempt)
		}
		for _, word := range []string{m.Status, m.Refused} {
			if word != "" {
				fmt.Fprintf(b, " %s", word)
			}
		}
		if m.Noop {
			b.WriteString(" noop")
		}
		if m.Released {
			b.WriteString(" released")
		}
	}
	if others == 0 {
		return
	}
	fmt.Fprintf(b, " and %d others", others)
	if first, last := list[0], list[len(list)-1]; first.Partition == last.Partition {
		fmt.Fprintf(b, " (%s/%d to %d)", first.Partition, first.Offset, last.Offset)
	}
}

func describeKey(b *strings.Builder, k *KeyOp) {
	fmt.Fprintf(b, " %s %s", k.Op, k.Key)
	if k.Delta != 0 {
		fmt.Fprintf(b, " by %d", k.Delta)
	}
	if k.Expect != nil {
		fmt.Fprintf(b, " if version %d", *k.Expect)
	}
	for _, part := range []struct{ name, value string }{{"value", k.Value}, {"found", k.Current}, {"lost", k.Reason}} {
		if part.value != "" {
			fmt.Fprintf(b, " %s=%s", part.name, part.value)
		}
	}
	if k.Version > 0 {
		fmt.Fprintf(b, " version %d", k.Version)
	}
}
