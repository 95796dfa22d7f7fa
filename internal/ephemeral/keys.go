package ephemeral

import (
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// buckets is how many hash slots the queues of an installation are spread over.
// It is part of where a queue's keys are: another number loses the contents.
const buckets = 64

// address says where a queue is.
type address struct {
	tenant string
	queue  string // tenant and name, in the registry
	base   string // what the keys of the bucket begin with
}

// tenantKey is short for the tenant that most installations have only.
func tenantKey(tenant mq.UUID) string {
	if tenant == mq.DefaultTenant {
		return "0"
	}
	return tenant.String()
}

// addressOf escapes the name, so that none can be taken for part of a key or
// end a hash tag early.
func (s *Service) addressOf(tenant mq.UUID, queue string) address {
	id := queueID(tenant, queue)
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return address{tenant: tenantKey(tenant), queue: id, base: s.bucket(int(h.Sum32() % buckets))}
}

// queueID names a queue in the registry.
func queueID(tenant mq.UUID, queue string) string {
	return tenantKey(tenant) + "/" + url.QueryEscape(queue)
}

// addressIn is the address of a queue found in the registry of a bucket.
func addressIn(base, id string) address {
	tenant, _, _ := strings.Cut(id, "/")
	return address{tenant: tenant, queue: id, base: base}
}

// names takes a registry entry apart.
func names(id string) (tenant mq.UUID, queue string, ok bool) {
	t, name, found := strings.Cut(id, "/")
	queue, err := url.QueryUnescape(name)
	if !found || err != nil {
		return tenant, "", false
	}
	if t == "0" {
		return mq.DefaultTenant, queue, true
	}
	tenant, ok = mq.ParseUUID(t)
	return tenant, queue, ok
}

func (s *Service) bucket(n int) string {
	return s.cfg.Prefix + "{eph" + strconv.Itoa(n) + "}:"
}

func (s *Service) channel() string { return s.cfg.Prefix + "ephemeral" }

func (a address) registry() string { return a.base + "q" }

func (a address) usage() string { return a.base + "t" }

func (a address) keys() []string {
	return []string{a.base + a.queue + ":m", a.registry(), a.usage()}
}
