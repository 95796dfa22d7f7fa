package ephemeral

import (
	"strings"
	"testing"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func TestQueueIDs(t *testing.T) {
	t.Parallel()
	s := &Service{cfg: Config{Prefix: "queen:"}}
	seen := map[string]string{}
	for _, tenant := range []mq.UUID{mq.DefaultTenant, mq.NewID()} {
		for _, queue := range []string{"a", "a}:m", "a/b", "a:b", "{eph1}:q", "ü ", "0/a", "%2F", "", strings.Repeat("}", 512)} {
			at := s.addressOf(tenant, queue)
			gotTenant, gotQueue, ok := names(at.queue)
			if !ok || gotTenant != tenant || gotQueue != queue {
				t.Errorf("%q became %q %q", queue, gotTenant, gotQueue)
			}
			for _, k := range at.keys() {
				if tag, _, _ := strings.Cut(k[strings.IndexByte(k, '{')+1:], "}"); "queen:{"+tag+"}:" != at.base {
					t.Errorf("%q is in the slot of %q, not of %q", k, tag, at.base)
				}
			}
			if other, ok := seen[at.keys()[0]]; ok {
				t.Errorf("%q and %q share %q", other, queue, at.keys()[0])
			}
			seen[at.keys()[0]] = queue
		}
	}
}

func FuzzReadID(f *testing.F) {
	for _, id := range []string{"e:7c1f:zone-4:41", "e:7c1f:eu:west:1:41", "e:::", "e:", "", "e:1::2", "x:1:p:2", "e:7c1f:p:-1"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		inc, partition, token, ok := readID(id)
		if !ok {
			return
		}
		if got := "e:" + inc + ":" + partition + ":" + token; got != id {
			t.Errorf("%q was read as %q", id, got)
		}
	})
}

func TestIDsOfAllPartitions(t *testing.T) {
	t.Parallel()
	for _, partition := range []string{"p", "", ":", "a:b:c", "e:1:p:1", "\u2028"} {
		inc := incarnation()
		id := newID(inc, partition, 1839099377439744, salt())
		gotInc, got, token, ok := readID(id)
		if !ok || gotInc != inc || got != partition || len(token) != 22 {
			t.Errorf("%q gave %q %q %q", id, gotInc, got, token)
		}
	}
}
