package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Ephemeral mode measures ephemeral queues beside the Redis they are in: request and reply beside LPUSH and BRPOP,
// streaming beside XADD and XREADGROUP, on the same server, with the same payloads and as many workers, in one run.
// Redis comes before and after the brokers, because a machine's speed drifts.

// ephemeralRun is what the phases share.
type ephemeralRun struct {
	c        *ephemeralConfig
	client   *client
	redis    *redis.Client
	prefix   string // of queues, and of keys of our own
	payloads *payloads
	progress io.Writer
	queues   []string // ephemeral ones to be removed
	durable  []string
}

func ephemeralMain(args []string, out, errOut io.Writer) int {
	c, err := parseEphemeralFlags(args, errOut)
	if code, ok := flagsTaken(err, errOut); !ok {
		return code
	}
	ctx, stop := untilInterrupted()
	defer stop()
	rep, err := measureEphemeral(ctx, c, errOut)
	if err == nil {
		rep.print(out)
		err = rep.write(c.jsonFile)
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest:", err)
		return exitError
	}
	if !rep.OK {
		return exitFailed
	}
	return exitOK
}

func measureEphemeral(ctx context.Context, c *ephemeralConfig, errOut io.Writer) (*ephemeralReport, error) {
	run := time.Now().UnixMicro()
	p, err := newPayloads(run, c.payloadSize, "")
	if err != nil {
		return nil, err
	}
	workers := max(c.requesters+c.responders, c.producers+c.consumers) + 2
	r := &ephemeralRun{c: c, prefix: "loadtest-" + strconv.FormatInt(run, 36), payloads: p}
	if !c.quiet {
		r.progress = errOut
	}
	if r.client, err = newClient(c.urls, c.token, workers); err != nil {
		return nil, err
	}
	defer r.client.close()
	o, err := redis.ParseURL(c.redisURL)
	if err != nil {
		return nil, fmt.Errorf("redis url: %w", err)
	}
	// A worker that waits in BRPOP has a connection to itself, as it has at a broker.
	o.PoolSize, o.MaxRetries, o.ReadTimeout = workers, -1, 30*time.Second
	r.redis = redis.NewClient(o)
	defer func() { _ = r.redis.Close() }()
	defer r.cleanUp(errOut)
	rep := newEphemeralReport(c)
	if rep.Redis, err = r.redisVersion(ctx); err != nil {
		return nil, err
	}
	if err := r.measure(ctx, rep); err != nil {
		return nil, err
	}
	rep.finish()
	return rep, nil
}

func (r *ephemeralRun) measure(ctx context.Context, rep *ephemeralReport) error {
	if r.c.does(partReply) {
		if err := r.measureReply(ctx, rep); err != nil {
			return err
		}
	}
	if !r.c.does(partStream) {
		return nil
	}
	for _, batch := range r.c.batches {
		s, err := r.measureStream(ctx, batch)
		if err != nil {
			return err
		}
		rep.Stream = append(rep.Stream, s)
	}
	return nil
}

// redisVersion also finds out whether the server is there. Not every one says its version.
func (r *ephemeralRun) redisVersion(ctx context.Context) (string, error) {
	if err := r.redis.Ping(ctx).Err(); err != nil {
		return "", fmt.Errorf("ask redis: %w", err)
	}
	info, err := r.redis.InfoMap(ctx, "server").Result()
	if version := info["Server"]["redis_version"]; err == nil && version != "" {
		return version, nil
	}
	return "of unknown version", nil
}

func (r *ephemeralRun) say(format string, args ...any) {
	if r.progress != nil {
		_, _ = fmt.Fprintf(r.progress, format+"\n", args...)
	}
}

// cleanUp removes what the run made. Inboxes go by themselves, as they do in use.
func (r *ephemeralRun) cleanUp(errOut io.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, q := range r.queues {
		errs = append(errs, r.deleteEphemeral(ctx, q))
	}
	for _, q := range r.durable {
		errs = append(errs, r.client.deleteQueue(ctx, q))
	}
	for it := r.redis.Scan(ctx, 0, r.prefix+"*", 1000).Iterator(); it.Next(ctx); {
		errs = append(errs, r.redis.Del(ctx, it.Val()).Err())
	}
	if err := errors.Join(errs...); err != nil {
		_, _ = fmt.Fprintln(errOut, "loadtest: clean up:", err)
	}
}
