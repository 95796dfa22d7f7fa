package httpapi

import (
	"errors"
	"net/http"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// stateRefusal is the error body of the routes for state: a code and a reason
// to branch on, and a text for people.
type stateRefusal struct {
	*refusal
	reason string
}

// stateful wraps the handler of a route for state, so that its errors come in
// the envelope of these routes. family is the first word of its codes.
func (s *server) stateful(family string, h handlerFunc) handlerFunc {
	return func(w *response, r *http.Request) error {
		err := h(w, r)
		var unwritten *writeError
		if err == nil || errors.As(err, &unwritten) {
			return err
		}
		ref := refuseState(family, err)
		s.logFailure(r, family, ref.refusal, err)
		if w.status != 0 {
			panic(http.ErrAbortHandler)
		}
		ref.head(w.Header())
		return w.json(ref.status, func(b []byte) []byte {
			b = str(key(append(b, '{'), "error"), ref.code)
			if ref.reason != "" {
				b = str(key(b, "reason"), ref.reason)
			}
			return append(str(key(b, "detail"), ref.message), '}')
		})
	}
}

// refuseState turns an error into the words of a family. The code of a refusal
// is its stable reason; a fault of the database has one of the reasons below.
func refuseState(family string, err error) stateRefusal {
	ref := *refusalOf(err)
	out := stateRefusal{refusal: &ref, reason: ref.code}
	if family == "locks" && ref.status != http.StatusBadRequest {
		family = "kv" // locks are rows of the store, and fail as it does
	}
	switch {
	case ref.status == http.StatusBadRequest:
		if ref.code == mq.CodeBadBody {
			out.reason = family + "_bad_body"
		}
		if ref.code == mq.CodeBadRequest {
			out.reason = family + "_bad_request"
		}
		ref.code = family + "_bad_request"
	case ref.status == http.StatusRequestEntityTooLarge:
		ref.code = mq.CodePayloadTooLarge
		if out.reason == ref.code {
			out.reason = ""
		}
	case ref.code == "kv_disabled", ref.code == "timers_disabled":
	case ref.code == "rate_limited", ref.code == mq.CodeOverloaded:
		out.reason = ""
	case ref.status == http.StatusServiceUnavailable:
		out.reason = unavailableReason(family, err, ref.code)
		ref.code = family + "_unavailable"
	case ref.status >= http.StatusInternalServerError:
		out.reason = ""
		ref.code = family + "_error"
	}
	return out
}

func unavailableReason(family string, err error, code string) string {
	switch kind := mq.KindOf(err); {
	case code == family+"_pool_exhausted":
		return code
	case kind == mq.KindUnavailable, kind == mq.KindUnknown:
		return "connection"
	default:
		return family + "_timeout"
	}
}
