//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestAcceptance holds the acceptance cases that concern several brokers to a
// real installation: through nginx, with clocks that are ten minutes apart.
//
// It measures, so it has the machine for itself.
func TestAcceptance(t *testing.T) {
	c := Start(t, Options{Brokers: 3, Offsets: map[int]time.Duration{1: 10 * time.Minute, 2: -10 * time.Minute}})
	t.Run("A4 commit order", func(t *testing.T) { commitOrder(t, c) })
	t.Run("A4 rolled back", func(t *testing.T) { rolledBack(t, c) })
	t.Run("A5 lease", func(t *testing.T) { leaseFromGrant(t, c) })
	t.Run("A7 idempotent push", func(t *testing.T) { idempotentPush(t, c) })
	t.Run("A9 client gone", func(t *testing.T) { clientGone(t, c) })
	t.Run("A9 gone between claim and answer", func(t *testing.T) { goneAfterClaim(t, c) })
	t.Run("A8 migration", func(t *testing.T) { migrationUnderLoad(t, c) })
}

type message struct {
	ID, TransactionID, Partition, LeaseID, PartitionID string
	Offset, DeliveryAttempt                            int
}

// pop returns what came, nothing for 204.
func pop(t *testing.T, h *http.Client, base, path string) []message {
	t.Helper()
	status, raw, err := Call(context.Background(), h, "GET", base+path, nil)
	if err == nil && status == http.StatusNoContent {
		return nil
	}
	var answer struct{ Messages []message }
	if err != nil || status != http.StatusOK || json.Unmarshal(raw, &answer) != nil {
		t.Errorf("GET %s: %d %.300s %v", path, status, raw, err)
	}
	return answer.Messages
}

func ids(messages []message) (all []string) {
	for _, m := range messages {
		all = append(all, m.TransactionID)
	}
	return all
}

type pushed struct {
	Status    string
	MessageID string `json:"message_id"`
	Offset    int
}

// push sends items, each written "partition id payload".
func push(t *testing.T, h *http.Client, c *Cluster, queue string, items ...string) (results []pushed) {
	t.Helper()
	var body []string
	for _, it := range items {
		f := strings.SplitN(it, " ", 3)
		body = append(body, fmt.Sprintf(`{"queue":%q,"partition":%q,"transactionId":%q,"payload":%s}`, queue, f[0], f[1], f[2]))
	}
	raw := must(t, h, http.StatusCreated, "POST", c.URL+"/api/v1/push", `{"items":[`+strings.Join(body, ",")+`]}`)
	if err := json.Unmarshal(raw, &results); err != nil || len(results) != len(items) {
		t.Fatalf("push: %v in %s", err, raw)
	}
	return results
}

