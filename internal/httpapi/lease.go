package httpapi

import (
	"math"
	"net/http"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) extendLease(w *response, r *http.Request) error {
	leaseID, err := pathName(r, "leaseId")
	if err != nil {
		return err
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	seconds := extendSeconds(body.data)
	body.free()
	ext, err := s.b.ExtendLease(r.Context(), callerOf(r).Tenant, leaseID, time.Duration(seconds)*time.Second)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = str(key(append(b, '{'), "leaseId"), leaseID)
		b = boolean(key(b, "success"), ext.Renewed > 0)
		b = num(key(b, "renewed"), ext.Renewed)
		// Clients of different ages read different ones of these three.
		for _, name := range []string{"newExpiresAt", "expiresAt", "lease_expires_at"} {
			b = instantOrNull(key(b, name), ext.ExpiresAt)
		}
		return append(b, '}')
	})
}

var extendFields = []field[int64]{
	{"seconds", func(d *decoder, at place, into *int64) error {
		n, set, err := d.integer(at)
		if set {
			*into = n
		}
		return err
	}},
}

// extendSeconds reads the wanted length. A consumer that fights for its lease
// is never refused over the body: whatever cannot be read means the default.
func extendSeconds(body []byte) int64 {
	fallback := int64(mq.DefaultLease / time.Second)
	seconds := fallback
	err := decode(body, func(d *decoder) error {
		_, err := object(d, place{}, extendFields, &seconds)
		return err
	})
	if err != nil {
		return fallback
	}
	return min(max(seconds, 1), math.MaxInt32)
}
