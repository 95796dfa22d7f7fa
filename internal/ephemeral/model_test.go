package ephemeral_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/ephemeral"
	"github.com/queenmq-go/queenmq/internal/mq"
)

// The model is the contract written down as plainly as possible: lists and
// maps, no clock. Long random sequences of calls must get the same answers from
// it and from the scripts.

type modelMessage struct {
	n       int // number in the ring, from 1
	payload string
}

type modelReader struct {
	next   int         // number of the next message it has not seen
	leased map[int]int // number -> deliveries
	back   map[int]int
}

type modelRing struct {
	held    []modelMessage
	last    int
	readers map[string]*modelReader
}

type model struct {
	maxLength, maxBytes int
	dropOldest          bool
	retryLimit          int
	rings               map[string]*modelRing
	groups              map[string]bool
	skipped             map[string]int
	bounds, retries     int
}

func (r *modelRing) first() int { return r.last - len(r.held) + 1 }

func (r *modelRing) owed(g string) (first int, ok bool) {
	rd := r.readers[g]
	if rd == nil {
		return 0, false
	}
	first = rd.next
	for n := range rd.leased {
		first = min(first, n)
	}
	for n := range rd.back {
		first = min(first, n)
	}
	return first, true
}

func (m *model) trim() {
	for _, r := range m.rings {
		low := r.last + 1
		for g := range m.groups {
			first, ok := r.owed(g)
			if !ok {
				first = 0
			}
			low = min(low, first)
		}
		if len(m.groups) > 0 && low > r.first() {
			r.held = r.held[low-r.first():]
		}
	}
}

func (m *model) depth() (n, bytes int) {
	for _, r := range m.rings {
		for _, x := range r.held {
			n, bytes = n+1, bytes+len(x.payload)
		}
	}
	return n, bytes
}

func (m *model) push(partition string, payloads []string) bool {
	size := 0
	for _, p := range payloads {
		size += len(p)
	}
	n, bytes := m.depth()
	r := m.rings[partition]
	overN, overB := n+len(payloads)-m.maxLength, bytes+size-m.maxBytes
	if len(payloads) > m.maxLength || size > m.maxBytes {
		return false
	}
	if overN > 0 || overB > 0 {
		held := 0
		if r != nil {
			for _, x := range r.held {
				held += len(x.payload)
			}
		}
		if !m.dropOldest || r == nil || len(r.held) < overN || held < overB {
			return false
		}
		for overN > 0 || overB > 0 {
			overN, overB = overN-1, overB-len(r.held[0].payload)
			m.drop(r)
		}
		defer m.trim()
	}
	if r == nil {
		r = &modelRing{readers: map[string]*modelReader{}}
		m.rings[partition] = r
	}
	for _, p := range payloads {
		r.last++
		r.held = append(r.held, modelMessage{r.last, p})
	}
	return true
}

// drop loses the oldest message of a ring.
func (m *model) drop(r *modelRing) {
	n := r.held[0].n
	unconsumed := len(m.groups) == 0
	for g := range m.groups {
		rd := r.reader(g)
		_, leased := rd.leased[n]
		_, back := rd.back[n]
		if rd.next <= n {
			rd.next = n + 1
			m.skipped[g]++
			unconsumed = true
		}
		unconsumed = unconsumed || leased || back
		delete(rd.leased, n)
		delete(rd.back, n)
	}
	if unconsumed {
		m.bounds++
	}
	r.held = r.held[1:]
}

func (r *modelRing) reader(g string) *modelReader {
	rd := r.readers[g]
	if rd == nil {
		rd = &modelReader{next: r.first(), leased: map[int]int{}, back: map[int]int{}}
		r.readers[g] = rd
	}
	return rd
}

// modelDelivery is one message handed out, for a later ack.
type modelDelivery struct {
	group, partition string
	n, times         int
	payload, id      string
	reset            int // how often the queue had been reset
}

func (m *model) pop(g, partition string, batch int, auto bool) (out []modelDelivery) {
	m.groups[g] = true
	names := slices.Sorted(maps.Keys(m.rings))
	if partition != "" {
		names = []string{partition}
		if m.rings[partition] == nil {
			m.rings[partition] = &modelRing{readers: map[string]*modelReader{}}
		}
	}
	for _, name := range names {
		r := m.rings[name]
		if len(out) == batch {
			break
		}
		rd := r.reader(g)
		give := func(n, times int) {
			out = append(out, modelDelivery{group: g, partition: name, n: n, times: times, payload: r.held[n-r.first()].payload})
			if !auto {
				rd.leased[n] = times
			}
		}
		for _, n := range slices.Sorted(maps.Keys(rd.back)) {
			if len(out) == batch {
				break
			}
			times := rd.back[n] + 1
			delete(rd.back, n)
			give(n, times)
		}
		for len(out) < batch && rd.next <= r.last {
			rd.next++
			give(rd.next-1, 1)
		}
	}
	m.trim()
	return out
}

func (m *model) ack(d *modelDelivery, v mq.EphemeralVerdict, resets int) string {
	rd := m.rings[d.partition].readers[d.group]
	times, ok := rd.leased[d.n]
	if !ok || d.reset != resets { // a redelivery has the same id
		return "unknown"
	}
	delete(rd.leased, d.n)
	switch {
	case v == completed:
	case times >= m.retryLimit:
		m.retries++
	default:
		rd.back[d.n] = times
		return "redelivered"
	}
	m.trim()
	return "acked"
}

