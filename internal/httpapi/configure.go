package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queenmq-go/queenmq/internal/mq"
)

func (s *server) configure(w *response, r *http.Request) error {
	c := mq.Configure{Tenant: callerOf(r).Tenant}
	if err := s.decodeBody(w, r, func(d *decoder) error { return decodeConfigure(d, &c) }); err != nil {
		return refuseOption(w, err)
	}
	q, err := s.b.Configure(r.Context(), c)
	if err != nil {
		return refuseOption(w, err)
	}
	return w.json(http.StatusOK, func(b []byte) []byte {
		b = boolean(key(append(b, '{'), "configured"), true)
		b = uuid(key(b, "queueId"), mq.QueueUUID(q.ID))
		b = null(key(b, "partitionId"))
		b = str(key(b, "queue"), q.Name)
		b = str(key(b, "namespace"), q.Options.Namespace)
		b = str(key(b, "task"), q.Options.Task)
		b = str(key(b, "storage"), storage)
		b = append(key(b, "options"), '{')
		return append(appendOptions(b, &q.Options), "}}"...)
	})
}

// storage is a constant that clients of the original may look at.
const storage = "segments"

// refuseOption names the refused option the way the contract wants it, beside
// the usual members.
func refuseOption(w *response, err error) error {
	var e *mq.Error
	if !errors.As(err, &e) || e.Kind != mq.KindInvalid || !strings.HasPrefix(e.Field, "retentionSinkHold") {
		return err
	}
	return w.json(http.StatusBadRequest, func(b []byte) []byte {
		b = refusalOf(err).keys(append(b, '{'))
		return append(str(key(b, "invalid"), e.Field), '}')
	})
}

// configureBody is the body of a configure call while it is read.
type configureBody struct {
	queue           string
	hasQueue        bool
	namespace, task string
	mode            []byte
	nested          bool // options is an object: what stands beside it is not an option
	options, flat   []mq.OptionChange
	err             error // a flat option's; it counts only when options is not an object
}

var configureFields = func() []field[configureBody] {
	fields := []field[configureBody]{
		{"queue", func(d *decoder, at place, c *configureBody) (err error) {
			if k := d.dec.PeekKind(); k != '"' && k != 0 {
				return badRequest("queue", "queue is required")
			}
			c.queue, c.hasQueue, err = d.name(at, "")
			return err
		}},
		{"namespace", func(d *decoder, at place, c *configureBody) (err error) {
			c.namespace, _, err = d.name(at, "")
			return err
		}},
		{"task", func(d *decoder, at place, c *configureBody) (err error) {
			c.task, _, err = d.name(at, "")
			return err
		}},
		{"mode", func(d *decoder, _ place, c *configureBody) (err error) {
			c.mode, err = d.value()
			return err
		}},
		{"options", func(d *decoder, _ place, c *configureBody) error {
			if d.dec.PeekKind() != '{' {
				_, err := d.value()
				return err
			}
			c.nested = true
			_, err := object(d, place{}, optionFields, &c.options)
			return err
		}},
	}
	for _, f := range optionFields {
		if f.name == "namespace" || f.name == "task" {
			continue // at top level these are labels, not options
		}
		fields = append(fields, field[configureBody]{f.name, func(d *decoder, at place, c *configureBody) error {
			err := f.read(d, at, &c.flat)
			var bad *optionError
			if errors.As(err, &bad) {
				// Beside an options object this is an unknown key.
				if c.err == nil {
					c.err = badRequest(at.String(), "%s must be %s", at, bad.want)
				}
				return nil
			}
			return err
		}})
	}
	return fields
}()

// decodeConfigure reads a configure body and checks the values, so that a
// refusal leaves the queue alone.
func decodeConfigure(d *decoder, into *mq.Configure) error {
	var c configureBody
	_, err := object(d, place{}, configureFields, &c)
	var bad *optionError
	switch {
	case errors.As(err, &bad):
		return badRequest("options."+bad.name, "options.%s must be %s", bad.name, bad.want)
	case err != nil:
		return err
	case !c.hasQueue:
		return badRequest("queue", "queue is required")
	case !c.nested && c.err != nil:
		return c.err
	}
	switch mode := string(c.mode); mode {
	case "", "null", `"merge"`:
	case `"replace"`:
		into.Replace = true
	default:
		return badRequest("mode", `mode must be "merge" or "replace", got %.64s`, mode)
	}
	into.Queue, into.Namespace, into.Task = c.queue, c.namespace, c.task
	if into.Changes = c.flat; c.nested {
		into.Changes = c.options
	}
	if err := mq.CheckNameLengths("queue", c.queue, ""); err != nil {
		return err
	}
	// The rules look at single values only, so trying the changes on a new
	// queue finds whatever they would refuse on the stored one.
	_, err = into.Apply(nil)
	return err
}

// optionError is a value that cannot be converted to its option's type.
type optionError struct{ name, want string }

func (e *optionError) Error() string { return e.name + " must be " + e.want }

