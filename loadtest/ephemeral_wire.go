package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const ephemeralPath = "/api/v1/ephemeral/"

// ephemeralDelivery is one message of an ephemeral pop. The slices point into the answer's buffer.
type ephemeralDelivery struct {
	id       []byte
	attempts int64
	stamp    stamp
	inbox    []byte // of a request
}

// scanEphemeralPop reads a pop answer into out, reusing its memory.
func scanEphemeralPop(body []byte, out []ephemeralDelivery) ([]ephemeralDelivery, error) {
	out = out[:0]
	s := scanner{b: body}
	err := s.object(func(key []byte) error {
		if string(key) != "messages" {
			return s.skip(0)
		}
		return s.array(func(int) error {
			var d ephemeralDelivery
			err := s.object(func(key []byte) error {
				switch string(key) {
				case "id":
					return s.text(&d.id)
				case "attempts":
					return s.number(&d.attempts, 0)
				case "payload":
					start := s.i
					if err := s.skip(0); err != nil {
						return err
					}
					return d.read(s.b[start:s.i])
				default:
					return s.skip(0)
				}
			})
			out = append(out, d)
			return err
		})
	})
	if err != nil {
		return out, err
	}
	return out, s.end()
}

// read takes the stamp out of a payload, and the inbox where it has one.
func (d *ephemeralDelivery) read(payload []byte) error {
	s := scanner{b: payload}
	if s.peek() == '[' { // a request: the inbox, and what is asked
		return s.array(func(i int) error {
			if i == 0 {
				return s.text(&d.inbox)
			}
			return s.stamp(&d.stamp)
		})
	}
	return s.stamp(&d.stamp)
}

// pushEphemeral stores payloads, which are put together in body.
func (r *ephemeralRun) pushEphemeral(ctx context.Context, body, buf []byte) ([]byte, error) {
	buf, _, err := r.client.do(ctx, http.MethodPost, ephemeralPath+"push", body, buf)
	return buf, err
}

// ephemeralBody begins the body of a push; each message is added, and closed ends it.
func ephemeralBody(b []byte, queue string) []byte {
	b = append(b[:0], `{"queue":`...)
	b = append(b, quote(queue)...)
	return append(b, `,"messages":[`...)
}

func ephemeralMessage(b []byte, payload func(b []byte) []byte) []byte {
	if b[len(b)-1] == '}' {
		b = append(b, ',')
	}
	b = append(b, `{"payload":`...)
	return append(payload(b), '}')
}

func closed(b []byte) []byte { return append(b, "]}"...) }

func ephemeralPopPath(queue, group string, batch int, wait time.Duration, auto bool) string {
	q := url.Values{"queue": {queue}, "batch": {strconv.Itoa(batch)}}
	if wait > 0 {
		q.Set("wait", "true")
		q.Set("timeout", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	if group != "" {
		q.Set("group", group)
	}
	if auto {
		q.Set("autoAck", "true")
	}
	return ephemeralPath + "pop?" + q.Encode()
}

// ackEphemeral completes a batch and counts what was settled.
func (r *ephemeralRun) ackEphemeral(ctx context.Context, queue, group string, batch []ephemeralDelivery, body, buf []byte) (acked int, _, _ []byte, err error) {
	body = append(body[:0], `{"queue":`...)
	body = append(body, quote(queue)...)
	body = append(body, `,"group":`...)
	body = append(body, quote(group)...)
	body = append(body, `,"acks":[`...)
	for i := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, `{"id":"`...)
		body = append(body, batch[i].id...)
		body = append(body, `"}`...)
	}
	body = closed(body)
	if buf, _, err = r.client.do(ctx, http.MethodPost, ephemeralPath+"ack", body, buf); err != nil {
		return 0, body, buf, err
	}
	acked, err = countAcked(buf)
	return acked, body, buf, err
}

func countAcked(answer []byte) (acked int, err error) {
	s := scanner{b: answer}
	err = s.object(func(key []byte) error {
		if string(key) != "results" {
			return s.skip(0)
		}
		return s.array(func(int) error {
			return s.object(func(key []byte) error {
				if string(key) != "outcome" {
					return s.skip(0)
				}
				var outcome []byte
				err := s.text(&outcome)
				if string(outcome) == "acked" {
					acked++
				}
				return err
			})
		})
	})
	return acked, err
}

func (r *ephemeralRun) deleteEphemeral(ctx context.Context, queue string) error {
	_, _, err := r.client.do(ctx, http.MethodDelete, ephemeralPath+"queue/"+url.PathEscape(queue), nil, nil)
	return err
}

// isFull tells a queue that is full from other refusals.
func isFull(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusTooManyRequests
}
