package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The payloads are exact bytes; the sums say that an editor left them alone.
var opaque = map[string]struct{ payload, sum string }{
	"A1": {
		`{"nul":"\u0000","lone":"\ud800","ok":"\ud83d\ude00","nfd":"e\u0301","esc":"\/"}`,
		"7788ea7ebf988ce810edf3e2bdabca9e8d61a9fa45fa834b88e60e9666fc74d4",
	},
	"A2": {
		`{ "b":1, "n":9007199254740993, "d":1.10, "e":1E2, "z":-0, "h":"<&>", "b":2 }`,
		"6997aa688017de9cd827b7483df61b15d88587f4dccf2423485ab57bbc2c58b0",
	},
}

func TestPayload_A1_A2_IsOpaque(t *testing.T) {
	t.Parallel()
	f := Start(t, Options{})
	for name, c := range opaque {
		t.Run(name, func(t *testing.T) {
			if sum := sha256.Sum256([]byte(c.payload)); hex.EncodeToString(sum[:]) != c.sum {
				t.Fatal("these are not the bytes")
			}
			b := f.One().In(t)
			same := func(where string, got []byte) {
				t.Helper()
				if string(got) != c.payload {
					t.Errorf("%s: %s", where, got)
				}
			}
			b.Push(
				Item{Queue: name, Partition: "p", TransactionID: "a", Payload: json.RawMessage(c.payload)},
				Item{Queue: name, Partition: "p", TransactionID: "b", Payload: json.RawMessage(" " + c.payload + "\n")},
			)
			p := b.Pop(name, "")
			same("pop", p.Messages[0].Data)
			same("pop, white space around it", p.Messages[1].Data)
			if !strings.Contains(string(p.Raw), `"data":`+c.payload+`,`) {
				t.Errorf("the answer holds other bytes: %s", p.Raw)
			}

			var fetched struct {
				Entries []struct {
					Records []struct{ Payload json.RawMessage }
				}
			}
			b.MustInto(&fetched, http.StatusOK, "POST", "/api/v1/fetch", fmt.Sprintf(`{"entries":[{"queue":%q,"partition":"p","offset":0}]}`, name))
			same("fetch", fetched.Entries[0].Records[0].Payload)

			var detail struct{ Data, Payload json.RawMessage }
			b.MustInto(&detail, http.StatusOK, "GET", "/api/v1/messages/"+p.Messages[0].PartitionID+"/a", nil)
			same("detail, data", detail.Data)
			same("detail, payload", detail.Payload)

			if r := b.Ack("", p.Messages[0].Ack("dlq", "no"))[0]; !r.DLQ {
				t.Fatalf("not filed: %+v", r)
			}
			letter := b.DeadLetters(name)[0]
			same("dead letter", letter.Data)
			b.Must(http.StatusOK, "POST", "/api/v1/dlq/"+letter.ID+"/replay", `{"queue":"`+name+`-replayed"}`)
			same("replayed", b.Pop(name+"-replayed", "").Messages[0].Data)
		})
	}
}
