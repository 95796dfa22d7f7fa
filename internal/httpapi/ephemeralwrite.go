package httpapi

import (
	"slices"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// appendEphemeralDelivery writes the answer of a pop. Payloads are copied as
// they were sent.
func appendEphemeralDelivery(b []byte, queue string, list []mq.EphemeralMessage) []byte {
	size := 64
	for i := range list {
		size += len(list[i].ID) + len(list[i].Partition) + len(list[i].Payload) + 64
	}
	b = slices.Grow(b, size)
	b = str(key(append(b, '{'), "queue"), queue)
	b = append(key(b, "messages"), '[')
	for i := range list {
		m := &list[i]
		b = str(key(append(elem(b), '{'), "id"), m.ID)
		b = str(key(b, "partition"), m.Partition)
		b = num(key(b, "attempts"), m.Attempts)
		b = append(raw(key(b, "payload"), m.Payload), '}')
	}
	return append(b, "]}"...)
}

func appendEphemeralOutcomes(b []byte, items []mq.EphemeralAckItem, outcomes []mq.EphemeralOutcome) []byte {
	b = append(key(append(b, '{'), "results"), '[')
	for i := range outcomes {
		b = str(key(append(elem(b), '{'), "id"), items[i].ID)
		b = append(str(key(b, "outcome"), string(outcomes[i])), '}')
	}
	return append(b, "]}"...)
}

// appendEphemeralOptions writes a declaration as it was sent: what was not, is
// not here either.
func appendEphemeralOptions(b []byte, o *mq.EphemeralOptions) []byte {
	b = append(b, '{')
	b = given(b, "maxBytes", o.MaxBytes)
	b = given(b, "maxLength", o.MaxLength)
	if o.Policy != nil {
		b = str(key(b, "policy"), string(*o.Policy))
	}
	b = given(b, "ttlSeconds", o.TTLSeconds)
	b = given(b, "leaseSeconds", o.LeaseSeconds)
	b = given(b, "retryLimit", o.RetryLimit)
	if w := o.Window; w != nil {
		b = append(key(b, "windowBuffer"), '{')
		b = append(given(given(b, "ms", w.MS), "count", w.Count), '}')
	}
	return append(b, '}')
}

// given adds a number that was sent.
func given(b []byte, name string, n *int64) []byte {
	if n == nil {
		return b
	}
	return num(key(b, name), *n)
}

// tier is where a queue came from.
func tier(declared bool) string {
	if declared {
		return "declared"
	}
	return "implicit"
}

func appendEphemeralQueue(b []byte, q *mq.EphemeralQueue) []byte {
	b = str(key(append(b, '{'), "queue"), q.Queue)
	b = str(key(b, "tier"), tier(q.Declared))
	b = num(key(b, "depth"), q.Depth)
	b = num(key(b, "bytes"), q.Bytes)
	b = num(key(b, "partitions"), q.Partitions)
	b = num(key(b, "groups"), q.Groups)
	b = num(key(append(key(b, "drops"), '{'), "bounds"), q.Drops.Bounds)
	b = num(key(b, "ttl"), q.Drops.TTL)
	b = append(num(key(b, "retry"), q.Drops.Retry), '}')
	l := &q.Limits
	b = num(key(append(key(b, "options"), '{'), "maxBytes"), l.MaxBytes)
	b = num(key(b, "maxLength"), l.MaxLength)
	b = str(key(b, "policy"), string(l.Policy))
	b = num(key(b, "ttlSeconds"), l.TTLSeconds)
	b = num(key(b, "leaseSeconds"), l.LeaseSeconds)
	b = num(key(b, "retryLimit"), l.RetryLimit)
	b = num(key(append(key(b, "windowBuffer"), '{'), "ms"), l.WindowMS)
	return append(num(key(b, "count"), l.WindowCount), "}}}"...)
}

func appendEphemeralDepth(b []byte, queue, group string, d *mq.EphemeralDepth) []byte {
	b = str(key(append(b, '{'), "queue"), queue)
	b = strOrNull(key(b, "group"), group)
	b = str(key(b, "tier"), tier(d.Declared))
	b = num(key(b, "pending"), d.Pending)
	b = num(key(b, "partitionsPending"), d.PartitionsPending)
	b = num(key(b, "bytes"), d.Bytes)
	b = append(key(b, "partitions"), '[')
	for i := range d.Partitions {
		p := &d.Partitions[i]
		b = str(key(append(elem(b), '{'), "partition"), p.Partition)
		b = num(key(b, "pending"), p.Pending)
		b = append(num(key(b, "bytes"), p.Bytes), '}')
	}
	b = append(key(append(b, ']'), "groups"), '[')
	for _, g := range d.Groups {
		b = str(key(append(elem(b), '{'), "group"), g.Group)
		b = num(key(b, "pending"), g.Pending)
		b = append(num(key(b, "skipped"), g.Skipped), '}')
	}
	return append(b, "]}"...)
}

func appendEphemeralStatus(b []byte, st *mq.EphemeralStatus) []byte {
	b = boolean(key(append(b, '{'), "ephemeralEnabled"), st.Enabled)
	b = num(key(b, "cellBytes"), st.Bytes)
	b = num(key(b, "cellMaxBytes"), st.MaxBytes)
	b = num(key(b, "queues"), st.Queues)
	b = num(key(b, "grantedTenants"), st.GrantedTenants)
	b = boolean(key(b, "requireGrant"), st.RequireGrant)
	return append(str(key(b, "epoch"), st.Epoch), '}')
}