func (m *model) reset() int {
	n, _ := m.depth()
	for _, r := range m.rings {
		r.held = nil
		for g := range m.groups {
			r.readers[g] = &modelReader{next: r.last + 1, leased: map[int]int{}, back: map[int]int{}}
		}
	}
	return n
}

func (m *model) owed(g string) (n int) {
	for _, r := range m.rings {
		if rd := r.readers[g]; rd != nil {
			n += r.last - max(rd.next, r.first()) + 1 + len(rd.leased) + len(rd.back)
		} else {
			n += len(r.held)
		}
	}
	return n
}

func TestEphemeral_Model(t *testing.T) {
	rounds, steps := 6, 400
	if testing.Short() {
		rounds, steps = 2, 150
	}
	for round := range rounds {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			both(t, ephemeral.Config{}, func(c *scene) {
				defer func() {
					if t.Failed() {
						t.Logf("seed %d", seed)
					}
				}()
				walk(c, rand.New(rand.NewPCG(seed, 1)), steps)
			})
		})
	}
}

func walk(c *scene, rnd *rand.Rand, steps int) {
	if c.inProcess {
		steps /= 4
	}
	m := &model{
		maxLength: 5 + rnd.IntN(60), maxBytes: 50 + rnd.IntN(1000), dropOldest: rnd.IntN(2) == 0, retryLimit: rnd.IntN(4),
		rings: map[string]*modelRing{}, groups: map[string]bool{}, skipped: map[string]int{},
	}
	o := mq.EphemeralOptions{
		MaxLength: ptr(int64(m.maxLength)), MaxBytes: ptr(int64(m.maxBytes)), RetryLimit: ptr(int64(m.retryLimit)), LeaseSeconds: ptr[int64](600),
	}
	if m.dropOldest {
		o.Policy = ptr(mq.EphemeralDropOldest)
	}
	c.configure("q", o)
	fleet := []*scene{c, c.on(c.broker(&tally{}))}
	var out []modelDelivery
	resets := 0
	for step := range steps {
		on := fleet[rnd.IntN(2)]
		where := []string{"a", "b", "c", "d"}[rnd.IntN(4)]
		group := []string{"x", "y", "z"}[rnd.IntN(1+step*3/steps)]
		switch k := rnd.IntN(100); {
		case k < 35:
			var payloads []string
			for i := range 1 + rnd.IntN(6) {
				payloads = append(payloads, fmt.Sprintf(`"%d.%d%s"`, step, i, strings.Repeat("x", rnd.IntN(30))))
			}
			err := on.tryPush("q", where, payloads...)
			if want := m.push(where, payloads); (err == nil) != want {
				c.t.Fatalf("step %d: push: %v, want %v", step, err, want)
			}
		case k < 65:
			if rnd.IntN(2) == 0 {
				where = ""
			}
			batch, auto := 1+rnd.IntN(8), rnd.IntN(4) == 0
			got := on.pop("q", batch, how{partition: where, group: group, auto: auto})
			want := m.pop(group, where, batch, auto)
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || string(got[i].Payload) != want[i].payload || got[i].Attempts != want[i].times || got[i].Partition != want[i].partition {
					c.t.Fatalf("step %d: popped %q, want %+v", step, show(got), want)
				}
				want[i].id, want[i].reset = got[i].ID, resets
			}
			if !auto {
				out = append(out, want...)
			}
		case k < 97:
			for range min(len(out), 1+rnd.IntN(5)) {
				i := rnd.IntN(len(out))
				d := out[i]
				v := []mq.EphemeralVerdict{completed, completed, retry}[rnd.IntN(3)]
				want := m.ack(&d, v, resets)
				if got := on.ack("q", d.group, v, mq.EphemeralMessage{ID: d.id}); got != want {
					c.t.Fatalf("step %d: ack of %+v: %s, want %s", step, d, got, want)
				}
				if rnd.IntN(10) > 0 { // some are acknowledged again
					out = slices.Delete(out, i, i+1)
				}
			}
		case k < 98:
			n, err := on.s.Reset(c.t.Context(), mq.DefaultTenant, "q")
			if want := m.reset(); err != nil || int(n) != want {
				c.t.Fatalf("step %d: reset %d %v, want %d", step, n, err, want)
			}
			resets++
		default:
			time.Sleep(time.Millisecond)
		}
		compare(on, m, step)
	}
}

func compare(c *scene, m *model, step int) {
	c.t.Helper()
	d := c.depth("q", "")
	n, bytes := m.depth()
	if int(d.Pending) != n || int(d.Bytes) != bytes || len(d.Groups) != len(m.groups) {
		c.t.Fatalf("step %d: %+v, want %d messages, %d bytes, %d groups", step, d, n, bytes, len(m.groups))
	}
	for _, g := range d.Groups {
		if int(g.Pending) != m.owed(g.Group) || int(g.Skipped) != m.skipped[g.Group] {
			c.t.Fatalf("step %d: %+v, want %d owed, %d skipped", step, g, m.owed(g.Group), m.skipped[g.Group])
		}
	}
	if q := c.queue("q"); int(q.Drops.Bounds) != m.bounds || int(q.Drops.Retry) != m.retries {
		c.t.Fatalf("step %d: %+v, want %d and %d", step, q.Drops, m.bounds, m.retries)
	}
	if u := c.usage(); u != int64(bytes) {
		c.t.Fatalf("step %d: the installation holds %d bytes, want %d", step, u, bytes)
	}
}
