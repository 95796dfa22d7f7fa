package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// Payloads whose bytes are the contract (acceptance A1 and A2).
var exactPayloads = []struct{ text, sum string }{
	{`{"nul":"\u0000","lone":"\ud800","ok":"\ud83d\ude00","nfd":"e\u0301","esc":"\/"}`, "7788ea7ebf988ce810edf3e2bdabca9e8d61a9fa45fa834b88e60e9666fc74d4"},
	{`{ "b":1, "n":9007199254740993, "d":1.10, "e":1E2, "z":-0, "h":"<&>", "b":2 }`, "6997aa688017de9cd827b7483df61b15d88587f4dccf2423485ab57bbc2c58b0"},
}

type viewRow struct {
	queue, partition, payload, txn string
	offset                         int64
	id                             [16]byte
	trace                          *[16]byte
	sub                            *string
}

func (f *surface) view(where string, args ...any) []viewRow {
	f.t.Helper()
	rows, err := f.sql.Query(context.Background(), `SELECT queue, partition, payload::text, transaction_id, "offset", message_id, trace_id, producer_sub
		FROM queen.messages WHERE `+where+` ORDER BY queue, partition, "offset"`, args...)
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v viewRow, err error) {
		err = r.Scan(&v.queue, &v.partition, &v.payload, &v.txn, &v.offset, &v.id, &v.trace, &v.sub)
		return v, err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func TestViewShowsPayloadsByteForByte(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	var want []string
	var run []*mq.Message
	for _, p := range exactPayloads {
		if sum := sha256.Sum256([]byte(p.text)); hex.EncodeToString(sum[:]) != p.sum {
			t.Fatalf("the payload is not the one of the contract: %s", p.text)
		}
		want = append(want, p.text)
	}
	want = append(want, `"`+"\u4e16\U0001f600"+`"`, ` [1 , 2] `, `1.10`, `null`, `"","data":null}"`[:2], `{"a":"\",\"data\":"}`, `{"é":"`+strings.Repeat("é", 5000)+`"}`)
	for i, payload := range want {
		// Multi-byte text before a payload must not shift it.
		run = append(run, message(fmt.Sprintf("\u4e16\u754c-%d", i), payload))
	}
	f.push("broker", run...)
	for i, payload := range want {
		f.mustPush("sql", payload, fmt.Sprintf("\U0001f600\u00e9-%d", i))
	}
	for _, partition := range []string{"broker", "sql"} {
		rows := f.view(`queue = 'orders' AND partition = $1`, partition)
		if len(rows) != len(want) {
			t.Fatalf("%s: %d rows, want %d", partition, len(rows), len(want))
		}
		for i, r := range rows {
			if r.payload != want[i] || r.offset != int64(i) {
				t.Errorf("%s at %d\n got %q\nwant %q", partition, r.offset, r.payload, want[i])
			}
		}
	}
}

func TestViewShowsWhatBelongsToAMessage(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	subs := []string{"", "bob", `quo"te\`, `","data":`, "tab\tand\x01control", "nul\x00byte", `literal \u0000`, "\u4e16"}
	var run []*mq.Message
	for i, sub := range subs {
		m := message(fmt.Sprint(surfaceIDs[2+i%(len(surfaceIDs)-2)], i), `{"a":1}`)
		m.ProducerSub = sub
		if i%2 == 1 {
			m.TraceID = mq.NewID()
		}
		run = append(run, m)
	}
	f.push("p", run...)
	rows := f.view(`queue = 'orders'`)
	if len(rows) != len(run) {
		t.Fatalf("%d rows, want %d", len(rows), len(run))
	}
	for i, r := range rows {
		m := run[i]
		sub := ""
		if r.sub != nil {
			sub = *r.sub
		}
		if (r.sub == nil) != (m.ProducerSub == "") || sub != strings.ReplaceAll(m.ProducerSub, "\x00", "") {
			t.Errorf("%d: producer %q, want %q", i, sub, m.ProducerSub)
		}
		if (r.trace == nil) != m.TraceID.IsZero() || r.trace != nil && *r.trace != [16]byte(m.TraceID) {
			t.Errorf("%d: trace %v, want %s", i, r.trace, m.TraceID)
		}
		if r.id != [16]byte(m.ID) || r.txn != m.TransactionID || r.partition != "p" {
			t.Errorf("%d: %+v, want %s %q", i, r, m.ID, m.TransactionID)
		}
	}
	if n := f.count(`SELECT count(*) FROM queen.messages m JOIN queen.segments s USING (created_at) WHERE m.tenant = '00000000-0000-0000-0000-000000000001'`); n != int64(len(run)) {
		t.Errorf("%d rows with the instant and the tenant", n)
	}
}

// A query that names a queue, or a partition too, reads no other's segments.
func TestViewReadsOnlyWhatIsNamed(t *testing.T) {
	t.Parallel()
	f := setupSurface(t, 4)
	f.mustPush("p0", `{"a":1}`, nil)
	f.exec(`INSERT INTO queen.queues OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(q, jsonb_build_object('id', q.id + n, 'name', 'q' || n))).*
		FROM queen.queues q, generate_series(1, 50) n`)
	f.exec(`INSERT INTO queen.partitions (queue_id, created_at, last_offset, name)
		SELECT q.id, now(), 9, 'part' || n FROM queen.queues q, generate_series(1, 40) n`)
	f.exec(`INSERT INTO queen.segments SELECT p.queue_id, p.id, n, now(), 1, s.ends, s.marks, s.body
		FROM queen.partitions p, (SELECT * FROM queen.segments LIMIT 1) s, generate_series(0, 9) n WHERE p.name LIKE 'part%'`)
	f.exec(`ANALYZE`)
	for where, want := range map[string]int64{
		`queue = 'q7'`:                         400,
		`queue = 'q7' AND partition = 'part3'`: 10,
		`tenant = '00000000-0000-0000-0000-000000000001' AND queue = 'q7' AND partition = 'part3'`:    10,
		`queue = 'q7' AND partition IN ('part3', 'part4') AND created_at > now() - interval '1 hour'`: 20,
	} {
		plan := explain(t, f.sql, `EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) SELECT payload FROM queen.messages WHERE `+where)
		if strings.Contains(plan, "Seq Scan on segments") {
			t.Errorf("%s reads all segments:\n%s", where, plan)
		}
		read := int64(0)
		for _, m := range regexp.MustCompile(`on segments_\d+ \S+ \(actual rows=([\d.]+) loops=(\d+)\)`).FindAllStringSubmatch(plan, -1) {
			var rows float64
			var loops int64
			_, _ = fmt.Sscan(m[1], &rows)
			_, _ = fmt.Sscan(m[2], &loops)
			read += int64(rows*float64(loops) + 0.5)
		}
		if read != want {
			t.Errorf("%s: %d segments read, want %d:\n%s", where, read, want, plan)
		}
	}
}

func explain(t *testing.T, q db.DBTX, sql string, args ...any) string {
	t.Helper()
	rows, err := q.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
