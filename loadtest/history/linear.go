package history

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/anishathalye/porcupine"
)

// never is the end of an operation of which nobody knows whether it happened.
const never = math.MaxInt64

// object is one key whose answers an order has to explain.
type object struct {
	guarantee Guarantee
	name      string
	model     porcupine.Model
	ops       []porcupine.Operation
	story     []*Op
	about     *message // the message to name, if there is one
}

// decide searches an order for each object, a few at a time.
func (c *checker) decide(objects []object) {
	verdicts := make([]porcupine.CheckResult, len(objects))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range objects {
		slots <- struct{}{}
		wg.Go(func() {
			verdicts[i] = porcupine.CheckOperationsTimeout(objects[i].model, objects[i].ops, searchLimit)
			<-slots
		})
	}
	wg.Wait()
	for i := range objects {
		o := &objects[i]
		switch {
		case verdicts[i] == porcupine.Unknown:
			c.result.Undecided = append(c.result.Undecided, o.name)
		case verdicts[i] == porcupine.Illegal && o.about != nil:
			c.report(o.guarantee, o.about, "", o.story, "no order of what was done to %s explains the answers", o.name)
		case verdicts[i] == porcupine.Illegal:
			c.keyViolation(o.guarantee, o.name, o.story, "no order of the operations on %s explains their answers", o.name)
		}
	}
}

func (c *checker) keyViolation(g Guarantee, key string, story []*Op, format string, args ...any) {
	c.result.Violations = append(c.result.Violations, Violation{
		Guarantee: g, Offset: -1, ID: key, Text: fmt.Sprintf(format, args...), Ops: inOrder(slices.Clone(story)),
	})
}

// keyOps are the operations on one key, as they came up.
type keyOps struct {
	ops   []keyUse
	story []*Op
}

type keyUse struct {
	op  *Op
	key *KeyOp
	// mayExist: a write that nobody saw may have come right before.
	mayExist bool
}

// checkKeys holds counters and registers against their models. Markers are left out: each is written once by design,
// and checkEffects knows more about them.
func (c *checker) checkKeys() {
	uses := map[string]*keyOps{}
	var keys []string
	for _, op := range c.h.Ops {
		for i := range op.Keys {
			k := &op.Keys[i]
			if c.h.Run.Marker != "" && strings.HasPrefix(k.Key, c.h.Run.Marker) {
				continue
			}
			if uses[k.Key] == nil {
				uses[k.Key] = &keyOps{}
				keys = append(keys, k.Key)
			}
			uses[k.Key].ops = append(uses[k.Key].ops, keyUse{op: op, key: k})
			uses[k.Key].story = append(uses[k.Key].story, op)
		}
	}
	var objects []object
	for _, key := range keys {
		u := uses[key]
		o := object{guarantee: Linear, name: key, story: u.story}
		if slices.ContainsFunc(u.ops, func(use keyUse) bool { return use.key.Op == "incr" }) {
			o.model, o.ops = counterModel(), c.counterOps(u.ops)
		} else {
			versions, conflict := versionsOf(u.ops)
			if conflict != "" {
				c.keyViolation(Linear, key, u.story, "%s", conflict)
				continue
			}
			o.model, o.ops = registerModel(versions), registerOps(u.ops)
		}
		objects = append(objects, o)
	}
	c.decide(objects)
}

// counting is an operation on a counter: value is what was answered, if anything was.
type counting struct {
	delta int64
	value int64
	known bool
}

func counterModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			in := input.(counting)
			next := state.(int64) + in.delta
			return !in.known || in.value == next, next
		},
	}
}

func (c *checker) counterOps(uses []keyUse) []porcupine.Operation {
	var out []porcupine.Operation
	for _, u := range uses {
		in := counting{delta: u.key.Delta, known: u.op.Outcome == OK}
		end := u.op.End
		if u.key.Op == "incr" {
			// Of a transaction the markers tell whether it took effect. What did not is left out of the search.
			if u.op.Outcome == Fail || u.op.Outcome == Unknown && c.h.End.Reached && !c.committed[u.op.By] {
				continue
			}
			if !in.known {
				end = max(c.shown(u.op), u.op.Start)
			}
		} else if !in.known {
			continue
		}
		if in.known && (u.key.Found || u.key.Op == "incr") {
			if err := json.Unmarshal([]byte(u.key.Value), &in.value); err != nil {
				in.value = math.MinInt64 // no counter holds it
			}
		}
		out = append(out, porcupine.Operation{Input: in, Call: u.op.Start, Return: end})
	}
	return out
}

