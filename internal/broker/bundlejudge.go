package broker

import (
	"fmt"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// leaseHints are the leases a bundle names anywhere. Bundles of older clients
// name them only beside the acks.
type leaseHints struct {
	all    map[mq.UUID]bool
	broken bool // one of them is no lease of ours
}

func collectHints(in *mq.Bundle) leaseHints {
	h := leaseHints{all: map[mq.UUID]bool{}}
	add := func(text string) {
		if text == "" {
			return
		}
		id, ok := mq.ParseUUID(text)
		if !ok {
			h.broken = true
			return
		}
		h.all[id] = true
	}
	for _, l := range in.RequiredLeases {
		add(l)
	}
	for i := range in.Ops {
		if a := in.Ops[i].Ack; a != nil {
			add(a.LeaseID)
		}
	}
	return h
}

// holds reports whether an ack may act on a cursor: under its own lease; else
// under the only lease the bundle names; else, when it names several, if the
// lease held now is one of them; else it is not fenced.
func (h *leaseHints) holds(own string, c *mq.Cursor, rules *mq.AckRules) bool {
	live := !c.LeaseID.IsZero() && c.LeaseExpires.After(rules.Now)
	switch {
	case own != "":
		id, ok := mq.ParseUUID(own)
		return ok && live && c.LeaseID == id
	case len(h.all) > 0:
		return live && h.all[c.LeaseID]
	default:
		return !h.broken
	}
}

// decide judges the locked bundle: acks first, then pushes, then kv. It may run again
// when ids of a span were asked for.
func (bd *bundle) decide(l *mq.BundleLocked) (*mq.BundleDecision, error) {
	d := &mq.BundleDecision{Confirm: bd.confirm}
	for i := range bd.acks {
		j := bd.judgeAcks(&bd.acks[i], l.Acks[i])
		if j == nil {
			return d, nil
		}
		d.Acks = append(d.Acks, j.decision())
	}
	for _, a := range d.Acks {
		if len(a.Spans) > 0 {
			return d, nil
		}
	}
	for i := range bd.acks {
		if !bd.ackVerdicts(&bd.acks[i]) {
			return d, nil
		}
	}
	d.Commit = bd.pushVerdicts(l.Probes) && bd.kvVerdict()
	return d, nil
}

// kvVerdict refuses the bundle when a required operation on the store is lost.
func (bd *bundle) kvVerdict() bool {
	kv := bd.work.KV
	if kv == nil {
		return true
	}
	kv.Evaluate()
	if kv.Failed == nil {
		return true
	}
	refuse(bd.res, mq.BundlePrecondition, "a required precondition was lost; rolled back")
	bd.res.Failed = kv.Failed
	return false
}

// judgeAcks runs the acks of one queue through the rules of an ack call, those
// of one cursor as one step. Nil when a lease is refused or a cursor missing.
func (bd *bundle) judgeAcks(as *bundleAcks, l *mq.LockedAcks) *judgement {
	units := map[mq.CursorKey]*ackUnit{}
	var order []*ackUnit
	for i := range as.steps {
		st := &as.steps[i]
		a := bd.in.Ops[st.op].Ack
		c := l.Cursors[st.key]
		if c == nil {
			bd.broker.cache.dropGroup(as.queue, a.Group)
			if bd.lost = !bd.anew; !bd.lost {
				bd.reject(st.op, mq.AckErrNoConsumer)
			}
			return nil
		}
		if !bd.leases.holds(a.LeaseID, c, &l.Rules) {
			bd.reject(st.op, mq.AckErrLease)
			return nil
		}
		u := units[st.key]
		if u == nil {
			u = &ackUnit{id: mq.PartitionID{Queue: as.queue, Partition: st.key.Partition}, key: st.key, group: a.Group}
			units[st.key] = u
			order = append(order, u)
		}
		u.items = append(u.items, ackItem{AckItem: &a.AckItem, hash: mq.HashID(a.TransactionID), result: &st.result})
	}
	as.j = judge(order, l, as.spans)
	return as.j
}

// ackVerdicts refuses the bundle when an ack was: unlike in an ack call, one
// that cannot be carried out takes everything with it.
func (bd *bundle) ackVerdicts(as *bundleAcks) bool {
	for i := range as.steps {
		st := &as.steps[i]
		if !st.result.Success {
			bd.reject(st.op, st.result.Error)
			return false
		}
		bd.res.Ops[st.op].DLQ = st.result.DLQ
	}
	return true
}

// confirm looks at the acks once more, after dead letters were filed or refused.
func (bd *bundle) confirm() bool {
	for i := range bd.acks {
		if !bd.ackVerdicts(&bd.acks[i]) {
			return false
		}
	}
	return true
}

// pushVerdicts refuses the bundle when an id is stored already; false without a
// reason asks for another attempt that makes what is missing.
func (bd *bundle) pushVerdicts(probes [][]mq.BundleProbe) bool {
	missing := false
	for i, ps := range probes {
		p := &bd.work.Pushes[i]
		for j, probe := range ps {
			if probe.Stored >= 0 {
				refuse(bd.res, mq.BundleDuplicate, fmt.Sprintf("%s %s/%s already holds %s; transaction rolled back",
					mq.BundleDuplicateWord, p.Queue.Name, p.Partitions[j], p.Messages[j].TransactionID))
				return false
			}
			missing = missing || probe.Missing
		}
	}
	return !missing
}
