package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gorilla/mux"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// maxEphemeralNumber is the largest value of an option: beyond it the number
// that a client sends is not the one that other JSON readers see.
const maxEphemeralNumber = 1<<53 - 1

// checkEphemeralName refuses what no name of an ephemeral queue, partition or
// group may be. These names have a limit each, not one together.
func checkEphemeralName(field, name string) error {
	switch {
	case len(name) > mq.MaxEphemeralName:
		return badRequest(field, "%s is longer than %d bytes", field, mq.MaxEphemeralName)
	case !utf8.ValidString(name):
		return badRequest(field, "%s is not valid UTF-8", field)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return badRequest(field, "%s holds a control character", field)
		}
	}
	return nil
}

// ephemeralName reads an optional name; null gives the empty string.
func (d *decoder) ephemeralName(at place) (string, error) {
	s, _, err := d.text(at, "", false)
	if err != nil {
		return "", err
	}
	return s, checkEphemeralName(at.String(), s)
}

func (q *query) ephemeralName(name string, required bool) string {
	s := q.values.Get(name)
	err := checkEphemeralName(name, s)
	if err == nil && required && s == "" {
		err = badRequest(name, "%s is required", name)
	}
	if q.err == nil {
		q.err = err
	}
	return s
}

// ephemeralPath reads the queue of a path. It is decoded once, after the path
// was split, so it may hold a slash.
func ephemeralPath(r *http.Request) (string, error) {
	s, err := url.PathUnescape(mux.Vars(r)["queue"])
	switch {
	case err != nil:
		return "", badRequest("queue", "queue is not percent-encoded")
	case s == "":
		return "", errNoQueue
	}
	return s, checkEphemeralName("queue", s)
}

var errNoQueue = badRequest("queue", "queue is required")

// lenient reads a number the way this family does: what cannot be read is the
// default, what is too large or too small the limit.
func (q *query) lenient(name string, fallback, lowest, highest int64) int64 {
	n, err := strconv.ParseInt(q.values.Get(name), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		n = fallback
	}
	return min(max(n, lowest), highest)
}

func (s *server) readEphemeralPop(r *http.Request) (*mq.EphemeralPop, error) {
	q := parseQuery(r)
	p := &mq.EphemeralPop{
		Tenant: callerOf(r).Tenant, Queue: q.ephemeralName("queue", true), Partition: q.ephemeralName("partition", false),
		Group: q.ephemeralName("group", false), Batch: int(q.lenient("batch", 1, 1, mq.MaxEphemeralItems)),
	}
	p.AutoCommit = q.yes("autoAck", false)
	p.AutoCommit = q.yes("commitOnDelivery", false) || p.AutoCommit
	ms := q.lenient("timeout", s.o.DefaultTimeout.Milliseconds(), 0, mq.MaxEphemeralWait.Milliseconds())
	if q.yes("wait", false) {
		p.Wait = time.Duration(ms) * time.Millisecond
	}
	return p, q.err
}

var ephemeralPushFields = []field[mq.EphemeralPush]{
	{"queue", func(d *decoder, at place, p *mq.EphemeralPush) (err error) {
		p.Queue, err = d.ephemeralName(at)
		return err
	}},
	{"partition", func(d *decoder, at place, p *mq.EphemeralPush) (err error) {
		p.Partition, err = d.ephemeralName(at)
		return err
	}},
	{"messages", func(d *decoder, at place, p *mq.EphemeralPush) error {
		p.Payloads = [][]byte{} // an empty list is not a missing one
		return d.list(at, func(i int) error {
			if i == mq.MaxEphemeralItems {
				return tooManyItems(at)
			}
			var payload []byte
			at := place{list: "messages", index: i}
			if _, err := object(d, at, ephemeralMessageFields, &payload); err != nil {
				return err
			}
			if payload == nil {
				at.key = "payload"
				return badRequest(at.String(), "%s is required", at)
			}
			p.Payloads = append(p.Payloads, payload)
			return nil
		})
	}},
}

