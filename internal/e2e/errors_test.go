package e2e

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

func TestErrors_B14_TextsOfTheRequestAreEscaped(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	odd := "a\"b\\c\u0001</script>\u2028"
	for _, path := range []string{
		"/api/v1/" + Seg(odd), "/api/v1/pop/queue/q?batch=" + Seg(odd), "/api/v1/pop/queue/q?wait=" + Seg(odd),
	} {
		want := http.StatusBadRequest
		if !strings.Contains(path, "?") {
			want = http.StatusNotFound
		}
		mustRefuse(b, want, "GET", path, nil)
	}
	for _, path := range []string{"/api/v1/push", "/api/v1/ack", "/api/v1/configure"} {
		mustRefuse(b, http.StatusBadRequest, "POST", path, `{"`+`a\"b\\c`+`":`+"\x01"+`}`)
	}
	mustRefuse(b, http.StatusBadRequest, "POST", "/api/v1/configure", map[string]any{"queue": "q", "mode": odd})
	mustRefuse(b, http.StatusNotFound, "GET", "/api/v1/resources/queues/"+Seg(`no"such\queue`), nil)
}

func TestErrors_B15_UnknownPathsAreJSON404(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	for _, c := range [][2]string{
		{"POST", "/api/v1/nope"},
		{"GET", "/api/v1/nope"},
		{"DELETE", "/api/v1/pop/queue/q/partition/p/x"},
		{"POST", "/nope"},
		{"POST", "/api/v2/push"},
		{"POST", "/api/v1/push/"},
	} {
		if r := mustRefuse(b, http.StatusNotFound, c[0], c[1], nil); r.Code != "no_such_route" || r.Error != "Not Found" {
			t.Errorf("%s %s: %+v", c[0], c[1], r)
		}
	}
}

func TestErrors_B16_MalformedJSONWritesNothing(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	bodies := []string{``, ` `, `{`, `[`, `nope`, `"text"`, `5`, `{"items":[{"queue":"q","payload":1}]`, `{"items":[{"queue":"q","payload":01}]}`}
	for _, path := range []string{"/api/v1/push", "/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"} {
		for _, body := range bodies {
			mustRefuse(b, http.StatusBadRequest, "POST", path, body)
		}
	}
	var list struct {
		Queues []any `json:"queues"`
	}
	if b.MustInto(&list, http.StatusOK, "GET", "/api/v1/resources/queues", nil); len(list.Queues) != 0 {
		t.Errorf("queues were made: %v", list.Queues)
	}
}

func TestErrors_B17_A503CarriesRetryAfter(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{Env: []string{"QUEEN_STMT_TIMEOUT_MS=400"}})
	b := f.One()
	b.PushN("q", "p", "m", 1)
	tx, err := f.DB.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing was written
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM queen.partitions FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	status, header, answer := b.Do("POST", "/api/v1/push", PushBody(Item{Queue: "q", Partition: "p"}))
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if status != http.StatusServiceUnavailable || err != nil || seconds < 1 {
		t.Fatalf("status %d, Retry-After %q: %s", status, header.Get("Retry-After"), answer)
	}
}

func TestPop_B8_204HasNoBody(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{}).One()
	reused := 0
	for i := range 3 {
		ctx := traceReuse(t.Context(), &reused)
		status, header, answer, err := b.Try(ctx, "GET", "/api/v1/pop/queue/q", nil)
		if err != nil || status != http.StatusNoContent || len(answer) != 0 {
			t.Fatalf("status %d, %v, body %q", status, err, answer)
		}
		for _, name := range []string{"Content-Length", "Content-Type", "Transfer-Encoding"} {
			if v := header.Values(name); len(v) > 0 {
				t.Errorf("204 has %s %q", name, v)
			}
		}
		if reused != i {
			t.Errorf("connection was reused %d times after %d answers", reused, i+1)
		}
	}
}
