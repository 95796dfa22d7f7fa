package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// State is the key/value store, its locks and the operator's switches.
type State interface {
	KV(ctx context.Context, tenant mq.UUID, ops []mq.KVOp) (*mq.KVCall, error)
	KVNamespaces(ctx context.Context, tenant mq.UUID) ([]mq.KVNamespace, error)
	KVEnabled(ctx context.Context) error
	Locks(ctx context.Context, tenant mq.UUID, ops []mq.LockOp) ([]mq.LockResult, error)
	Switches(ctx context.Context) (mq.Switches, error)
	SetSwitches(ctx context.Context, change mq.SwitchChange) (mq.Switches, error)
}

// kvRoutes are the routes of the store. The rest of a path is the key, whatever
// slashes it holds: no literal may ever come below /api/v1/kv/{ns}/.
func (s *server) kvRoutes() []route {
	const at = "/api/v1/kv/{ns}/{key}"
	return []route{
		{"POST", "/api/v1/kv", s.stateful("kv", s.kvBatch)},
		{"GET", at, s.stateful("kv", s.kvGet)},
		{"PUT", at, s.stateful("kv", s.kvPut)},
		{"DELETE", at, s.stateful("kv", s.kvDelete)},
		{"POST", "/api/v1/locks", s.stateful("locks", s.locks)},
		{"GET", "/api/v1/resources/kv/namespaces", s.stateful("kv", s.kvNamespaces)},
		{"POST", "/api/v1/resources/kv/list", s.stateful("kv", s.kvList)},
		{"GET", "/api/v1/system/kv-timers", s.switches},
		{"POST", "/api/v1/system/kv-timers", s.setSwitches},
	}
}

// The list is taken whole here; how deep each of its values nests is judged
// where that is read.
var batchFields = []field[[]byte]{
	{"operations", func(d *decoder, _ place, list *[]byte) (err error) {
		*list, err = d.value()
		return err
	}},
}

// batchOps finds the list of operations in a body: the whole of it, or its
// member operations.
func batchOps(body []byte) ([]byte, error) {
	var list []byte
	err := decode(body, func(d *decoder) error {
		if d.dec.PeekKind() == '[' {
			return batchFields[0].read(d, place{}, &list)
		}
		_, err := object(d, place{}, batchFields, &list)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0] != '[' {
		return nil, badBody("operations", "the body must be an array of operations, or an object with one")
	}
	return list, nil
}

// kvBatch runs a batch. While the store is off nobody hears what is wrong with
// a body: the switch comes first.
func (s *server) kvBatch(w *response, r *http.Request) error {
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	if err := s.b.KVEnabled(r.Context()); err != nil {
		return err
	}
	list, err := batchOps(body.data)
	if err != nil {
		return err
	}
	ops, err := s.decodeKVOps(list, false)
	if err != nil {
		return err
	}
	c := &mq.KVCall{}
	if len(ops) > 0 {
		if c, err = s.b.KV(r.Context(), callerOf(r).Tenant, ops); err != nil {
			return err
		}
	}
	if c.Failed != nil {
		return w.json(http.StatusOK, func(b []byte) []byte { return appendKVFailure(b, c.Failed) })
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "results"), '[')
		for i := range c.Results {
			b = num(key(append(elem(b), '{'), "index"), i)
			b = append(appendKVResult(b, &c.Results[i]), '}')
		}
		return append(b, "]}"...)
	})
}

// appendKVFailure is the whole answer of a call whose required operation lost.
func appendKVFailure(b []byte, f *mq.KVFailure) []byte {
	b = boolean(key(append(b, '{'), "ok"), false)
	b = str(key(b, "reason"), "kv_precondition")
	return append(appendKVVerdict(b, f), '}')
}

// appendKVVerdict adds the members that describe the loss, but for failedIndex
// of a transaction, which counts otherwise.
func appendKVVerdict(b []byte, f *mq.KVFailure) []byte {
	b = num(key(b, "failedIndex"), f.Index)
	b = str(key(b, "kvReason"), f.Reason)
	b = num(key(b, "version"), f.Version)
	return raw(key(b, "value"), f.Value)
}

// appendKVResult adds the members of a result from op on.
func appendKVResult(b []byte, r *mq.KVResult) []byte {
	b = str(key(b, "op"), string(r.Verb))
	switch r.Verb {
	case mq.KVGet:
		b = str(key(boolean(key(b, "found"), r.Found), "key"), r.Key)
		if !r.Found {
			return b
		}
		return appendKVRow(b, &mq.KVRow{Value: r.Value, Version: r.Version, ExpiresAt: r.ExpiresAt, UpdatedAt: r.UpdatedAt}, false)
	case mq.KVGetMany, mq.KVGetPrefix:
		return appendKVRows(b, r)
	}
	b = boolean(key(b, "applied"), r.Applied)
	if !r.Applied {
		b = str(key(b, "reason"), r.Reason)
	}
	b = str(key(b, "key"), r.Key)
	if r.Verb != mq.KVCheck || !r.Applied {
		b = raw(key(b, "value"), r.Value)
	}
	return num(key(b, "version"), r.Version)
}