var ephemeralMessageFields = []field[[]byte]{
	{"payload", func(d *decoder, at place, p *[]byte) (err error) {
		*p, err = d.payload(at)
		return err
	}},
}

func tooManyItems(at place) error {
	return badRequest(at.String(), "%s has more than %d elements", at, mq.MaxEphemeralItems)
}

// decodeEphemeralPush reads a push body whole. The payloads are slices of it.
func decodeEphemeralPush(body []byte) (*mq.EphemeralPush, error) {
	p := &mq.EphemeralPush{}
	err := decode(body, func(d *decoder) error {
		_, err := object(d, place{}, ephemeralPushFields, p)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case p.Queue == "":
		return nil, errNoQueue
	case p.Payloads == nil:
		return nil, badRequest("messages", "messages is required")
	}
	if p.Partition == "" {
		p.Partition = mq.DefaultPartition
	}
	return p, nil
}

// ephemeralAckBody is an ack while it is read.
type ephemeralAckBody struct {
	*mq.EphemeralAck
	listed bool
}

var ephemeralAckFields = []field[ephemeralAckBody]{
	{"queue", func(d *decoder, at place, a *ephemeralAckBody) (err error) {
		a.Queue, err = d.ephemeralName(at)
		return err
	}},
	{"group", func(d *decoder, at place, a *ephemeralAckBody) (err error) {
		a.Group, err = d.ephemeralName(at)
		return err
	}},
	{"acks", func(d *decoder, at place, a *ephemeralAckBody) error {
		a.listed = true
		return d.list(at, func(i int) error {
			if i == mq.MaxEphemeralItems {
				return tooManyItems(at)
			}
			at := place{list: "acks", index: i}
			var it mq.EphemeralAckItem
			seen, err := object(d, at, ephemeralAckItemFields, &it)
			if err != nil {
				return err
			}
			if seen&1 == 0 {
				at.key = "id"
				return badRequest(at.String(), "%s is required", at)
			}
			a.Items = append(a.Items, it)
			return nil
		})
	}},
}

// What an id may be is not judged here: one that is none is "unknown".
var ephemeralAckItemFields = []field[mq.EphemeralAckItem]{
	{"id", func(d *decoder, at place, it *mq.EphemeralAckItem) (err error) {
		it.ID, _, err = d.text(at, "", true)
		return err
	}},
	{"status", func(d *decoder, at place, it *mq.EphemeralAckItem) error {
		status, set, err := d.text(at, "", true)
		if set && !slices.Contains([]string{"completed", "success", "acked", "ok"}, status) {
			it.Verdict = mq.EphemeralRetry
		}
		return err
	}},
}

func decodeEphemeralAck(d *decoder, into *mq.EphemeralAck) error {
	a := ephemeralAckBody{EphemeralAck: into}
	_, err := object(d, place{}, ephemeralAckFields, &a)
	switch {
	case err != nil:
		return err
	case a.Queue == "":
		return errNoQueue
	case !a.listed:
		return badRequest("acks", "acks is required")
	}
	return nil
}

// ephemeralDeclaration is a configure call while it is read.
type ephemeralDeclaration struct {
	queue   string
	options mq.EphemeralOptions
}

var ephemeralConfigureFields = []field[ephemeralDeclaration]{
	{"queue", func(d *decoder, at place, c *ephemeralDeclaration) (err error) {
		c.queue, err = d.ephemeralName(at)
		return err
	}},
	{"options", func(d *decoder, at place, c *ephemeralDeclaration) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		_, err := objectOf(d, at, ephemeralOptionFields, &c.options, unknownOption)
		return err
	}},
}