// slowCommit makes transactions that write such a row take longer to commit,
// with all they changed being locked.
func slowCommit(t *testing.T, c *Cluster, table, event, when string, seconds float64) {
	t.Helper()
	drop := "DROP TRIGGER IF EXISTS test_slow ON " + table
	err := c.Primary().Exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION queen.test_slow() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF %s THEN PERFORM pg_sleep(%g); END IF; RETURN NULL; END $$`, when, seconds))
	if err == nil {
		err = c.Primary().Exec(fmt.Sprintf(`CREATE CONSTRAINT TRIGGER test_slow AFTER %s ON %s DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION queen.test_slow()`, event, table))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Primary().Exec(drop); err != nil {
			t.Error(err)
		}
	})
}

// committing waits until somebody is in such a commit.
func committing(t *testing.T, c *Cluster) {
	t.Helper()
	eventually(t, 10*time.Second, "a slow commit", func() bool {
		n, err := c.Primary().Int("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
		return err == nil && n > 0
	})
}

func commitOrder(t *testing.T, c *Cluster) {
	h := client(t)
	const path = "/api/v1/pop/queue/order/partition/p?autoAck=true"
	var others []string
	for i := range 8 {
		others = append(others, fmt.Sprint("other", i))
		push(t, h, c, "order", others[i]+" before 0")
	}
	push(t, h, c, "order", "p before 0")
	pop(t, h, c.URL, path)
	slowCommit(t, c, "queen.segments", "INSERT", `strpos(NEW.body, '"order-A"') > 0`, 1.5)

	var wg sync.WaitGroup
	var mu sync.Mutex
	var committed time.Time
	wg.Go(func() {
		push(t, h, c, "order", "p order-A 1")
		mu.Lock()
		committed = time.Now()
		mu.Unlock()
	})
	committing(t, c)
	time.Sleep(300 * time.Millisecond)
	wg.Go(func() { push(t, h, c, "order", "p order-B 1") })
	took := make([]time.Duration, len(others))
	for i, other := range others {
		wg.Go(func() {
			from := time.Now()
			push(t, h, c, "order", other+" order-C 1")
			took[i] = time.Since(from)
		})
	}
	var read []message
	for end := time.Now().Add(10 * time.Second); len(read) < 2 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		got := pop(t, h, c.URL, path)
		mu.Lock()
		// The answer to the push may be a moment behind its commit.
		early := len(got) > 0 && committed.IsZero()
		mu.Unlock()
		if early {
			n, err := c.Primary().Int("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
			if err != nil || n > 0 {
				t.Errorf("%v was delivered before A was committed (%v)", ids(got), err)
			}
		}
		read = append(read, got...)
	}
	wg.Wait()
	if !slices.Equal(ids(read), []string{"order-A", "order-B"}) || read[1].Offset != read[0].Offset+1 {
		t.Errorf("read %+v", read)
	}
	slices.Sort(took)
	t.Logf("pushes to other partitions took %v to %v", took[0], took[len(took)-1])
	if took[len(took)/2] > 200*time.Millisecond || took[len(took)-1] > time.Second {
		t.Errorf("pushes to other partitions took %v", took)
	}
}

// hold opens a transaction beside the brokers and runs a statement in it.
func hold(t *testing.T, c *Cluster, sql string, args ...any) (pgx.Tx, func()) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.Primary().URL())
	if err != nil {
		t.Fatal(err)
	}
	release := func() { _ = conn.Close(ctx) }
	t.Cleanup(release)
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, sql, args...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx, release
}

func rolledBack(t *testing.T, c *Cluster) {
	h := client(t)
	push(t, h, c, "rolled", "p before 0", "p2 before 0")
	for len(pop(t, h, c.URL, "/api/v1/pop/queue/rolled?autoAck=true&partitions=8")) > 0 {
	}
	_, rollback := hold(t, c, "SELECT queen.push('rolled', 'p', '{}', 'A')")
	done := make(chan []pushed, 1)
	go func() {
		defer close(done) // should the push fail the test
		done <- push(t, h, c, "rolled", "p B 1")
	}()
	push(t, h, c, "rolled", "p2 C 1")
	for range 4 {
		if got := pop(t, h, c.URL, "/api/v1/pop/queue/rolled/partition/p"); got != nil {
			t.Fatalf("%v was delivered before it was committed", ids(got))
		}
		time.Sleep(50 * time.Millisecond)
	}
	rollback()
	if r := <-done; len(r) != 1 || r[0].Status != "queued" || r[0].Offset != 1 {
		t.Errorf("%+v", r)
	}
	if got := pop(t, h, c.URL, "/api/v1/pop/queue/rolled/partition/p?wait=true&timeout=5000"); !slices.Equal(ids(got), []string{"B"}) || got[0].Offset != 1 {
		t.Errorf("got %+v", got)
	}
	if got := pop(t, h, c.URL, "/api/v1/pop/queue/rolled?wait=true&timeout=5000"); !slices.Equal(ids(got), []string{"C"}) {
		t.Errorf("got %+v", got)
	}
}

// leaseFromGrant asks each broker, and the balancer, for a lease of a second of
// a cursor that somebody keeps locked for one and a half.
func leaseFromGrant(t *testing.T, c *Cluster) {
	h := client(t)
	bases := map[string]string{"lease-balancer": c.URL}
	for _, b := range c.Brokers {
		bases["lease-"+b.Name] = b.Direct
	}
	var wg sync.WaitGroup
	for queue, base := range bases {
		push(t, h, c, queue, "p before 0")
		pop(t, h, c.URL, "/api/v1/pop/queue/"+queue+"?autoAck=true")
		push(t, h, c, queue, "p m 0")
		tx, release := hold(t, c, "SELECT 1 FROM queen.cursors c JOIN queen.queues q ON q.id = c.queue_id WHERE q.name = $1 FOR UPDATE OF c", queue)
		wg.Go(func() {
			time.Sleep(300 * time.Millisecond)
			got := make(chan []message, 1)
			go func() {
				got <- pop(t, h, base, "/api/v1/pop/queue/"+queue+"?leaseSeconds=1&wait=true&timeout=8000")
			}()
			time.Sleep(1200 * time.Millisecond)
			var released time.Time
			err := tx.QueryRow(context.Background(), "SELECT queen.clock()").Scan(&released)
			release()
			messages := <-got
			if err != nil || len(messages) != 1 {
				t.Errorf("%s: got %+v (%v)", queue, messages, err)
				return
			}
			answered := time.Now() // here and the database are one machine
			text, err := c.Primary().Text("SELECT to_char(lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM queen.cursors WHERE lease_id = $1::text::uuid", messages[0].LeaseID)
			if err != nil {
				t.Errorf("%s: %v", queue, err)
				return
			}
			end, err := time.Parse(time.RFC3339Nano, text)
			left := end.Sub(answered)
			t.Logf("%s: %v left of a lease of 1s", queue, left)
			if err != nil || end.Add(-time.Second).Before(released) || left > time.Second || left < 500*time.Millisecond {
				t.Errorf("%s: a lease until %v, of a row released at %v, was answered at %v (%v)", queue, end, released, answered, err)
			}
		})
	}
	wg.Wait()
}

func idempotentPush(t *testing.T, c *Cluster) {
	h := client(t)
	items := []string{`p a {"v":1}`, `p a {"v":2}`, `p b {"v":3}`, `p2 a {"v":4}`}
	check := func(queue string, results []pushed, statuses ...string) {
		t.Helper()
		for i, r := range results {
			if r.Status != statuses[i] {
				t.Errorf("%s: item %d is %s, want %s", queue, i, r.Status, statuses[i])
			}
		}
		if results[1].MessageID != results[0].MessageID {
			t.Errorf("%s: %+v is no duplicate of %+v", queue, results[1], results[0])
		}
	}
	first := push(t, h, c, "once", items...)
	check("once", first, "queued", "duplicate", "queued", "queued")
	again := push(t, h, c, "once", items...)
	check("once", again, "duplicate", "duplicate", "duplicate", "duplicate")
	var wg sync.WaitGroup
	all := make([][]pushed, 50)
	for i := range all {
		wg.Go(func() { all[i] = push(t, h, c, "fresh", items...) })
	}
	wg.Wait()
	queued := 0
	for _, results := range all {
		for i, r := range results {
			if r.Status == "queued" {
				queued++
			}
			if r.MessageID != all[0][i].MessageID {
				t.Errorf("item %d: %s in one answer and %s in another", i, r.MessageID, all[0][i].MessageID)
			}
		}
	}
	n, err := c.Primary().Int("SELECT count(*) FROM queen.messages WHERE queue = 'fresh'")
	if err != nil || n != 3 || queued != 3 {
		t.Errorf("%d messages are stored, %d answers said queued (%v)", n, queued, err)
	}
	for i := range again {
		if again[i].MessageID != first[i].MessageID {
			t.Errorf("item %d: the repeat names %s, the original is %s", i, again[i].MessageID, first[i].MessageID)
		}
	}
}

// leaving is a pop whose client may drop its connection at any time.
func leaving(t *testing.T, c *Cluster, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: q\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	return conn
}

func parkedInAll(t *testing.T, c *Cluster, h *http.Client) (n int) {
	t.Helper()
	for _, b := range c.Brokers {
		n += b.parked(t, h)
	}
	return n
}

func clientGone(t *testing.T, c *Cluster) {
	h := client(t)
	const path = "/api/v1/pop/queue/gone?wait=true&timeout=30000"
	push(t, h, c, "gone", "p before 0")
	pop(t, h, c.URL, "/api/v1/pop/queue/gone?autoAck=true")
	var took []time.Duration
	for i := range 5 {
		conn := leaving(t, c, path)
		eventually(t, 5*time.Second, "the pop is parked", func() bool { return parkedInAll(t, c, h) == 1 })
		_ = conn.Close()
		eventually(t, 5*time.Second, "the pop is given up", func() bool { return parkedInAll(t, c, h) == 0 })
		next := make(chan []message, 1)
		go func() { next <- pop(t, h, c.URL, path+"&autoAck=true") }()
		eventually(t, 5*time.Second, "the next pop is parked", func() bool { return parkedInAll(t, c, h) == 1 })
		from := time.Now()
		push(t, h, c, "gone", fmt.Sprintf("p m%d 0", i))
		got := <-next
		took = append(took, time.Since(from))
		if len(got) != 1 || got[0].DeliveryAttempt != 1 {
			t.Errorf("the next consumer got %+v", got)
		}
	}
	slices.Sort(took)
	t.Logf("the next consumer got the message after %v", took)
	if took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("the next consumer got the message after %v", took)
	}
}

func goneAfterClaim(t *testing.T, c *Cluster) {
	h := client(t)
	push(t, h, c, "claimed", "p before 0")
	pop(t, h, c.URL, "/api/v1/pop/queue/claimed?autoAck=true")
	push(t, h, c, "claimed", "p m0 0", "p m1 1")
	if err := c.Primary().Exec("CREATE SEQUENCE queen.test_once"); err != nil {
		t.Fatal(err)
	}
	slowCommit(t, c, "queen.cursors", "UPDATE", `NEW.lease_id IS NOT NULL AND OLD.lease_id IS NULL AND
		pg_sequence_last_value('queen.test_once') IS NULL AND nextval('queen.test_once') > 0`, 0.5)
	conn := leaving(t, c, "/api/v1/pop/queue/claimed?leaseSeconds=60")
	committing(t, c)
	from := time.Now()
	_ = conn.Close()
	got := pop(t, h, c.URL, "/api/v1/pop/queue/claimed?wait=true&timeout=15000")
	took := time.Since(from)
	t.Logf("available again %v after the client left, in the middle of a commit of 500ms", took)
	if took > 1500*time.Millisecond || !slices.Equal(ids(got), []string{"m0", "m1"}) || got[0].DeliveryAttempt != 1 {
		t.Errorf("after %v: %+v", took, got)
	}
}

// migrationUnderLoad applies a next version's steps three times at once beneath
// a hundred requests a second, while somebody reads every table in one long
// transaction.
func migrationUnderLoad(t *testing.T, c *Cluster) {
	bin, err := Built("queen-next")
	if err != nil {
		t.Fatal(err)
	}
	h := client(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	sent, seen, ended := 0, map[string]int{}, make(chan struct{})
	take := func() int {
		got := pop(t, h, c.URL, "/api/v1/pop/queue/rolling?batch=5&partitions=3&leaseSeconds=60&autoAck=true")
		mu.Lock()
		defer mu.Unlock()
		for _, m := range got {
			seen[m.TransactionID]++
		}
		return len(got)
	}
	take()
	for w := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				case <-time.After(20 * time.Millisecond):
				}
				status, raw, err := Call(context.Background(), h, "POST", c.URL+"/api/v1/push",
					fmt.Sprintf(`{"items":[{"queue":"rolling","partition":"p%d","transactionId":"%d-%d","payload":0}]}`, n%5, w, n))
				if err != nil || status != http.StatusCreated {
					t.Errorf("push: %d %.300s %v", status, raw, err)
				}
				mu.Lock()
				sent++
				mu.Unlock()
				take()
			}
		})
	}
	time.Sleep(500 * time.Millisecond) // every statement is prepared
	_, release := hold(t, c, "SELECT count(*) FROM queen.cursors, queen.queues, queen.segments, queen.partitions, queen.message_ids")
	outputs := make([]string, 3)
	var jobs sync.WaitGroup
	for i := range outputs {
		jobs.Go(func() {
			var err error
			outputs[i], err = c.launcher.run(program{name: "queen-next migrate", command: []string{bin, "migrate", "up"}, env: []string{"DATABASE_URL=" + c.Primary().URL()}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(time.Duration(number(t, "CLUSTER_READ_SECONDS", 2)) * time.Second)
	release()
	jobs.Wait()
	time.Sleep(500 * time.Millisecond) // on the new schema
	close(ended)
	wg.Wait()
	// An empty pop does not mean that nothing is left: a cursor somebody else has
	// a hand on is looked at again a moment later.
	for end := time.Now().Add(10 * time.Second); (take() > 0 || len(seen) < sent) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	applied := strings.Count(strings.Join(outputs, ""), "applied ")
	if want := len(hotTables) + 1; applied != want {
		t.Errorf("%d steps were applied in all, want each of %d once: %q", applied, want, outputs)
	}
	if n, err := c.Primary().Int("SELECT count(*) FROM pg_index WHERE NOT indisvalid"); err != nil || n != 0 {
		t.Errorf("%d invalid indexes (%v)", n, err)
	}
	twice := 0
	for n := range maps.Values(seen) {
		if n != 1 {
			twice++
		}
	}
	t.Logf("%d pushes, none failed unless listed above", sent)
	if len(seen) != sent || twice > 0 {
		t.Errorf("%d messages were sent, %d delivered, %d of them more than once", sent, len(seen), twice)
	}
	consistent(t, c)
}
