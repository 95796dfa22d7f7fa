package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// client speaks the HTTP wire of the contract and nothing above it: no retries, no decoding.
type client struct {
	http  *http.Client
	bases []string
	token string
	turn  atomic.Uint64
}

// statusError is an answer outside 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

func newClient(bases []string, token string, connections int) (*client, error) {
	c := &client{token: token}
	for _, base := range bases {
		u, err := url.Parse(base)
		if err != nil {
			return nil, fmt.Errorf("url %q: %w", base, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("url %q: want http://host:port", base)
		}
		c.bases = append(c.bases, strings.TrimRight(base, "/"))
	}
	if len(c.bases) == 0 {
		return nil, errors.New("no url")
	}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		// Every worker keeps its connection: a dial in the middle of a run would be measured as broker time.
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}}
	return c, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// base hands the brokers out in turn, one per request.
func (c *client) base() string {
	if len(c.bases) == 1 {
		return c.bases[0]
	}
	return c.bases[c.turn.Add(1)%uint64(len(c.bases))]
}

// do sends one request and reads the whole answer into buf, which is returned grown. A 204 leaves it empty.
func (c *client) do(ctx context.Context, method, path string, body []byte, buf []byte) ([]byte, int, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, reader)
	if err != nil {
		return buf[:0], 0, fmt.Errorf("build request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return buf[:0], 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	buf, err = readAll(res.Body, buf[:0])
	_ = res.Body.Close()
	if err != nil {
		return buf, res.StatusCode, fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode/100 != 2 {
		text := strings.TrimSpace(string(buf[:min(len(buf), 300)]))
		return buf, res.StatusCode, &statusError{status: res.StatusCode, text: text}
	}
	return buf, res.StatusCode, nil
}

func readAll(r io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// retryable reports whether the same request may succeed later, and may also have taken effect already.
func retryable(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.status == http.StatusTooManyRequests || status.status >= 500
	}
	return true
}

func (c *client) configure(ctx context.Context, queue string, lease time.Duration, dedup bool) error {
	window := 0
	if dedup {
		window = 3600
	}
	body := append([]byte(`{"queue":`), quote(queue)...)
	body = fmt.Appendf(body, `,"options":{"leaseTime":%d,"dedupWindowSeconds":%d}}`, int(lease.Seconds()), window)
	_, _, err := c.do(ctx, http.MethodPost, "/api/v1/configure", body, nil)
	if err != nil {
		return fmt.Errorf("configure %s: %w", queue, err)
	}
	return nil
}

func (c *client) deleteQueue(ctx context.Context, queue string) error {
	_, _, err := c.do(ctx, http.MethodDelete, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, nil)
	if err != nil {
		return fmt.Errorf("delete %s: %w", queue, err)
	}
	return nil
}

// popPath is built once per consumer; nothing in it changes between requests.
func popPath(cfg *config, queue, group string, wait time.Duration) string {
	q := url.Values{}
	q.Set("batch", strconv.Itoa(cfg.popBatch))
	q.Set("partitions", strconv.Itoa(cfg.popPartitions))
	q.Set("consumerGroup", group)
	q.Set("subscriptionMode", "all")
	if wait > 0 {
		q.Set("wait", "true")
		q.Set("timeout", strconv.FormatInt(wait.Milliseconds(), 10))
	} else {
		q.Set("wait", "false")
	}
	if cfg.ack == ackAuto {
		// Both brokers that know commitOnDelivery and those that do not read this name.
		q.Set("autoAck", "true")
	}
	return "/api/v1/pop/queue/" + url.PathEscape(queue) + "?" + q.Encode()
}

func appendAck(b []byte, d *delivery) []byte {
	b = append(b, `{"transactionId":"`...)
	b = append(b, d.transactionID...)
	b = append(b, `","partitionId":"`...)
	b = append(b, d.partitionID...)
	b = append(b, `","leaseId":"`...)
	b = append(b, d.leaseID...)
	return append(b, `","status":"completed"`...)
}

// ackBatchBody copies ids as they came: still escaped, so still valid JSON.
func ackBatchBody(b []byte, group string, batch []delivery) []byte {
	b = append(b[:0], `{"consumerGroup":`...)
	b = append(b, quote(group)...)
	b = append(b, `,"acknowledgments":[`...)
	for i := range batch {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendAck(b, &batch[i]), '}')
	}
	return append(b, ']', '}')
}

func ackBody(b []byte, group string, d *delivery) []byte {
	b = appendAck(b[:0], d)
	b = append(b, `,"consumerGroup":`...)
	b = append(b, quote(group)...)
	return append(b, '}')
}

// quote is for names of our own making: letters, digits, dots and dashes only.
func quote(s string) []byte { return strconv.AppendQuote(nil, s) }