// appendKVRow adds the members of a row from value on.
func appendKVRow(b []byte, row *mq.KVRow, keysOnly bool) []byte {
	if !keysOnly {
		b = raw(key(b, "value"), row.Value)
	}
	b = num(key(b, "version"), row.Version)
	b = instantOrNull(key(b, "expiresAt"), row.ExpiresAt)
	return instant(key(b, "updatedAt"), row.UpdatedAt)
}

func appendKVRows(b []byte, r *mq.KVResult) []byte {
	b = append(key(b, "rows"), '[')
	for i := range r.Rows {
		b = str(key(append(elem(b), '{'), "key"), r.Rows[i].Key)
		b = append(appendKVRow(b, &r.Rows[i], r.KeysOnly), '}')
	}
	b = append(b, ']')
	if r.Verb == mq.KVGetMany {
		b = append(key(b, "missing"), '[')
		for _, k := range r.Missing {
			b = str(elem(b), k)
		}
		b = append(b, ']')
		return boolean(key(b, "truncated"), r.Truncated)
	}
	b = boolean(key(b, "truncated"), r.Truncated)
	return strOrNull(key(b, "nextAfter"), r.NextAfter)
}

// kvAddress reads namespace and key out of a path that has no query.
func kvAddress(r *http.Request) (mq.KVAddress, error) {
	var at mq.KVAddress
	if err := noQuery(r); err != nil {
		return at, err
	}
	for name, to := range map[string]*string{"ns": &at.Namespace, "key": &at.Key} {
		s, err := url.PathUnescape(mux.Vars(r)[name])
		if err != nil {
			return at, badRequest(name, "%s is not percent-encoded", name)
		}
		*to = s
	}
	return at, nil
}

func noQuery(r *http.Request) error {
	if r.URL.RawQuery != "" {
		return mq.KVInvalid("kv_no_query_string", "this route takes no query string")
	}
	return nil
}

// kvOne runs the one operation of a path route.
func (s *server) kvOne(w *response, r *http.Request, op mq.KVOp) error {
	if bad := op.Check(s.o.KV); bad != nil {
		return bad
	}
	c, err := s.b.KV(r.Context(), callerOf(r).Tenant, []mq.KVOp{op})
	if err != nil {
		return err
	}
	if c.Failed != nil {
		return w.json(http.StatusOK, func(b []byte) []byte { return appendKVFailure(b, c.Failed) })
	}
	res := &c.Results[0]
	if res.Found {
		w.Header().Set("ETag", `"`+strconv.FormatInt(res.Version, 10)+`"`)
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		return append(appendKVResult(num(key(append(b, '{'), "index"), 0), res), '}')
	})
}

func (s *server) kvGet(w *response, r *http.Request) error {
	if err := s.b.KVEnabled(r.Context()); err != nil {
		return err
	}
	at, err := kvAddress(r)
	if err != nil {
		return err
	}
	return s.kvOne(w, r, mq.KVOp{Verb: mq.KVGet, KVAddress: at})
}

var (
	inPath        = []string{"op", "ns", "namespace", "key"}
	kvPathMembers = append(append([]string{"value", "ttlSeconds", "forever", "expect", "required"}, inPath...), tenantMembers...)
)

func (s *server) kvPut(w *response, r *http.Request) error {
	return s.kvWrite(w, r, mq.KVPut)
}

func (s *server) kvDelete(w *response, r *http.Request) error {
	return s.kvWrite(w, r, mq.KVDelete)
}

func (s *server) kvWrite(w *response, r *http.Request, verb mq.KVVerb) error {
	if err := s.b.KVEnabled(r.Context()); err != nil {
		return err
	}
	at, err := kvAddress(r)
	if err != nil {
		return err
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer body.free()
	m := members{}
	if verb != mq.KVDelete || !blank(body.data) {
		if m, err = pathMembers(body.data, verb == mq.KVDelete); err != nil {
			return err
		}
	}
	op := mq.KVOp{Verb: verb, KVAddress: at}
	if bad := m.kvVerb(&op); bad != nil {
		return bad
	}
	return s.kvOne(w, r, op)
}

// pathMembers reads the body of a path route. What is in the path may not be
// in it, not even with the same value.
func pathMembers(data []byte, nullable bool) (m members, err error) {
	err = decode(data, func(d *decoder) error {
		if nullable && d.dec.PeekKind() == 'n' {
			m = members{}
			_, err := d.null()
			return err
		}
		m, err = readMembers(d, place{}, kvPathMembers)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case m.tenantLike():
		return nil, mq.KVInvalid("kv_tenant_not_an_input", "the tenant comes from the request, not from its body")
	}
	for _, name := range inPath {
		if m.has(name) {
			return nil, mq.KVInvalid("kv_field_in_path", "%s is in the path and may not be in the body", name)
		}
	}
	return m, nil
}
