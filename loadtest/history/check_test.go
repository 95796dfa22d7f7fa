package history

import (
	"fmt"
	"testing"
)

func TestGoodStoryPasses(t *testing.T) {
	t.Parallel()
	s := newStory()
	if res := Check(s.loaded(t)); len(res.Violations) > 0 || len(res.Undecided) > 0 {
		t.Fatalf("%d violations, undecided %v%s", len(res.Violations), res.Undecided, all(res, &s.Run))
	}
}

// TestBadStories spoils the good story in one way at a time.
func TestBadStories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(s *story, op map[string]*Op)
		want  Guarantee
		id    string
	}{
		{"a confirmed message never comes", func(s *story, op map[string]*Op) {
			s.add("push e", Op{Kind: Push, Queue: "in", Pushed: []Message{queued("e", 4)}})
		}, NoLoss, "e"},
		{"a message reaches one group only", func(s *story, op map[string]*Op) {
			op["pop L2"].Popped, op["pop L3"].Popped = op["pop L2"].Popped[:1], op["pop L3"].Popped[:1]
		}, NoLoss, "d"},
		{"a message nobody sent", func(s *story, op map[string]*Op) {
			op["pop L2"].Popped[1].ID = "x"
		}, NoInvention, "x"},
		{"a message comes before it is sent", func(s *story, op map[string]*Op) {
			op["push c"].Start, op["push c"].End = s.clock, s.clock+10
		}, NoInvention, "c"},
		{"a refused push is stored", func(s *story, op map[string]*Op) {
			op["push c"].Outcome = Fail
		}, NoInvention, "c"},
		{"a message refused by itself is stored", func(s *story, op map[string]*Op) {
			op["push c"].Pushed[0].Status = "error"
		}, NoInvention, "c"},
		{"another payload", func(s *story, op map[string]*Op) {
			op["pop L1"].Popped[0].Sum = "sumz"
		}, NoInvention, "a"},
		{"an output of no transaction", func(s *story, op map[string]*Op) {
			op["pop out"].Popped[0].By = "tz"
		}, NoInvention, "out:a"},
		{"a dead letter", func(s *story, op map[string]*Op) {
			op["letters"].Count = 1
		}, NoLoss, ""},
		{"something is left", func(s *story, op map[string]*Op) {
			op["depth"].Count = 2
		}, NoLoss, ""},

		{"a skipped offset", func(s *story, op map[string]*Op) {
			op["pop L1"].Popped = op["pop L1"].Popped[:1]
		}, Order, "c"},
		{"a batch out of order", func(s *story, op map[string]*Op) {
			p := op["pop L1"].Popped
			p[0], p[1] = p[1], p[0]
		}, Order, "a"},
		{"two messages at one offset", func(s *story, op map[string]*Op) {
			for _, name := range []string{"push c", "pop L2", "pop L3", "pop P1"} {
				o := op[name]
				for _, list := range [][]Message{o.Pushed, o.Popped} {
					for i := range list {
						if list[i].ID == "c" {
							list[i].Offset = 1
						}
					}
				}
			}
		}, Order, "c"},
		{"an offset that nothing has", func(s *story, op map[string]*Op) {
			s.add("push e", Op{Kind: Push, Queue: "in", Pushed: []Message{queued("e", 5)}})
		}, Order, "e"},
		{"the earlier push has the higher offset", func(s *story, op map[string]*Op) {
			op["push c"].Pushed[0].ID, op["push d"].Pushed[0].ID = "d", "c"
			op["push c"].Pushed[0].Offset, op["push d"].Pushed[0].Offset = 3, 2
			op["push d again"].Pushed[0].Offset = 3
		}, Order, "d"},
		{"one request, offsets apart", func(s *story, op map[string]*Op) {
			op["push ab"].Pushed[0], op["push ab"].Pushed[1] = op["push ab"].Pushed[1], op["push ab"].Pushed[0]
		}, Order, "a"},

		{"a lease while another is live", func(s *story, op map[string]*Op) {
			op["pop L3"].Start, op["pop L3"].End = op["pop L2"].End+10, op["pop L2"].End+20
		}, Exclusive, "c"},
		{"a lease while another was extended", func(s *story, op map[string]*Op) {
			op["ack L1"].Outcome = Fail
			shift(s, op["pop L2"], 6*second)
		}, Exclusive, "c"},
		{"two pops at once, both served", func(s *story, op map[string]*Op) {
			op["pop L3"].Start, op["pop L3"].End = op["pop L2"].Start+1, op["pop L2"].End+1
		}, Exclusive, "c"},
		{"a lease granted twice", func(s *story, op map[string]*Op) {
			op["pop L3"].Lease = "L2"
		}, Exclusive, "c"},
		{"a replaced lease acknowledges", func(s *story, op map[string]*Op) {
			s.add("ack L2", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L2", Acked: []Message{done("d", 3, true)}})
		}, Exclusive, "d"},

		{"delivered again after its ack", func(s *story, op map[string]*Op) {
			s.add("pop L4", Op{
				Kind: Pop, Queue: "in", Group: "leased", Lease: "L4", Length: second, Popped: []Message{got("d", 3, "")},
			})
		}, Cursor, "d"},
		{"delivered again after a later one's ack", func(s *story, op map[string]*Op) {
			s.add("pop L4", Op{
				Kind: Pop, Queue: "in", Group: "leased", Lease: "L4", Length: second, Popped: []Message{got("c", 2, "")},
			})
		}, Cursor, "c"},
		{"delivered again after its transaction", func(s *story, op map[string]*Op) {
			s.add("pop P2", Op{
				Kind: Pop, Queue: "in", Group: "pipeline", Lease: "P2", Length: second, Popped: []Message{got("a", 0, "")},
			})
		}, Cursor, "a"},

		{"an id stored twice", func(s *story, op map[string]*Op) {
			op["push d again"].Pushed[0] = queued("d", 4)
		}, Dedup, "d"},
		{"two offsets for one id", func(s *story, op map[string]*Op) {
			op["push d again"].Pushed[0].Offset = 9
		}, Dedup, "d"},
		{"two partitions for one id", func(s *story, op map[string]*Op) {
			op["pop L1"].Popped[0].Partition = "z"
		}, Dedup, "a"},
		{"a duplicate of nothing", func(s *story, op map[string]*Op) {
			op["push c"].Pushed[0].Status = "duplicate"
		}, Dedup, "c"},

		{"a transaction without its marker", func(s *story, op map[string]*Op) {
			op["markers"].Keys[0].Value = `"tl"`
		}, Effect, "a"},
		{"a lost marker", func(s *story, op map[string]*Op) {
			op["markers"].Keys = op["markers"].Keys[:3]
		}, Effect, "d"},
		{"a transaction of which half is there", func(s *story, op map[string]*Op) {
			op["tx bcd"].Outcome = Unknown
			op["markers"].Keys[1].Value = `"tz"`
		}, Effect, "b"},
		{"an output is missing", func(s *story, op map[string]*Op) {
			op["pop out"].Popped = nil
		}, Effect, "out:a"},
		{"an output twice", func(s *story, op map[string]*Op) {
			again := got("out:a", 1, "ta")
			op["pop out"].Popped = append(op["pop out"].Popped, again)
		}, Dedup, "out:a"},
		{"a refused transaction has written", func(s *story, op map[string]*Op) {
			op["pop out"].Popped[0].By = "tl"
		}, Effect, "out:a"},
		{"a counter counts once too often", func(s *story, op map[string]*Op) {
			op["final count"].Keys[0].Value = "5"
		}, Effect, "count"},
		{"a counter that is gone", func(s *story, op map[string]*Op) {
			op["final count"].Keys = nil
		}, Effect, "count"},

		{"a timer's message before its time", func(s *story, op map[string]*Op) {
			op["pop timed"].Popped[0].Created = 999*second - 1
		}, Timer, "b@tb"},
		{"delivered before the delay is over", func(s *story, op map[string]*Op) {
			op["tx bcd"].Timers[0].Delay = 60 * second
		}, Timer, "b@tb"},
		{"a timer fires twice", func(s *story, op map[string]*Op) {
			op["pop timed"].Popped = append(op["pop timed"].Popped, got("b@tb", 2, "tb"))
		}, Timer, "b@tb"},
		{"a cancelled timer fires", func(s *story, op map[string]*Op) {
			op["pop timed"].Popped = append(op["pop timed"].Popped, got("d@tb", 2, "tb"))
		}, Timer, "d@tb"},
		{"a replaced timer fires", func(s *story, op map[string]*Op) {
			op["pop timed"].Popped = append(op["pop timed"].Popped, got("c@tb", 2, "tb"))
		}, Timer, "c@rc"}, // either of the two is at fault
		{"a timer that never fires", func(s *story, op map[string]*Op) {
			op["pop timed"].Popped = op["pop timed"].Popped[:1]
		}, Timer, "c@tb"},
		{"absent, and fires later", func(s *story, op map[string]*Op) {
			op["cancel d"].Timers[0] = TimerOp{Op: "cancel", Queue: "timed", Key: "d", Status: "absent"}
		}, Timer, "d@tb"},
		{"a timer of a refused transaction", func(s *story, op map[string]*Op) {
			op["tx a late"].Timers = []TimerOp{{Op: "schedule", Queue: "timed", Key: "a", ID: "a@tl"}}
			op["pop timed"].Popped = append(op["pop timed"].Popped, got("a@tl", 2, "tl"))
		}, NoInvention, "a@tl"},

		{"a counter read before it was that high", func(s *story, op map[string]*Op) {
			op["read count"].Keys[0].Value = "3"
		}, Linear, "count"},
		{"an increment is lost", func(s *story, op map[string]*Op) {
			op["tx bcd"].Keys[3].Value = "3"
		}, Linear, "count"},
		{"a stale read", func(s *story, op map[string]*Op) {
			op["get"].Keys[0].Value, op["get"].Keys[0].Version = `"v1"`, 10
		}, Linear, "reg"},
		{"a condition that did not hold", func(s *story, op map[string]*Op) {
			op["put if old"].Keys[0] = KeyOp{Op: "put", Key: "reg", Value: `"v3"`, Expect: at(10), Applied: true, Version: 25}
		}, Linear, "reg"},
		{"a version that falls", func(s *story, op map[string]*Op) {
			op["put if"].Keys[0].Version, op["put if old"].Keys[0].Version = 9, 9
		}, Linear, "reg"},
		{"a value with two versions", func(s *story, op map[string]*Op) {
			op["put if old"].Keys[0].Version = 21
		}, Linear, "reg"},
		{"a key that vanished", func(s *story, op map[string]*Op) {
			op["get"].Keys[0] = KeyOp{Op: "get", Key: "reg"}
		}, Linear, "reg"},

		{"a delete of nothing", func(s *story, op map[string]*Op) {
			s.add("delete", Op{Kind: KV, Keys: []KeyOp{{Op: "delete", Key: "reg", Applied: true}}})
			s.add("delete again", Op{Kind: KV, Keys: []KeyOp{{Op: "delete", Key: "reg", Applied: true}}})
		}, Linear, "reg"},

		{"a good request is refused", func(s *story, op map[string]*Op) {
			op["get"].Outcome, op["get"].Status, op["get"].Reason = Fail, 400, "no"
		}, Protocol, ""},
		{"an answer without sense", func(s *story, op map[string]*Op) {
			op["get"].Outcome, op["get"].Reason = Unknown, Unreadable+": no"
		}, Protocol, ""},
		{"a push verdict that is none", func(s *story, op map[string]*Op) {
			op["push c"].Pushed[0].Status = "buffered"
		}, Protocol, "c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStory()
			c.spoil(s, s.named)
			s.End.At = max(s.End.At, s.clock+second)
			wants(t, Check(s.loaded(t)), &s.Run, c.want, c.id)
		})
	}
}

