package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// behaviour is one numbered promise, on a queue of its own.
type behaviour struct {
	name string
	test func(t *testing.T, b *Broker, queue string)
}

// eachBehaviour runs them in parallel on one fleet, through its first broker.
func eachBehaviour(t *testing.T, f *Fleet, list ...behaviour) {
	t.Helper()
	for i, bh := range list {
		t.Run(bh.name, func(t *testing.T) {
			t.Parallel()
			bh.test(t, f.One().In(t), fmt.Sprintf("q%d.%s", i, bh.name))
		})
	}
}

// as is the query of a group that starts at the oldest message.
func as(group string) string { return "subscriptionMode=all&consumerGroup=" + group + "&" }

// delivers is a pop that has to answer these ids in this order.
func delivers(b *Broker, queue, query string, want ...string) *PopAnswer {
	b.t.Helper()
	p := b.Pop(queue, query)
	if !slices.Equal(p.IDs(), want) {
		b.t.Fatalf("pop %s?%s: got %q, want %q", queue, query, p.IDs(), want)
	}
	return p
}

func deliversNothing(b *Broker, queue, query string) {
	b.t.Helper()
	if p := b.Pop(queue, query); p != nil {
		b.t.Fatalf("pop %s?%s: got %q, want 204", queue, query, p.IDs())
	}
}

// lapse waits until a lease of one second is over.
func lapse() { time.Sleep(1100 * time.Millisecond) }

// pick acknowledges delivered messages, each written "position",
// "position status" or "position status error text".
func pick(p *PopAnswer, specs ...string) []AckItem {
	var out []AckItem
	for _, spec := range specs {
		part := strings.SplitN(spec+"  ", " ", 3)
		at, err := strconv.Atoi(part[0])
		if err != nil {
			panic(err)
		}
		out = append(out, p.Messages[at].Ack(part[1], strings.TrimSpace(part[2])))
	}
	return out
}

// without takes the lease off items.
func without(items []AckItem) []AckItem {
	for i := range items {
		items[i].LeaseID = ""
	}
	return items
}

// acked acknowledges and wants these verdicts, in the words of said.
func acked(b *Broker, group string, items []AckItem, want ...string) {
	b.t.Helper()
	if got := said(b.Ack(group, items...)); !slices.Equal(got, want) {
		b.t.Fatalf("ack: got  %q\nwant %q", got, want)
	}
}

// said puts verdicts short: "ok" and what else is true of it, or the refusal up
// to its first colon.
func said(results []AckResult) []string {
	var out []string
	for i, r := range results {
		s := "ok"
		switch {
		case r.Index != i:
			s = fmt.Sprintf("index %d at %d", r.Index, i)
		case r.Success == (r.Error != nil):
			s = "both success and error, or neither"
		case !r.Success:
			s, _, _ = strings.Cut(*r.Error, ":")
		}
		for _, flag := range []struct {
			set  bool
			name string
		}{{r.LeaseReleased, "released"}, {r.DLQ, "dlq"}, {r.Noop, "noop"}} {
			if flag.set {
				s += "+" + flag.name
			}
		}
		if r.Conflated > 0 {
			s += fmt.Sprintf("+conflated%d", r.Conflated)
		}
		out = append(out, s)
	}
	return out
}

// The refusals, as said puts them.
const (
	noLease      = "invalid or expired lease"
	noConsumer   = "consumer not found"
	notOwned     = "partition not owned by tenant"
	committed    = "already committed"
	unresolvable = "unresolvable"
)

var placeholders = strings.NewReplacer(
	"<time>", `"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"`,
	"<uuid>", `"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"`,
	"<int>", `\d+`,
	"<text>", `"(?:[^"\\]|\\.)+"`,
	"<more>", `.*`,
)

// looksLike compares an answer byte for byte, but for what cannot be known:
// <time>, <uuid>, <int>, <text> and <more>.
func looksLike(t testing.TB, answer []byte, want string) {
	t.Helper()
	re := regexp.MustCompile("^" + placeholders.Replace(regexp.QuoteMeta(want)) + "$")
	if !re.Match(answer) {
		t.Errorf("got  %s\nwant %s", answer, want)
	}
}

// answered is a request that has to come back with a status and a JSON body
// that looksLike want.
func answered(b *Broker, status int, want, method, path string, body any) {
	b.t.Helper()
	got, header, answer := b.Do(method, path, body)
	if got != status {
		b.t.Fatalf("%s %s: status %d, want %d: %.500s", method, path, got, status, answer)
	}
	if ct := header.Get("Content-Type"); ct != "application/json" {
		b.t.Errorf("%s %s: content type %q", method, path, ct)
	}
	looksLike(b.t, answer, want)
}

// depthOf reads what a group has before it on a queue.
func depthOf(b *Broker, queue, group string) (pending, processing int) {
	b.t.Helper()
	var d struct{ Pending, Processing int }
	b.MustInto(&d, http.StatusOK, "GET", "/api/v1/resources/queues/"+Seg(queue)+"/depth?group="+Seg(group), nil)
	return d.Pending, d.Processing
}
