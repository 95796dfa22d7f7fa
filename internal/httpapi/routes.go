package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"github.com/queenmq-go/queenmq/internal/mq"
)

type route struct {
	method, path string
	handle       handlerFunc
}

// consuming marks a GET that changes state: a HEAD would take messages and
// show them to nobody.
const consuming = "GET, not HEAD"

// routes lists everything that is served, the message plane first because the
// router tries them in order. A GET is answered to HEAD too, except where it
// consumes.
func (s *server) routes() []route {
	return slices.Concat(s.logRoutes(), s.kvRoutes(), s.timerRoutes(), s.ephemeralRoutes())
}

func (s *server) logRoutes() []route {
	return []route{
		{"POST", "/api/v1/push", s.push},
		{consuming, "/api/v1/pop/queue/{queue}", s.popQueue},
		{consuming, "/api/v1/pop/queue/{queue}/partition/{partition}", s.popPartition},
		{consuming, "/api/v1/pop", s.popDiscovery},
		{"POST", "/api/v1/ack", s.ack},
		{"POST", "/api/v1/ack/batch", s.ackBatch},
		{"POST", "/api/v1/lease/{leaseId}/extend", s.extendLease},
		{"POST", "/api/v1/transaction", s.transaction},

		{"POST", "/api/v1/configure", s.configure},
		{"GET", "/api/v1/resources/queues", s.listQueues},
		{"GET", "/api/v1/resources/queues/{queue}", s.queueDetail},
		{"GET", "/api/v1/resources/queues/{queue}/depth", s.queueDepth},
		{"DELETE", "/api/v1/resources/queues/{queue}", s.deleteQueue},

		{"POST", "/api/v1/fetch", s.fetch},
		{"POST", "/api/v1/fetch/offsets", s.fetchOffsets},
		{"POST", "/api/v1/partitions/changed", s.partitionsChanged},

		{"GET", "/api/v1/consumer-groups", s.listGroups},
		{"GET", "/api/v1/consumer-groups/lagging", s.laggingGroups},
		{"GET", "/api/v1/consumer-groups/{group}", s.groupDetail},
		{"DELETE", "/api/v1/consumer-groups/{group}", s.deleteGroup},
		{"POST", "/api/v1/consumer-groups/{group}/subscription", s.setSubscription},
		{"DELETE", "/api/v1/consumer-groups/{group}/queues/{queue}", s.deleteGroupOfQueue},
		{"POST", "/api/v1/consumer-groups/{group}/queues/{queue}/seek", s.seekQueue},
		{"POST", "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", s.seekPartition},

		{"GET", "/api/v1/dlq", s.listDeadLetters},
		{"DELETE", "/api/v1/dlq", s.purgeDeadLetters},
		{"POST", "/api/v1/dlq/{id}/replay", s.replayDeadLetter},
		{"GET", "/api/v1/messages/{partitionId}/{transactionId}", s.messageDetail},
		{"DELETE", "/api/v1/messages/{partitionId}/{transactionId}", s.deleteMessage},
		{"POST", "/api/v1/messages/{partitionId}/{transactionId}/retry", s.retryMessage},

		{"GET", "/health", s.health},
		{"GET", "/livez", s.live},
		{"GET", "/readyz", s.ready},
		{"GET", "/status", s.live},
		{"GET", "/metrics/prometheus", s.prometheus},
	}
}

// patterns says what a place in a path takes when it is not one segment that is
// not empty. A queue may be named by the empty string, and so may what has its
// own error for it; a key is all the rest of the path.
var patterns = strings.NewReplacer("{queue}", "{queue:[^/]*}", "{ns}", "{ns:[^/]*}", "{key}", "{key:.*}")

// router registers the routes on the escaped path, uncleaned, so that a name
// may hold %2F, a dot segment or a double slash.
func (s *server) router() http.Handler {
	m := mux.NewRouter().UseEncodedPath().SkipClean(true)
	for _, rt := range s.routes() {
		methods := []string{rt.method}
		switch rt.method {
		case consuming:
			methods = []string{http.MethodGet}
		case http.MethodGet:
			methods = append(methods, http.MethodHead)
		}
		m.Handle(patterns.Replace(rt.path), s.serve(&rt)).Methods(methods...)
	}
	m.NotFoundHandler = s.serve(&route{path: "none", handle: noSuchRoute})
	m.MethodNotAllowedHandler = s.serve(&route{path: "none", handle: func(_ *response, r *http.Request) error {
		return &refusal{
			status: http.StatusMethodNotAllowed, code: codeMethodNotAllowed, allow: allowed(m, r),
			message: r.Method + " is not served here",
		}
	}})
	return m
}

func noSuchRoute(*response, *http.Request) error {
	return &refusal{status: http.StatusNotFound, code: mq.CodeNoSuchRoute, message: "Not Found"}
}

// allowed lists the methods that the path of r is served with.
func allowed(m *mux.Router, r *http.Request) string {
	var list []string
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
		try := *r
		try.Method = method
		var match mux.RouteMatch
		if m.Match(&try, &match) && match.MatchErr == nil {
			list = append(list, method)
		}
	}
	return strings.Join(list, ", ")
}

// pathName reads a segment of the path that names something. It is decoded
// once, after the path was split.
func pathName(r *http.Request, key string) (string, error) {
	s, err := url.PathUnescape(mux.Vars(r)[key])
	if err != nil {
		return "", badRequest(key, "%s is not percent-encoded", key)
	}
	return s, mq.CheckName(key, s)
}
