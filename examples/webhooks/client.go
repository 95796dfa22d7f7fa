package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// client is the whole of the API this example needs: three requests.
type client struct {
	base string
	http *http.Client
}

type verdict struct {
	Status string `json:"status"`
	Offset int64  `json:"offset"`
	Error  string `json:"error"`
}

// push sends deliveries and returns one verdict each. The body is put together by hand, because json.Marshal would
// compact the payloads and escape < and > in them.
func (c *client) push(ctx context.Context, deliveries []delivery) ([]verdict, error) {
	var body bytes.Buffer
	body.WriteString(`{"items":[`)
	for i := range deliveries {
		d := &deliveries[i]
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"queue":%s,"partition":%s,"transactionId":%s,"payload":`,
			quote(d.queue()), quote(d.Repository), quote(d.id))
		body.Write(d.Payload)
		body.WriteByte('}')
	}
	body.WriteString(`]}`)
	var verdicts []verdict
	if err := c.do(ctx, http.MethodPost, "/api/v1/push", body.Bytes(), &verdicts); err != nil {
		return nil, err
	}
	if len(verdicts) != len(deliveries) {
		return nil, fmt.Errorf("push: %d verdicts for %d deliveries", len(verdicts), len(deliveries))
	}
	return verdicts, nil
}

type message struct {
	TransactionID   string          `json:"transactionId"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	Data            json.RawMessage `json:"data"` // the broker answers the payload's own bytes
	DeliveryAttempt int             `json:"deliveryAttempt"`
}

// pop leases up to batch messages for the group, from several partitions, waiting up to wait for the first.
func (c *client) pop(ctx context.Context, queue, group string, batch int, wait time.Duration) ([]message, error) {
	q := url.Values{
		"consumerGroup": {group}, "subscriptionMode": {"all"},
		"batch": {strconv.Itoa(batch)}, "partitions": {"16"},
	}
	if wait > 0 {
		q.Set("wait", "true")
		q.Set("timeout", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	var answer struct {
		Messages []message `json:"messages"`
	}
	err := c.do(ctx, http.MethodGet, "/api/v1/pop/queue/"+url.PathEscape(queue)+"?"+q.Encode(), nil, &answer)
	return answer.Messages, err
}

type ack struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
	Error         string `json:"error,omitempty"`
}

// ack settles messages. The request succeeds as a whole; each item says for itself whether it was taken.
func (c *client) ack(ctx context.Context, group string, acks []ack) error {
	body, err := json.Marshal(map[string]any{"consumerGroup": group, "acknowledgments": acks})
	if err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	var results []struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
	}
	if err := c.do(ctx, http.MethodPost, "/api/v1/ack/batch", body, &results); err != nil {
		return err
	}
	if len(results) != len(acks) {
		return fmt.Errorf("ack: %d results for %d messages", len(results), len(acks))
	}
	for i, r := range results {
		if !r.Success {
			return fmt.Errorf("ack of %s refused: %s", acks[i].TransactionID, r.Error)
		}
	}
	return nil
}

// statusError is an answer outside 2xx.
type statusError struct {
	path   string
	status int
	text   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.path, e.status, e.text)
}

func (c *client) do(ctx context.Context, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode/100 != 2 {
		return &statusError{path: path, status: res.StatusCode, text: strings.TrimSpace(string(text))}
	}
	if res.StatusCode == http.StatusNoContent {
		return nil // an empty pop
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("read answer of %s: %w", path, err)
	}
	return nil
}

func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}
