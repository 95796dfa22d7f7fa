package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queenmq-go/queenmq/loadtest/history"
)

// fleet sends requests to the brokers in turn.
type fleet struct {
	http  *http.Client
	bases []string
	token string
	turn  atomic.Uint64
}

func newFleet(cfg *Config, connections int) *fleet {
	return &fleet{
		bases: cfg.URLs, token: cfg.Token,
		http: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 10 * time.Second}).DialContext,
			MaxIdleConnsPerHost: connections,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}},
	}
}

// answer is what came of one request.
type answer struct {
	outcome history.Outcome
	status  int
	body    []byte
	reason  string
	later   time.Duration // how long the fleet asked to wait
}

// send sends one request. The outcome is what a client may conclude: a request that reached nobody did not happen, and
// neither did one that was refused; whatever else has no whole answer may have happened.
func (f *fleet) send(ctx context.Context, method, path string, body []byte, limit time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	base := f.bases[f.turn.Add(1)%uint64(len(f.bases))]
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return answer{outcome: history.Fail, reason: err.Error()}
	}
	if body == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if f.token != "" {
		req.Header.Set("Authorization", "Bearer "+f.token)
	}
	res, err := f.http.Do(req)
	if err != nil {
		return answer{outcome: outcomeOf(err), reason: err.Error()}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, body: text}
	if seconds, bad := strconv.Atoi(res.Header.Get("Retry-After")); bad == nil {
		a.later = time.Duration(seconds) * time.Second
	}
	switch {
	case err != nil:
		a.outcome, a.reason = history.Unknown, "answer cut: "+err.Error()
	case res.StatusCode/100 == 2:
		a.outcome = history.OK
	case res.StatusCode >= 500 || res.StatusCode == http.StatusRequestTimeout:
		a.outcome, a.reason = history.Unknown, excerpt(text)
	default:
		a.outcome, a.reason = history.Fail, excerpt(text)
	}
	return a
}

func excerpt(text []byte) string { return strings.TrimSpace(string(text[:min(len(text), 200)])) }

// outcomeOf tells a request that was never sent from one that may have been.
func outcomeOf(err error) history.Outcome {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return history.Fail
	}
	return history.Unknown
}

// backoff spaces the tries of one request.
type backoff struct {
	next time.Duration
	rand *rand.Rand
}

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
	maxLater   = 10 * time.Second
)

// wait pauses for as long as the fleet asked, or twice as long as the time before. It reports whether to go on.
func (b *backoff) wait(ctx context.Context, later time.Duration) bool {
	b.next = min(max(b.next*2, firstPause), maxPause)
	pause := b.next/2 + time.Duration(b.rand.Int64N(int64(b.next)))
	if later > 0 {
		// Not all at the same moment, and never before what was asked for.
		pause = min(later, maxLater) + time.Duration(b.rand.Int64N(int64(100*time.Millisecond)))
	}
	return sleep(ctx, pause)
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func unreadable(err error) string { return fmt.Sprintf("%s: %v", history.Unreadable, err) }