// shift moves an operation and everything that starts after it.
func shift(s *story, from *Op, by int64) {
	start := from.Start
	for _, op := range s.Ops {
		if op.Start >= start {
			op.Start, op.End = op.Start+by, op.End+by
		}
	}
	s.clock += by
	s.End.At += by
}

// TestUnknownOutcomesExcuse: what a lost answer may explain is no violation.
func TestUnknownOutcomesExcuse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		edit func(s *story, op map[string]*Op)
	}{
		{"a push without a verdict that was stored", func(s *story, op map[string]*Op) {
			op["push c"].Outcome, op["push c"].Pushed[0].Offset, op["push c"].Pushed[0].Status = Unknown, -1, ""
		}},
		{"a message refused by itself and sent again", func(s *story, op map[string]*Op) {
			e := queued("e", -1)
			e.Status = "error"
			s.add("push e", Op{Kind: Push, Queue: "in", Pushed: []Message{e}})
		}},
		{"a push without a verdict that was not", func(s *story, op map[string]*Op) {
			s.add("push e", Op{Kind: Push, Outcome: Unknown, Queue: "in", Pushed: []Message{msg("e", -1)}})
		}},
		{"a lost ack freed the lease", func(s *story, op map[string]*Op) {
			op["ack L1"].Outcome, op["ack L1"].Acked[0].Released = Unknown, false
		}},
		{"a lost transaction that was committed", func(s *story, op map[string]*Op) {
			o := op["tx bcd"]
			o.Outcome = Unknown
			for i := range o.Timers {
				o.Timers[i].Status, o.Timers[i].Due = "", 0
			}
			o.Keys[3].Value = ""
		}},
		{"a lost transaction that was not", func(s *story, op map[string]*Op) {
			op["tx a late"].Outcome = Unknown
		}},
		{"a lost cancel that came through", func(s *story, op map[string]*Op) {
			op["cancel d"].Outcome, op["cancel d"].Timers[0] = Unknown, TimerOp{Op: "cancel", Queue: "timed", Key: "d"}
		}},
		{"a lost put that came through later", func(s *story, op map[string]*Op) {
			op["get"].Keys[0].Value, op["get"].Keys[0].Version = `"v2"`, 20
		}},
		{"a lost put that a delete took away", func(s *story, op map[string]*Op) {
			s.add("delete", Op{Kind: KV, Keys: []KeyOp{{Op: "delete", Key: "reg", Applied: true}}})
			s.add("put v5", Op{Kind: KV, Outcome: Unknown, Keys: []KeyOp{{Op: "put", Key: "reg", Value: `"v5"`}}})
			s.add("delete again", Op{Kind: KV, Keys: []KeyOp{{Op: "delete", Key: "reg", Applied: true}}})
		}},
		{"many lost puts, which must not make the search long", func(s *story, op map[string]*Op) {
			for i := range 100 {
				s.add("lost", Op{Kind: KV, Outcome: Unknown, Keys: []KeyOp{{Op: "put", Key: "reg", Value: fmt.Sprint(i)}}})
				s.add("get", Op{Kind: KV, Keys: []KeyOp{{Op: "get", Key: "reg", Found: true, Value: `"v4"`, Version: 30}}})
			}
		}},
		{"a late answer repeats a delivery", func(s *story, op map[string]*Op) {
			op["pop L2"].End = op["ack L3"].End + 10
		}},
		{"a stale lease is refused", func(s *story, op map[string]*Op) {
			a := s.add("ack L2", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L2", Acked: []Message{done("d", 3, false)}})
			a.Acked[0].Refused = "invalid or expired lease"
			b := s.add("ack L2 again", Op{Kind: Ack, Queue: "in", Group: "leased", Lease: "L2", Acked: []Message{done("d", 3, false)}})
			b.Acked[0].Noop = true
		}},
		{"completed above a retried one comes again", func(s *story, op map[string]*Op) {
			retried := done("c", 2, true)
			retried.Status = "retry"
			op["ack L3"].Acked = []Message{retried, done("d", 3, true)}
			s.add("pop L4", Op{
				Kind: Pop, Queue: "in", Group: "leased", Lease: "L4", Length: second,
				Popped: []Message{got("c", 2, ""), got("d", 3, "")},
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStory()
			c.edit(s, s.named)
			s.End.At = max(s.End.At, s.clock+second)
			if res := Check(s.loaded(t)); len(res.Violations) > 0 || len(res.Undecided) > 0 {
				t.Errorf("%d violations, undecided %v%s", len(res.Violations), res.Undecided, all(res, &s.Run))
			}
		})
	}
}

// TestNothingMissingWithoutAnEnd: when the fleet could not be reached in the end, absence proves nothing.
func TestNothingMissingWithoutAnEnd(t *testing.T) {
	t.Parallel()
	s := newStory()
	s.End = End{At: s.clock + second}
	kept := s.Ops[:0]
	for _, op := range s.Ops {
		if !op.Final && op.Kind != Pop {
			kept = append(kept, op)
		}
	}
	s.Ops = kept
	if res := Check(s.loaded(t)); len(res.Violations) > 0 {
		t.Errorf("%d violations%s", len(res.Violations), all(res, &s.Run))
	}
}
