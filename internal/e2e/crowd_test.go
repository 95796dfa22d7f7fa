package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crowd is many callers on one queue at once. No model can say what each of
// them must be told, so everything is written down, by the callers and by the
// database, and compared afterwards: see history_test.go.
type crowd struct {
	t     *testing.T
	f     *Fleet
	queue string
	until time.Time

	mu         sync.Mutex
	stored     map[string]map[int64]string // partition → offset → transaction id
	repeated   []storedAt                  // what duplicates were said to repeat
	deliveries []delivery
	letters    atomic.Int64
	serial     atomic.Int64
}

type storedAt struct {
	partition string
	offset    int64
	id        string
}

type delivery struct {
	group, partition, lease string
	messages                []Message
}

const crowdPartitions = 6

// crowdGroups are the groups and how each is consumed.
var crowdGroups = []struct {
	name, query string
	workers     int
}{
	{"", "partitions=1", 3},
	{"work", "consumerGroup=work&subscriptionMode=all&partitions=3", 4},
	{"once", "consumerGroup=once&subscriptionMode=all&partitions=2&autoAck=true", 3},
	{"last", "consumerGroup=last&subscriptionMode=all&conflation=true&partitions=2", 2},
	{"moved", "consumerGroup=moved&subscriptionMode=all&partitions=2", 2},
}

// TestCrowd drives one queue with pushers, consumers of five groups and seeks
// over two brokers, and checks the invariants on what the database saw.
func TestCrowd(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Brokers: 2})
	pool := f.DB.Pool(t)
	recordHistory(t, pool)
	seed := modelSeed(t)
	c := &crowd{t: t, f: f, queue: "crowd", until: time.Now().Add(modelTime(t, 4*time.Second)), stored: map[string]map[int64]string{}}
	f.One().Configure(c.queue, map[string]any{"retryLimit": 2})
	var wg sync.WaitGroup
	actor := uint64(0)
	start := func(act func(*rand.Rand, *Broker)) {
		actor++
		rnd, b := rand.New(rand.NewPCG(seed, actor)), f.Brokers[actor%2]
		wg.Go(func() {
			for time.Now().Before(c.until) && !t.Failed() {
				act(rnd, b)
			}
		})
	}
	for range 4 {
		start(c.push)
	}
	for _, g := range crowdGroups {
		for range g.workers {
			start(func(rnd *rand.Rand, b *Broker) { c.consume(rnd, b, g.name, g.query) })
		}
	}
	start(c.seek)
	wg.Wait()
	c.drain()
	if t.Failed() {
		return
	}
	c.checkLog()
	c.checkDeliveries()
	c.checkHistory(pool)
	checkNothingStranded(t, pool)
}

func (c *crowd) push(rnd *rand.Rand, b *Broker) {
	items := make([]Item, 1+rnd.IntN(10))
	for i := range items {
		n := c.serial.Add(1)
		items[i] = Item{Queue: c.queue, Partition: fmt.Sprint("p", rnd.IntN(crowdPartitions))}
		switch rnd.IntN(4) {
		case 0: // none
		case 1:
			items[i].TransactionID = fmt.Sprint("again-", max(n-rnd.Int64N(30), 0)/10)
		default:
			items[i].TransactionID = fmt.Sprint("id-", n)
		}
		items[i].Payload = json.RawMessage(fmt.Sprintf(`{"partition":%q,"id":%q}`, items[i].Partition, items[i].TransactionID))
	}
	results := b.Push(items...)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range results {
		p := items[i].Partition
		if c.stored[p] == nil {
			c.stored[p] = map[int64]string{}
		}
		switch {
		case r.Offset == nil || r.Status != "queued" && r.Status != "duplicate":
			c.t.Errorf("push answered %+v", r)
		case r.Status == "duplicate":
			c.repeated = append(c.repeated, storedAt{p, *r.Offset, r.TransactionID})
		default:
			if other, taken := c.stored[p][*r.Offset]; taken {
				c.t.Errorf("%s/%d was given to %s and %s", p, *r.Offset, other, r.TransactionID)
			}
			c.stored[p][*r.Offset] = r.TransactionID
		}
	}
}

func (c *crowd) consume(rnd *rand.Rand, b *Broker, group, query string) {
	query += fmt.Sprintf("&batch=%d&leaseSeconds=1", 1+rnd.IntN(25))
	if rnd.IntN(2) == 0 {
		query += "&wait=true&timeout=200"
	}
	var got *PopAnswer
	if rnd.IntN(4) == 0 {
		got = b.PopPinned(c.queue, fmt.Sprint("p", rnd.IntN(crowdPartitions)), query)
	} else {
		got = b.Pop(c.queue, query)
	}
	if got == nil || len(got.Messages) == 0 {
		return
	}
	parts := c.note(group, got)
	if got.LeaseID == "" {
		return
	}
	for _, msgs := range parts {
		c.settle(rnd, b, group, msgs)
	}
}