// optionFields are the options as configure takes them, in the order of the
// echo, the labels first.
var optionFields = []field[[]mq.OptionChange]{
	textOption("namespace", func(o *mq.Options, v string) { o.Namespace = v }),
	textOption("task", func(o *mq.Options, v string) { o.Task = v }),
	intOption("priority", func(o *mq.Options, v int32) { o.Priority = v }),
	intOption("leaseTime", func(o *mq.Options, v int32) { o.LeaseTime = v }),
	intOption("retryLimit", func(o *mq.Options, v int32) { o.RetryLimit = v }),
	intOption("retryDelay", func(o *mq.Options, v int32) { o.RetryDelay = v }),
	intOption("maxSize", func(o *mq.Options, v int32) { o.MaxSize = v }),
	intOption("ttl", func(o *mq.Options, v int32) { o.TTL = v }),
	boolOption("deadLetterQueue", func(o *mq.Options, v bool) { o.DeadLetterQueue = v }),
	boolOption("dlqAfterMaxRetries", func(o *mq.Options, v bool) { o.DLQAfterMaxRetries = v }),
	intOption("delayedProcessing", func(o *mq.Options, v int32) { o.DelayedProcessing = v }),
	intOption("windowBuffer", func(o *mq.Options, v int32) { o.WindowBuffer = v }),
	intOption("retentionSeconds", func(o *mq.Options, v int32) { o.RetentionSeconds = v }),
	intOption("completedRetentionSeconds", func(o *mq.Options, v int32) { o.CompletedRetentionSeconds = v }),
	boolOption("retentionEnabled", func(o *mq.Options, v bool) { o.RetentionEnabled = v }),
	boolOption("encryptionEnabled", func(o *mq.Options, v bool) { o.EncryptionEnabled = v }),
	intOption("maxWaitTimeSeconds", func(o *mq.Options, v int32) { o.MaxWaitTimeSeconds = v }),
	intOption("minPopWaitTime", func(o *mq.Options, v int32) { o.MinPopWaitTime = v }),
	intOption("dedupWindowSeconds", func(o *mq.Options, v int32) { o.DedupWindowSeconds = v }),
	textOption("retentionSinkHold", func(o *mq.Options, v string) { o.RetentionSinkHold = v }),
	intOption("retentionSinkHoldMaxSeconds", func(o *mq.Options, v int32) { o.RetentionSinkHoldMaxSeconds = v }),
}

// appendOptions writes the echo: every option but the labels.
func appendOptions(b []byte, o *mq.Options) []byte {
	b = num(key(b, "priority"), o.Priority)
	b = num(key(b, "leaseTime"), o.LeaseTime)
	b = num(key(b, "retryLimit"), o.RetryLimit)
	b = num(key(b, "retryDelay"), o.RetryDelay)
	b = num(key(b, "maxSize"), o.MaxSize)
	b = num(key(b, "ttl"), o.TTL)
	b = boolean(key(b, "deadLetterQueue"), o.DeadLetterQueue)
	b = boolean(key(b, "dlqAfterMaxRetries"), o.DLQAfterMaxRetries)
	b = num(key(b, "delayedProcessing"), o.DelayedProcessing)
	b = num(key(b, "windowBuffer"), o.WindowBuffer)
	b = num(key(b, "retentionSeconds"), o.RetentionSeconds)
	b = num(key(b, "completedRetentionSeconds"), o.CompletedRetentionSeconds)
	b = boolean(key(b, "retentionEnabled"), o.RetentionEnabled)
	b = boolean(key(b, "encryptionEnabled"), o.EncryptionEnabled)
	b = num(key(b, "maxWaitTimeSeconds"), o.MaxWaitTimeSeconds)
	b = num(key(b, "minPopWaitTime"), o.MinPopWaitTime)
	b = num(key(b, "dedupWindowSeconds"), o.DedupWindowSeconds)
	b = str(key(b, "retentionSinkHold"), o.RetentionSinkHold)
	return num(key(b, "retentionSinkHoldMaxSeconds"), o.RetentionSinkHoldMaxSeconds)
}

// option reads one value as text, the form that all types are converted from,
// and adds the change; null resets.
func option(name, want string, convert func(text string, quoted bool) (func(*mq.Options), bool)) field[[]mq.OptionChange] {
	return field[[]mq.OptionChange]{name, func(d *decoder, _ place, into *[]mq.OptionChange) error {
		v, err := d.value()
		if err != nil {
			return err
		}
		text, quoted := string(v), v[0] == '"'
		switch {
		case text == "null":
			*into = append(*into, mq.OptionChange{Name: name})
			return nil
		case quoted:
			plain, err := jsontext.AppendUnquote(nil, v)
			if err != nil {
				return &optionError{name, want}
			}
			text = string(plain)
		}
		set, ok := convert(text, quoted)
		if !ok {
			return &optionError{name, want}
		}
		*into = append(*into, mq.OptionChange{Name: name, Set: set})
		return nil
	}}
}

func intOption(name string, set func(*mq.Options, int32)) field[[]mq.OptionChange] {
	return option(name, "a 32-bit integer", func(text string, _ bool) (func(*mq.Options), bool) {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
		return func(o *mq.Options) { set(o, int32(n)) }, err == nil
	})
}

func boolOption(name string, set func(*mq.Options, bool)) field[[]mq.OptionChange] {
	return option(name, "a boolean", func(text string, _ bool) (func(*mq.Options), bool) {
		v, ok := parseBool(text)
		return func(o *mq.Options) { set(o, v) }, ok
	})
}

func textOption(name string, set func(*mq.Options, string)) field[[]mq.OptionChange] {
	return option(name, "a string", func(text string, quoted bool) (func(*mq.Options), bool) {
		return func(o *mq.Options) { set(o, text) }, quoted
	})
}

// parseBool reads what PostgreSQL reads as a boolean.
func parseBool(text string) (v, ok bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "t", "tr", "tru", "true", "y", "ye", "yes", "on", "1":
		return true, true
	case "f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0":
		return false, true
	default:
		return false, false
	}
}
