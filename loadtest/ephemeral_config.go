package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// What ephemeral mode measures.
const (
	partReply  = "reply"
	partStream = "stream"
)

type ephemeralConfig struct {
	urls        []string
	redisURL    string
	parts       string
	duration    time.Duration
	timeout     time.Duration
	patience    time.Duration
	requesters  int
	responders  int
	producers   int
	consumers   int
	batches     []int
	maxLag      int64
	payloadSize int
	token       string
	jsonFile    string
	quiet       bool
	command     []string
}

func parseEphemeralFlags(args []string, errOut io.Writer) (*ephemeralConfig, error) {
	c := &ephemeralConfig{command: append([]string{"ephemeral"}, args...)}
	fs := flag.NewFlagSet("ephemeral", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.Usage = func() {
		_, _ = io.WriteString(errOut, "usage: loadtest ephemeral [flags]\n\n")
		fs.PrintDefaults()
	}
	var batches string
	fs.Var(urlList{&c.urls}, "url", "broker `address`, repeatable or comma separated; used in turn (default http://localhost:6632)")
	fs.Var(urlList{&c.urls}, "url2", "another broker `address`, the same as a second --url")
	fs.StringVar(&c.redisURL, "redis-url", "redis://localhost:6379/0", "the brokers' Redis")
	fs.StringVar(&c.parts, "parts", partReply+","+partStream, "what to measure, comma separated")
	fs.DurationVar(&c.duration, "duration", 5*time.Second, "length of each phase")
	fs.DurationVar(&c.timeout, "timeout", 10*time.Second, "limit of one request, and of one reply")
	fs.DurationVar(&c.patience, "patience", 10*time.Second, "stream: a phase ends when nothing arrives for so long")
	fs.IntVar(&c.requesters, "requesters", 64, "reply: requests under way at once")
	fs.IntVar(&c.responders, "responders", 5, "reply: responders, all of one group")
	fs.IntVar(&c.producers, "producers", 4, "stream: producers")
	fs.IntVar(&c.consumers, "consumers", 4, "stream: consumers, all of one group")
	fs.StringVar(&batches, "batches", "1,100", "stream: messages a call, comma separated; each is measured")
	fs.Int64Var(&c.maxLag, "max-lag", 5000, "stream: producers wait while so many messages are not acknowledged")
	fs.IntVar(&c.payloadSize, "payload-size", 256, "payload `bytes`, padded with incompressible text")
	fs.StringVar(&c.token, "token", "", "bearer token")
	fs.StringVar(&c.jsonFile, "json", "", "write the report to this `file`")
	fs.BoolVar(&c.quiet, "quiet", false, "no progress lines")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if len(c.urls) == 0 {
		c.urls = []string{"http://localhost:6632"}
	}
	if err := c.check(batches); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *ephemeralConfig) check(batches string) error {
	for part := range strings.SplitSeq(batches, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > 10_000 {
			return fmt.Errorf("batches: %q is not between 1 and 10000", part)
		}
		c.batches = append(c.batches, n)
	}
	for part := range strings.SplitSeq(c.parts, ",") {
		if part != partReply && part != partStream {
			return fmt.Errorf("parts: %q is neither %s nor %s", part, partReply, partStream)
		}
	}
	switch {
	case c.requesters < 1 || c.responders < 1 || c.producers < 1 || c.consumers < 1:
		return errors.New("there must be one worker of each kind at least")
	case c.maxLag < 1 || c.maxLag > 10_000:
		return errors.New("max-lag must be between 1 and 10000, or the queue is full")
	case c.payloadSize < 0 || c.payloadSize > 1<<20:
		return errors.New("payload-size must be between 0 and 1048576")
	case c.duration <= 0 || c.timeout <= 0 || c.patience <= 0:
		return errors.New("duration, timeout and patience must be positive")
	}
	return nil
}

func (c *ephemeralConfig) does(part string) bool {
	for p := range strings.SplitSeq(c.parts, ",") {
		if p == part {
			return true
		}
	}
	return false
}