// note writes a delivery down, a partition at a time.
func (c *crowd) note(group string, got *PopAnswer) [][]Message {
	var parts [][]Message
	for i, m := range got.Messages {
		if i == 0 || m.Partition != got.Messages[i-1].Partition {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, msgs := range parts {
		c.deliveries = append(c.deliveries, delivery{group, msgs[0].Partition, got.LeaseID, msgs})
	}
	return parts
}

// settle does to one delivered batch what consumers do.
func (c *crowd) settle(rnd *rand.Rand, b *Broker, group string, msgs []Message) {
	items := make([]AckItem, len(msgs))
	for i, m := range msgs {
		items[i] = m.Ack("completed", "")
	}
	at := rnd.IntN(len(items))
	switch n := rnd.IntN(100); {
	case n < 55:
	case n < 65: // in two calls
		c.ack(b, group, items[:at+1])
		items = items[at:]
	case n < 72:
		items[at].Status = "failed"
	case n < 77:
		items[at].Status = "retry"
	case n < 80:
		items[at].Status = "dlq"
	case n < 85: // crashed
		return
	case n < 89: // slow: whatever is said comes after the lease
		time.Sleep(1100 * time.Millisecond)
	case n < 94:
		b.Must(http.StatusOK, "POST", modelExtendPath(msgs[0].LeaseID), `{"seconds":2}`)
	case n < 98: // without a lease
		for i := range items {
			items[i].LeaseID = ""
		}
	default: // only the last
		items = items[len(items)-1:]
	}
	c.ack(b, group, items)
}

func (c *crowd) ack(b *Broker, group string, items []AckItem) {
	for _, r := range b.Ack(group, items...) {
		if r.DLQ {
			c.letters.Add(1)
		}
	}
}

func (c *crowd) seek(rnd *rand.Rand, b *Broker) {
	time.Sleep(time.Duration(100+rnd.IntN(300)) * time.Millisecond)
	body := map[string]any{"toEnd": true}
	if rnd.IntN(2) == 0 {
		body = map[string]any{"timestamp": time.Now().Add(-time.Duration(rnd.IntN(3000)) * time.Millisecond).UTC().Format(time.RFC3339Nano)}
	}
	path := "/api/v1/consumer-groups/moved/queues/" + c.queue
	if rnd.IntN(2) == 0 {
		path += fmt.Sprint("/partitions/p", rnd.IntN(crowdPartitions))
	}
	if status, _, answer := b.Do("POST", path+"/seek", body); status != http.StatusOK && status != http.StatusNotFound {
		c.t.Errorf("seek: %d %s", status, answer)
	}
}

// drain consumes to the end with every group. A parked pop comes back empty
// only when nothing is left: leases of the crowd end within two seconds.
func (c *crowd) drain() {
	var wg sync.WaitGroup
	for i, g := range crowdGroups {
		wg.Go(func() {
			for !c.t.Failed() {
				got := c.f.Brokers[i%2].Pop(c.queue, g.query+"&batch=1000&leaseSeconds=30&wait=true&timeout=2500")
				if got == nil || len(got.Messages) == 0 {
					return
				}
				c.note(g.name, got)
				if got.LeaseID != "" {
					c.f.Brokers[i%2].AckAll(got)
				}
			}
		})
	}
	wg.Wait()
}

// checkLog: offsets are dense, every message was promised to one caller, and
// duplicates name what they repeat.
func (c *crowd) checkLog() {
	total := 0
	for p, log := range c.stored {
		total += len(log)
		for off := range int64(len(log)) {
			if _, ok := log[off]; !ok {
				c.t.Errorf("%s: offset %d of %d was given to nobody", p, off, len(log))
			}
		}
	}
	for _, d := range c.repeated {
		if c.stored[d.partition][d.offset] != d.id {
			c.t.Errorf("%s/%d is %s, a duplicate of it was %s", d.partition, d.offset, c.stored[d.partition][d.offset], d.id)
		}
	}
	c.t.Logf("%d messages, %d duplicates, %d deliveries, %d dead letters", total, len(c.repeated), len(c.deliveries), c.letters.Load())
}

// checkDeliveries: right bytes, right order, one creation time that never
// falls, nothing lost, and at-most-once where that was asked for.
func (c *crowd) checkDeliveries() {
	created := map[storedAt]time.Time{}
	times := map[string]map[int64]int{} // group → how often each offset came
	for _, d := range c.deliveries {
		for i, m := range d.messages {
			want := c.stored[d.partition][m.Offset]
			var data struct{ Partition, ID string }
			if err := json.Unmarshal(m.Data, &data); err != nil || data.Partition != d.partition || data.ID != "" && data.ID != m.TransactionID {
				c.t.Errorf("%s/%d %s carries %s (%v)", d.partition, m.Offset, m.TransactionID, m.Data, err)
			}
			if m.TransactionID != want || i > 0 && m.Offset != d.messages[i-1].Offset+1 {
				c.t.Errorf("%s/%d is %s, want %s, in order", d.partition, m.Offset, m.TransactionID, want)
			}
			at := storedAt{d.partition, m.Offset, m.TransactionID}
			if known, ok := created[at]; ok && !known.Equal(m.CreatedAt) {
				c.t.Errorf("%+v was created at %v and %v", at, known, m.CreatedAt)
			}
			created[at] = m.CreatedAt
			key := d.group + "\x00" + d.partition
			if times[key] == nil {
				times[key] = map[int64]int{}
			}
			times[key][m.Offset]++
		}
	}
	for p, log := range c.stored {
		for off := range int64(len(log)) {
			now := created[storedAt{p, off, log[off]}]
			if before := created[storedAt{p, off - 1, log[off-1]}]; off > 0 && before.After(now) {
				c.t.Errorf("%s/%d was created before its predecessor", p, off)
			}
			for _, g := range []string{"", "work", "once"} {
				n := times[g+"\x00"+p][off]
				if n == 0 || g == "once" && n != 1 {
					c.t.Errorf("%s/%d came to group %q %d times", p, off, g, n)
				}
			}
		}
	}
}