// unknownOption refuses what is not on the list: an option that is misspelt
// would otherwise be found out when the queue is full.
func unknownOption(at place, name []byte) error {
	shown := strconv.Quote(string(name[:min(len(name), 64)]))
	if at.key == "windowBuffer" {
		return badRequest("options.windowBuffer", "unknown member %s of windowBuffer", shown)
	}
	return badRequest("options", "unknown option %s", shown)
}

type ephemeralOption = field[mq.EphemeralOptions]

var ephemeralOptionFields = []ephemeralOption{
	{"maxBytes", func(d *decoder, at place, o *mq.EphemeralOptions) error { return d.option(at, &o.MaxBytes) }},
	{"maxLength", func(d *decoder, at place, o *mq.EphemeralOptions) error { return d.option(at, &o.MaxLength) }},
	{"policy", func(d *decoder, at place, o *mq.EphemeralOptions) error {
		s, set, err := d.text(at, "", true)
		if err != nil || !set {
			return err
		}
		p := mq.EphemeralPolicy(s)
		if p != mq.EphemeralReject && p != mq.EphemeralDropOldest {
			return badRequest("options.policy", "policy must be %s or %s", mq.EphemeralReject, mq.EphemeralDropOldest)
		}
		o.Policy = &p
		return nil
	}},
	{"ttlSeconds", func(d *decoder, at place, o *mq.EphemeralOptions) error { return d.option(at, &o.TTLSeconds) }},
	{"leaseSeconds", func(d *decoder, at place, o *mq.EphemeralOptions) error { return d.option(at, &o.LeaseSeconds) }},
	{"retryLimit", func(d *decoder, at place, o *mq.EphemeralOptions) error { return d.option(at, &o.RetryLimit) }},
	{"windowBuffer", func(d *decoder, at place, o *mq.EphemeralOptions) error {
		if isNull, err := d.null(); isNull || err != nil {
			return err
		}
		o.Window = &mq.EphemeralWindow{}
		_, err := objectOf(d, at, ephemeralWindowFields, o.Window, func(_ place, name []byte) error {
			return unknownOption(place{key: "windowBuffer"}, name)
		})
		return err
	}},
}

var ephemeralWindowFields = []field[mq.EphemeralWindow]{
	{"ms", func(d *decoder, at place, w *mq.EphemeralWindow) error { return d.option(inWindow(at), &w.MS) }},
	{"count", func(d *decoder, at place, w *mq.EphemeralWindow) error { return d.option(inWindow(at), &w.Count) }},
}

func inWindow(at place) place { return place{key: "windowBuffer." + at.key} }

// option reads an integer that is not negative; null counts as absent.
func (d *decoder) option(at place, to **int64) error {
	at.key = "options." + at.key
	n, set, err := d.integer(at)
	switch {
	case err != nil || !set:
		return err
	case n < 0 || n > maxEphemeralNumber:
		return badRequest(at.String(), "%s must be between 0 and %d", at, int64(maxEphemeralNumber))
	}
	*to = &n
	return nil
}

func decodeEphemeralConfigure(d *decoder, c *ephemeralDeclaration) error {
	if _, err := object(d, place{}, ephemeralConfigureFields, c); err != nil {
		return err
	}
	if c.queue == "" {
		return errNoQueue
	}
	return nil
}

var ephemeralResetFields = []field[string]{
	{"queue", func(d *decoder, at place, queue *string) (err error) {
		*queue, err = d.ephemeralName(at)
		return err
	}},
}

func decodeEphemeralReset(d *decoder, queue *string) error {
	_, err := object(d, place{}, ephemeralResetFields, queue)
	if err == nil && *queue == "" {
		err = errNoQueue
	}
	return err
}

var ephemeralSwitchFields = []field[*bool]{
	{"enabled", func(d *decoder, at place, on **bool) error { return d.turn(at, on) }},
}

func decodeEphemeralSwitch(d *decoder, on **bool) error {
	_, err := object(d, place{}, ephemeralSwitchFields, on)
	if err == nil && *on == nil {
		err = badRequest("enabled", "enabled is required")
	}
	return err
}
