package httpapi

import (
	"net/http"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) kvNamespaces(w *response, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := s.b.KVNamespaces(r.Context(), callerOf(r).Tenant)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "namespaces"), '[')
		for _, n := range list {
			b = str(key(append(elem(b), '{'), "namespace"), n.Name)
			b = append(num(key(b, "keys"), n.Keys), '}')
		}
		return append(b, "]}"...)
	})
}

var kvListMembers = []string{"namespace", "prefix", "after", "limit", "keysOnly", "includeExpired"}

// kvList pages through a namespace, for people: rows that have expired can be
// shown as long as they are there.
func (s *server) kvList(w *response, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	if err := s.b.KVEnabled(r.Context()); err != nil {
		return err
	}
	op := mq.KVOp{Verb: mq.KVGetPrefix}
	err := s.decodeBody(w, r, func(d *decoder) error {
		m, err := readMembers(d, place{}, kvListMembers)
		if err != nil {
			return err
		}
		if bad := m.listOp(&op); bad != nil {
			return bad
		}
		return nil
	})
	if err != nil {
		return err
	}
	c, err := s.b.KV(r.Context(), callerOf(r).Tenant, []mq.KVOp{op})
	if err != nil {
		return err
	}
	res, bytes := &c.Results[0], 0
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = append(key(append(b, '{'), "rows"), '[')
		for i := range res.Rows {
			row := &res.Rows[i]
			b = str(key(append(elem(b), '{'), "key"), row.Key)
			b = appendKVRow(b, row, op.KeysOnly)
			b = append(boolean(key(b, "expired"), row.ExpiredAt(c.Now)), '}')
			bytes += len(row.Value)
		}
		b = append(b, ']')
		b = boolean(key(b, "truncated"), res.Truncated)
		b = strOrNull(key(b, "nextAfter"), res.NextAfter)
		return append(num(key(b, "bytes"), bytes), '}')
	})
}

func (m members) listOp(op *mq.KVOp) *mq.Error {
	var ok bool
	if op.Namespace, ok = m.label("namespace"); !ok {
		return mq.KVInvalid("kv_bad_namespace", "namespace must be a string")
	}
	if bad := mq.CheckKVNamespace(op.Namespace); bad != nil {
		return bad
	}
	if op.Prefix, ok = m.label("prefix"); !ok {
		return mq.KVInvalid("kv_bad_key", "prefix must be a string")
	}
	if op.Prefix != "" {
		probe := mq.KVOp{Verb: mq.KVGetPrefix, KVAddress: op.KVAddress, Prefix: op.Prefix}
		if bad := probe.Check(mq.DefaultKVLimits); bad != nil {
			return bad
		}
	}
	if op.IncludeExpired, ok = m.flag("includeExpired"); !ok {
		return mq.KVInvalid("kv_bad_request", "includeExpired must be a boolean")
	}
	if bad := m.kvPage(op); bad != nil {
		return bad
	}
	if op.After != "" {
		probe := mq.KVOp{Verb: mq.KVGetPrefix, KVAddress: op.KVAddress, Prefix: op.After}
		return probe.Check(mq.DefaultKVLimits)
	}
	return nil
}

func (s *server) switches(w *response, r *http.Request) error {
	sw, err := s.b.Switches(r.Context())
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte { return append(appendSwitches(append(b, '{'), sw), '}') })
}

// appendSwitches adds the switches. Quotas belong to tenancy, which this broker
// does not have yet, so there are none.
func appendSwitches(b []byte, sw mq.Switches) []byte {
	b = boolean(key(b, "kvEnabled"), sw.KV)
	b = boolean(key(b, "timersScheduleEnabled"), sw.TimerSchedule)
	b = boolean(key(b, "timersFireEnabled"), sw.TimerFire)
	for _, name := range []string{"quotaTenants", "quotaAgeMs", "quotaHot"} {
		b = num(key(b, name), 0)
	}
	return b
}

var switchFields = []field[mq.SwitchChange]{
	{"kv", func(d *decoder, at place, c *mq.SwitchChange) error { return d.turn(at, &c.KV) }},
	{"timersSchedule", func(d *decoder, at place, c *mq.SwitchChange) error { return d.turn(at, &c.TimerSchedule) }},
	{"timersFire", func(d *decoder, at place, c *mq.SwitchChange) error { return d.turn(at, &c.TimerFire) }},
}

func (d *decoder) turn(at place, to **bool) error {
	v, set, err := d.boolean(at)
	if set {
		*to = &v
	}
	return err
}

func (s *server) setSwitches(w *response, r *http.Request) error {
	var change mq.SwitchChange
	err := s.decodeBody(w, r, func(d *decoder) error {
		_, err := object(d, place{}, switchFields, &change)
		return err
	})
	if err != nil {
		return err
	}
	if change == (mq.SwitchChange{}) {
		return badRequest("", "one of kv, timersSchedule and timersFire is needed")
	}
	sw, err := s.b.SetSwitches(r.Context(), change)
	if err != nil {
		return err
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		return append(boolean(key(appendSwitches(append(b, '{'), sw), "mirrored"), true), '}')
	})
}
