package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgtest"
)

// surface is a store and, beside it, an application's own sessions.
type surface struct {
	*fixture
	url string
	sql *pgxpool.Pool
}

func setupSurface(t *testing.T, sessions int, settings ...string) *surface {
	t.Helper()
	db := pgtest.New(t)
	for _, s := range settings {
		if _, err := db.Pool(t).Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" SET "+s); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), Config{URL: db.URL, PoolSize: 12, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = int32(sessions)
	cfg.ConnConfig.RuntimeParams["search_path"] = ""
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f := &surface{fixture: &fixture{Store: s, t: t}, url: db.URL, sql: pool}
	if f.queue, err = s.EnsureQueue(t.Context(), mq.DefaultTenant, "orders"); err != nil {
		t.Fatal(err)
	}
	return f
}

// pushed is what queen.push answers.
type pushed struct {
	id        mq.UUID
	offset    int64
	duplicate bool
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func sqlPush(q querier, queue, partition, payload string, txn any) (p pushed, err error) {
	err = q.QueryRow(context.Background(), `SELECT * FROM queen.push($1, $2, $3::text::json, $4)`, queue, partition, payload, txn).
		Scan((*[16]byte)(&p.id), &p.offset, &p.duplicate)
	return p, err
}

func (f *surface) mustPush(partition, payload string, txn any) pushed {
	f.t.Helper()
	p, err := sqlPush(f.sql, "orders", partition, payload, txn)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

func (f *surface) count(sql string, args ...any) (n int64) {
	f.t.Helper()
	if err := f.sql.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *surface) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.sql.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func (f *surface) begin() pgx.Tx {
	f.t.Helper()
	tx, err := f.sql.Begin(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return fmt.Sprint(err)
}

func TestSQLPushIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	g := f.group("g", mq.StartAll)

	tx := f.begin()
	if _, err := sqlPush(tx, "new.queue", "p", `1`, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlPush(tx, "orders", "p", `1`, "a"); err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback(t.Context())
	for _, table := range []string{"partitions", "segments", "message_ids", "cursors"} {
		if n := f.count(`SELECT count(*) FROM queen.` + table); n != 0 {
			t.Errorf("%d %s left of a transaction that was rolled back", n, table)
		}
	}
	if n := f.count(`SELECT count(*) FROM queen.queues`); n != 1 {
		t.Errorf("%d queues, want 1", n)
	}

	tx = f.begin()
	first, err := sqlPush(tx, "orders", "p", `{"n":1}`, "a")
	if err != nil {
		t.Fatal(err)
	}
	// A savepoint is undone like anything else of the transaction.
	sub, _ := tx.Begin(t.Context())
	if p, err := sqlPush(sub, "orders", "p", `{"n":0}`, "undone"); err != nil || p.offset != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	_ = sub.Rollback(t.Context())
	second, err := sqlPush(tx, "orders", "p", `{"n":2}`, nil)
	if err != nil || first.offset != 0 || second.offset != 1 {
		t.Fatalf("%+v, %+v, %v", first, second, err)
	}
	if c := f.claim(g, 10, 1); len(c) != 0 {
		t.Fatalf("delivered before the commit: %+v", c)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := f.claim(g, 10, 1)
	if len(c) != 1 || c[0].Messages() != 2 {
		t.Fatalf("after the commit: %+v", c)
	}
	e, err := parseElement(c[0].Segments[1].Message(0))
	if err != nil || e.ID != second.id || e.TransactionID != second.id.String() || string(e.Payload) != `{"n":2}` {
		t.Errorf("%+v, %v", e, err)
	}
	if c := f.claim(g, 10, 1); len(c) != 0 {
		t.Errorf("claimed twice: %+v", c)
	}
}

func TestSQLPushNotifiesAtCommit(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	conn, err := pgx.Connect(t.Context(), f.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "LISTEN queen_wake"); err != nil {
		t.Fatal(err)
	}
	heard := func(wait time.Duration) string {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return ""
		}
		return strings.ReplaceAll(n.Payload, " ", "")
	}
	tx := f.begin()
	if _, err := sqlPush(tx, "orders", `p"1`, `1`, "a"); err != nil {
		t.Fatal(err)
	}
	if got := heard(100 * time.Millisecond); got != "" {
		t.Fatalf("heard before the commit: %s", got)
	}
	_ = tx.Commit(t.Context())
	if got, want := heard(5*time.Second), fmt.Sprintf(`{"q":%d,"p":["p\"1"]}`, f.queue.ID); got != want {
		t.Errorf("heard %s, want %s", got, want)
	}
	f.mustPush(`p"1`, `1`, "a")
	if got := heard(100 * time.Millisecond); got != "" {
		t.Errorf("a duplicate wakes: %s", got)
	}
}

var surfaceIDs = []any{nil, "", "plain", `quo"te`, `back\slash`, `\"`, `trailing\`, `","traceId":`, "\u00e9\u4e16\U0001f600", strings.Repeat("x", 65535)}

// What queen.push stores is, byte by byte, what the broker stores.
func TestSQLPushStoresWhatTheBrokerStores(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	g := f.group("g", mq.StartAll)
	for i, txn := range surfaceIDs {
		payload := fmt.Sprintf("{ \"n\":1.10, \"s\":\"\u4e16\\u0000\\ud800\", \"n\":%d }", i)
		p := f.mustPush("p", payload, txn)
		id, _ := txn.(string)
		if id == "" {
			id = p.id.String()
		}
		want := buildSegments([]*mq.Message{{ID: p.id, TransactionID: id, Payload: []byte(payload), Hash: mq.HashID(id)}})[0]
		var body string
		var ends, marks []byte
		err := f.sql.QueryRow(t.Context(), `SELECT body, ends, marks FROM queen.segments WHERE end_offset = $1`, i).Scan(&body, &ends, &marks)
		if err != nil || body != string(want.body) || !slices.Equal(ends, want.ends) || !slices.Equal(marks, want.marks) {
			t.Errorf("id %.20q: %v\n got %.300s %x %x\nwant %.300s %x %x", id, err, body, ends, marks, want.body, want.ends, want.marks)
		}
		hash := mq.HashID(id)
		if n := f.count(`SELECT count(*) FROM queen.message_ids WHERE message_offset = $1 AND id_hash = $2`, i, [16]byte(hash.Key)); n != 1 {
			t.Errorf("id %.20q: %d rows in message_ids", id, n)
		}
		if ms := int64(p.id[0])<<40 | int64(p.id[1])<<32 | int64(p.id[2])<<24 | int64(p.id[3])<<16 | int64(p.id[4])<<8 | int64(p.id[5]); p.id[6]>>4 != 7 || p.id[8]>>6 != 2 || time.Since(time.UnixMilli(ms)).Abs() > time.Minute {
			t.Errorf("%s is not a version-7 UUID of now", p.id)
		}
	}
	// The fingerprint of the claimed batch is that of its ids.
	lease := mq.ScopedID(f.queue.ID)
	c, err := f.Claim(t.Context(), f.queue.ID, g, time.Time{}, []mq.ClaimRequest{{LeaseID: lease, Messages: 100, Partitions: 1, Bytes: 8 << 20}})
	if err != nil || len(c.Claims[0]) != 1 || c.Claims[0][0].Messages() != len(surfaceIDs) {
		t.Fatalf("%+v, %v", c, err)
	}
	var fp mq.Fingerprint
	for i := range c.Claims[0][0].Segments {
		e, err := parseElement(c.Claims[0][0].Segments[i].Message(0))
		if err != nil {
			t.Fatal(err)
		}
		fp.Add(mq.HashID(e.TransactionID))
	}
	acks := []mq.QueueAcks{{QueueID: f.queue.ID, Batches: []mq.BatchAck{{
		CursorKey: mq.CursorKey{Partition: c.Claims[0][0].ID.Partition, Group: g.ID}, LeaseID: lease, Count: fp.Count, Mark: fp.Mark,
	}}}}
	if err := f.AckBatches(t.Context(), acks); err != nil || !acks[0].Results[0].Done || acks[0].Results[0].More {
		t.Errorf("%+v, %v", acks[0].Results, err)
	}
}

func TestSQLPushAndBrokerShareTheWindow(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	ms := []*mq.Message{message("\u00e9", `0`), message("a", `1`), message("b", `2`)}
	f.push("p", ms...)
	for i, m := range ms {
		if p := f.mustPush("p", `9`, m.TransactionID); !p.duplicate || p.id != m.ID || p.offset != int64(i) {
			t.Errorf("%q: %+v, want the original %s at %d", m.TransactionID, p, m.ID, i)
		}
	}
	own := f.mustPush("p", `3`, "c")
	if own.duplicate || own.offset != 3 {
		t.Fatalf("%+v", own)
	}
	if again := f.mustPush("p", `4`, "c"); !again.duplicate || again.id != own.id || again.offset != 3 {
		t.Errorf("%+v, want %+v again", again, own)
	}
	if r := f.push("p", message("c", `5`)); r.Appended || len(r.Stored) != 1 || r.Stored[0].Offset != 3 {
		t.Errorf("the broker does not see what SQL stored: %+v", r)
	}
	if p := f.mustPush("other", `3`, "c"); p.duplicate {
		t.Error("an id of another partition counts")
	}
	// The window ends, the message may be gone before it does, and it may be off.
	f.exec(`DELETE FROM queen.segments WHERE end_offset = 3`)
	if p := f.mustPush("p", `6`, "c"); !p.duplicate || !p.id.IsZero() || p.offset != 3 {
		t.Errorf("an original that is gone: %+v", p)
	}
	f.exec(`UPDATE queen.queues SET dedup_window_seconds = 1`)
	f.exec(`SELECT pg_sleep(1.1)`)
	if p := f.mustPush("p", `6`, "c"); p.duplicate || p.offset != 4 {
		t.Errorf("after the window: %+v", p)
	}
	f.exec(`UPDATE queen.queues SET dedup_window_seconds = 0`)
	if p := f.mustPush("p", `6`, "c"); p.duplicate || p.offset != 5 {
		t.Errorf("without a window: %+v", p)
	}
	// Ids of a class before are found as long as they count.
	f.exec(`UPDATE queen.queues SET dedup_window_seconds = 86000, id_class = 1, id_class_before = 0`)
	if p := f.mustPush("p", `6`, "a"); !p.duplicate || p.offset != 1 {
		t.Errorf("an id of the class before: %+v", p)
	}
	f.mustPush("p", `6`, "d")
	if n := f.count(`SELECT count(*) FROM queen.message_ids WHERE window_class = 1`); n != 1 {
		t.Errorf("%d ids in the class of the queue, want 1", n)
	}
}

func TestSQLPushMakesQueuesAsTheBrokerDoes(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	for _, name := range []string{"", "plain", "a.b", "a.b.c.d", ".x", "x.", "..", "\u00e9.\u4e16"} {
		if p, err := sqlPush(f.sql, name, "", `1`, nil); err != nil || p.offset != 0 {
			t.Fatalf("%q: %+v, %v", name, p, err)
		}
		q, err := f.FindQueue(t.Context(), mq.DefaultTenant, name)
		if err != nil {
			t.Fatal(err)
		}
		if want := mq.ImplicitOptions(name); q.Options != want || q.IDClass != want.IDClass() || q.IDClassBefore != q.IDClass {
			t.Errorf("%q\n got %+v\nwant %+v", name, q.Options, want)
		}
		if n := f.count(`SELECT count(*) FROM queen.partitions WHERE queue_id = $1 AND name = $2`, q.ID, mq.DefaultPartition); n != 1 {
			t.Errorf("%q: no default partition", name)
		}
	}
	other := mq.UUID{15: 9}
	f.exec(`SELECT queen.push('plain', 'p', '1', NULL, $1)`, [16]byte(other))
	if q, err := f.FindQueue(t.Context(), other, "plain"); err != nil || q.Tenant != other {
		t.Errorf("queue of another tenant: %v", err)
	}
}

func TestSQLPushRefuses(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	long := strings.Repeat("n", 447-36-len("orders"))
	for name, c := range map[string]struct{ args, state string }{
		"null queue":              {`NULL, 'p', '1'`, "22023"},
		"null partition":          {`'orders', NULL, '1'`, "22023"},
		"null payload":            {`'orders', 'p', NULL`, "22023"},
		"null tenant":             {`'orders', 'p', '1', NULL, NULL`, "22023"},
		"control in queue":        {`E'or\tders', 'p', '1'`, "22023"},
		"control in partition":    {`'orders', E'p\x1f', '1'`, "22023"},
		"control in id":           {`'orders', 'p', '1', E'a\x01'`, "22023"},
		"delete and C1 are fine":  {`'orders', E'p\x7f\u0085', '1'`, ""},
		"names of the limit":      {`'orders', '` + long + `', '1'`, ""},
		"names over the limit":    {`'orders', '` + long + `n', '1'`, "22023"},
		"bytes count":             {`'orders', '` + long[1:] + "\u00e9" + `', '1'`, "22023"},
		"id over the limit":       {`'orders', 'p', '1', repeat('x', 65536)`, "22023"},
		"bytes of the id count":   {`'orders', 'p', '1', repeat('x', 65534) || 'é'`, "22023"},
		"not JSON":                {`'orders', 'p', '{'`, "22P02"},
		"JSON null is a payload":  {`'orders', 'p', 'null'`, ""},
		"named arguments":         {`queue => 'orders', partition => 'p', payload => '1', transaction_id => 'n'`, ""},
		"no partition is Default": {`'orders', '', '1'`, ""},
	} {
		_, err := f.sql.Exec(t.Context(), "SELECT * FROM queen.push("+c.args+")")
		if got := sqlState(err); err == nil && c.state != "" || err != nil && got != c.state {
			t.Errorf("%s: %v, want SQLSTATE %q", name, err, c.state)
		}
	}
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := f.sql.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sqlPush(tx, "orders", "p", `1`, nil); sqlState(err) != "25000" {
			t.Errorf("%s: %v, want SQLSTATE 25000", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

func TestSQLPushHoldsAndWakes(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	g, drained := f.group("g", mq.StartAll), f.group("drained", mq.StartAll)
	f.mustPush("p", `1`, nil)
	if c := f.claim(g, 1, 1); len(c) != 1 {
		t.Fatal("nothing to claim")
	}
	f.exec(`UPDATE queen.cursors SET committed = 0, ready_at = NULL WHERE group_id = $1`, drained.ID)
	f.exec(`UPDATE queen.queues SET delayed_processing = 7, window_buffer = 60`)
	f.mustPush("p", `2`, nil)
	const wait = `SELECT round(extract(epoch FROM ready_at - now()))::bigint FROM queen.cursors WHERE group_id = $1`
	if s := f.count(wait, drained.ID); s < 58 || s > 60 {
		t.Errorf("the drained cursor is ready in %d s, want 60", s)
	}
	if s := f.count(wait, g.ID); s < 28 || s > 30 {
		t.Errorf("the leased cursor is ready in %d s, want the 30 of its lease", s)
	}
}

// A fleet that was down has no slice for now; the push makes it.
func TestSQLPushMakesMissingSlices(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	f.exec(`DO $$ DECLARE s regclass; BEGIN
		FOR s IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'queen.message_ids'::regclass LOOP EXECUTE 'DROP TABLE ' || s; END LOOP; END $$`)
	for i, class := range []int{0, 1, 2, 0} {
		f.exec(`UPDATE queen.queues SET id_class = $1, id_class_before = $1`, class)
		if p := f.mustPush("p", `1`, fmt.Sprint(i)); p.offset != int64(i) {
			t.Errorf("%+v", p)
		}
	}
	if n := f.count(`SELECT count(*) FROM queen.message_ids`); n != 4 {
		t.Errorf("%d ids, want 4", n)
	}
}

// The rights docs/sql.md names are enough.
func TestSQLRights(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	f.mustPush("p", `{"a":1}`, nil)
	role := fmt.Sprintf("queen_test_%d", time.Now().UnixNano())
	f.exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		_, _ = f.sql.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role, pgx.QueryExecModeSimpleProtocol)
	})
	as := func(sql string) error {
		tx := f.begin()
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql)
		return err
	}
	f.exec(`GRANT USAGE ON SCHEMA queen TO ` + role)
	f.exec(`GRANT SELECT ON queen.messages TO ` + role)
	if err := as(`SELECT payload FROM queen.messages WHERE queue = 'orders'`); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := as(`SELECT * FROM queen.push('orders', 'p', '1')`); sqlState(err) != "42501" {
		t.Errorf("a reader pushes: %v", err)
	}
	f.exec(`GRANT SELECT, INSERT, UPDATE ON queen.queues, queen.partitions, queen.cursors TO ` + role)
	f.exec(`GRANT SELECT, INSERT ON queen.segments, queen.message_ids TO ` + role)
	f.exec(`GRANT SELECT ON queen.consumer_groups TO ` + role)
	for _, q := range []string{"orders", "made by it"} {
		if err := as(`SELECT * FROM queen.push('` + q + `', 'p2', '1', 'x')`); err != nil {
			t.Errorf("push to %q: %v", q, err)
		}
	}
}
