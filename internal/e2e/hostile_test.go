package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

func TestPush_A3_HostileBodiesStopAtTheEdge(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b, pool := f.One(), f.DB.Pool(t)
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	good := `{"queue":"q","partition":"p","transactionId":"good","payload":1}`
	for name, c := range map[string]struct{ body, field string }{
		"a raw 0xFF in a payload":      {`{"items":[` + good + `,{"queue":"q","payload":"` + "\xff" + `"}]}`, "items[1].payload"},
		"a raw 0xFF in a name":         {`{"items":[` + good + `,{"queue":"` + "\xff" + `","payload":1}]}`, "items[1].queue"},
		"a raw 0xFF in an id":          {`{"items":[` + good + `,{"queue":"q","payload":1,"transactionId":"` + "\xff" + `"}]}`, "items[1].transactionId"},
		"a raw 0xFF in an unknown key": {`{"items":[` + good + `,{"queue":"q","payload":1,"x":"` + "\xff" + `"}]}`, "items[1].x"},
		"NUL in a queue name":          {`{"items":[` + good + `,{"queue":"a\u0000b","payload":1}]}`, "items[1].queue"},
		"NUL in a partition name":      {`{"items":[` + good + `,{"queue":"q","partition":"\u0000","payload":1}]}`, "items[1].partition"},
		"NUL in an id":                 {`{"items":[` + good + `,{"queue":"q","transactionId":"x\u0000","payload":1}]}`, "items[1].transactionId"},
		"a control character":          {`{"items":[` + good + `,{"queue":"a\u001fb","payload":1}]}`, "items[1].queue"},
		"a lone surrogate in a name":   {`{"items":[` + good + `,{"queue":"\ud800","payload":1}]}`, "items[1].queue"},
		"513 nested arrays":            {`{"items":[` + good + `,{"queue":"q","payload":` + nested(513) + `}]}`, "items[1].payload"},
		"10001 nested arrays":          {`{"items":[` + good + `,{"queue":"q","payload":` + nested(10001) + `}]}`, "items[1].payload"},
		"items twice":                  {`{"items":[` + good + `],"items":[` + good + `]}`, "items"},
		"payload twice":                {`{"items":[` + good + `,{"queue":"q","payload":1,"payload":2}]}`, "items[1].payload"},
		"a second value":               {`{"items":[` + good + `]} {"items":[]}`, ""},
		"ITEMS":                        {`{"ITEMS":[` + good + `]}`, "items"},
		"an invalid item at the end":   {`{"items":[` + good + `,` + good + `,{"queue":7,"payload":1}]}`, "items[2].queue"},
		"an item that is no object":    {`{"items":[` + good + `,5]}`, "items[1]"},
		"an id that is too long":       {`{"items":[` + good + `,{"queue":"q","payload":1,"transactionId":"` + strings.Repeat("x", 65536) + `"}]}`, "items[1].transactionId"},
	} {
		r := mustRefuse(b, http.StatusBadRequest, "POST", "/api/v1/push", c.body)
		if r.Field != c.field {
			t.Errorf("%s: field %q in %q, want %q", name, r.Field, r.Error, c.field)
		}
		if rows := rowsStored(t, pool); rows != 0 {
			t.Fatalf("%s: %d rows were written", name, rows)
		}
	}
	accepted := nested(512)
	b.Must(http.StatusCreated, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":`+accepted+`}]}`)
	if got := string(b.Pop("q", "").Messages[0].Data); got != accepted {
		t.Errorf("512 nested arrays came back as %.60s…", got)
	}
	noRefusedValues(t, pool, b)
}

func TestAck_A3_HostileBodiesStopAtTheEdge(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	b := f.One()
	b.PushN("q", "p", "m", 1)
	m := b.Pop("q", "").Messages[0]
	for _, body := range []string{
		`{"transactionId":"m-0` + "\xff" + `","partitionId":"` + m.PartitionID + `"}`,
		`{"transactionId":"m-0","partitionId":"\u0000"}`,
		`{"transactionId":"m-0","partitionId":"` + m.PartitionID + `","consumerGroup":"\u0000"}`,
		`{"transactionId":"m-0","partitionId":"` + m.PartitionID + `","status":true}`,
		`{"transactionId":"m-0","transactionId":"m-1","partitionId":"` + m.PartitionID + `"}`,
		`{"transactionId":"m-0","partitionId":"` + m.PartitionID + `"}{}`,
	} {
		mustRefuse(b, http.StatusBadRequest, "POST", "/api/v1/ack", body)
	}
	// What is only strange is an ordinary miss.
	for _, item := range []AckItem{
		{TransactionID: "m-0", PartitionID: "not an id"},
		{TransactionID: "m-0", PartitionID: "ffffffff-ffff-ffff-ffff-ffffffffffff"},
		{TransactionID: strings.Repeat("x", 100_000), PartitionID: m.PartitionID},
		{PartitionID: m.PartitionID},
		{TransactionID: "m-0", PartitionID: m.PartitionID, LeaseID: "no lease"},
	} {
		if r := b.Ack("", item)[0]; r.Success {
			t.Errorf("%.80v was accepted", item)
		}
	}
	for _, path := range []string{
		"/api/v1/pop/queue/a%00b", "/api/v1/pop/queue/%ff", "/api/v1/pop/queue/q/partition/%00", "/api/v1/pop/queue/q?consumerGroup=%00",
		"/api/v1/pop/queue/q?consumerGroup=%ff", "/api/v1/pop?namespace=%00", "/api/v1/pop/queue/q?batch=99999999999",
	} {
		mustRefuse(b, http.StatusBadRequest, "GET", path, nil)
	}
	b.AckAll(&PopAnswer{Messages: []Message{m}})
	noRefusedValues(t, f.DB.Pool(t), b)
}

// rowsStored counts everything a push may write.
func rowsStored(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM queen.queues) + (SELECT count(*) FROM queen.partitions)
		+ (SELECT count(*) FROM queen.segments) + (SELECT count(*) FROM queen.message_ids)`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// noRefusedValues fails when the database refused anything, as it does with a
// value that the edge let through: a failed statement is a rollback. A backend
// reports its counters late, at the latest when it ends.
func noRefusedValues(t *testing.T, pool *pgxpool.Pool, b *Broker) {
	t.Helper()
	b.Stop()
	eventually(t, func() bool {
		var others int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'queen %'`).Scan(&others)
		return err == nil && others == 0
	}, "the broker's connections to end")
	var rollbacks int
	err := pool.QueryRow(context.WithoutCancel(t.Context()),
		"SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&rollbacks)
	if err != nil || rollbacks != 0 {
		t.Errorf("the database rolled %d transactions back (%v)", rollbacks, err)
	}
}