// shown is when something that a transaction wrote was first received: it had taken effect by then.
func (c *checker) shown(op *Op) int64 {
	at := int64(never)
	look := func(n name) {
		if m := c.messages[n]; m != nil {
			for _, pop := range m.pops {
				if pop.m.By == op.By {
					at = min(at, pop.op.End)
				}
			}
		}
	}
	for i := range op.Pushed {
		look(name{op.queueOf(&op.Pushed[i]), op.Pushed[i].ID})
	}
	for i := range op.Timers {
		look(name{op.Timers[i].Queue, op.Timers[i].ID})
	}
	return at
}

// register is the state of a key: its value, and the highest version that was ever told of the key.
type register struct {
	found bool
	value string
	high  int64
}

// versionsOf tells the version that each value got. The workload never writes a value twice.
func versionsOf(uses []keyUse) (versions map[string]int64, conflict string) {
	versions = map[string]int64{}
	note := func(value string, version int64) {
		if before, known := versions[value]; known && before != version && conflict == "" {
			conflict = fmt.Sprintf("%s has version %d and version %d", value, before, version)
		}
		versions[value] = version
	}
	for _, u := range uses {
		switch k := u.key; {
		case u.op.Outcome != OK:
		case k.Op == "get" && k.Found, k.Op == "put" && k.Applied:
			note(k.Value, k.Version)
		case k.Op != "get" && !k.Applied && k.Version > 0:
			note(k.Current, k.Version)
		}
	}
	return versions, conflict
}

func registerModel(versions map[string]int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			return stepRegister(state.(register), input.(keyUse), versions)
		},
	}
}

func stepRegister(s register, u keyUse, versions map[string]int64) (bool, register) {
	k, known := u.key, u.op.Outcome == OK
	if k.Op == "get" {
		return k.Found == s.found && (!k.Found || k.Value == s.value), s
	}
	holds := true
	if k.Expect != nil {
		if *k.Expect == 0 {
			holds = !s.found
		} else {
			holds = s.found && versions[s.value] == *k.Expect
		}
	}
	if k.Op == "delete" {
		holds = holds && (s.found || u.mayExist && k.Applied)
	}
	if known && holds != k.Applied {
		return false, s
	}
	if !holds {
		return !known || (k.Version > 0) == s.found && (!s.found || k.Current == s.value), s
	}
	if k.Op == "delete" {
		return true, register{high: s.high}
	}
	next := register{found: true, value: k.Value, high: s.high}
	if version, told := versions[k.Value]; told {
		if version <= s.high {
			return false, s
		}
		next.high = version
	}
	return true, next
}

// registerOps takes what the search needs. A write without an answer whose value somebody saw happened before that. One
// whose value nobody ever saw explains nothing, but that there was something for a delete to take away.
func registerOps(uses []keyUse) []porcupine.Operation {
	seen := map[string]int64{} // when a value had certainly been written
	note := func(value string, at int64) {
		if before, known := seen[value]; value != "" && (!known || at < before) {
			seen[value] = at
		}
	}
	for _, u := range uses {
		if u.op.Outcome != OK {
			continue
		}
		note(u.key.Current, u.op.End)
		if u.key.Op == "get" && u.key.Found {
			note(u.key.Value, u.op.End)
		}
	}
	unseen := int64(never) // the first start of a write that nobody saw
	var out []porcupine.Operation
	for _, u := range uses {
		end := u.op.End
		switch {
		case u.op.Outcome == OK:
		case u.op.Outcome == Fail || u.key.Op == "get":
			continue
		case u.key.Op == "put":
			at, known := seen[u.key.Value]
			if !known {
				unseen = min(unseen, u.op.Start)
				continue
			}
			end = max(at, u.op.Start)
		default:
			end = never
		}
		out = append(out, porcupine.Operation{Input: u, Call: u.op.Start, Return: end})
	}
	for i := range out {
		if u := out[i].Input.(keyUse); u.key.Op == "delete" && unseen <= u.op.End {
			u.mayExist = true
			out[i].Input = u
		}
	}
	return out
}
