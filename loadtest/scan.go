package main

import (
	"bytes"
	"errors"
	"fmt"
)

// The load generator shares the machine with the broker it measures, so an answer is walked once, left to
// right, and only the few values a check needs are taken out. The walk assumes well-formed JSON and reports
// anything it trips over; the fuzz test holds it against encoding/json.

var errScan = errors.New("scan answer")

// maxDepth is far above what the contract lets a payload nest.
const maxDepth = 10_000

type scanner struct {
	b []byte
	i int
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", errScan, what, s.i)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek returns the first byte of the next token, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.i >= len(s.b) {
		return 0
	}
	return s.b[s.i]
}

// str returns the bytes between the quotes as they stand on the wire. Every name the load generator compares
// is made of plain characters, so escapes need no decoding.
func (s *scanner) str() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("expected a string")
	}
	start := s.i + 1
	for j := start; ; {
		k := bytes.IndexByte(s.b[j:], '"')
		if k < 0 {
			return nil, s.fail("unterminated string")
		}
		end := j + k
		slashes := 0
		for end-1-slashes >= start && s.b[end-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			s.i = end + 1
			return s.b[start:end], nil
		}
		j = end + 1
	}
}

func (s *scanner) word() []byte {
	s.space()
	start := s.i
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ',', ']', '}', ' ', '\t', '\n', '\r', ':', '"', '[', '{':
			return s.b[start:s.i]
		}
		s.i++
	}
	return s.b[start:s.i]
}

// integer reads a whole number; ok is false, and the value skipped, when something else stands there.
func (s *scanner) integer() (n int64, ok bool, err error) {
	c := s.peek()
	if c != '-' && (c < '0' || c > '9') {
		return 0, false, s.skip(0)
	}
	w := s.word()
	negative := w[0] == '-'
	digits := w
	if negative {
		digits = w[1:]
	}
	if len(digits) == 0 || len(digits) > 18 {
		return 0, false, nil
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false, nil
		}
		n = n*10 + int64(d-'0')
	}
	if negative {
		n = -n
	}
	return n, true, nil
}

func (s *scanner) boolean() (bool, error) {
	switch c := s.peek(); c {
	case 't', 'f':
		return string(s.word()) == "true", nil
	default:
		return false, s.skip(0)
	}
}

func (s *scanner) skip(depth int) error {
	if depth > maxDepth {
		return s.fail("nested too deep")
	}
	switch s.peek() {
	case '"':
		_, err := s.str()
		return err
	case '{':
		return s.object(func([]byte) error { return s.skip(depth + 1) })
	case '[':
		return s.array(func(int) error { return s.skip(depth + 1) })
	default:
		if len(s.word()) == 0 {
			return s.fail("expected a value")
		}
		return nil
	}
}

// object calls each with every key; each must consume the value.
func (s *scanner) object(each func(key []byte) error) error {
	if s.peek() != '{' {
		return s.fail("expected an object")
	}
	s.i++
	if s.peek() == '}' {
		s.i++
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if s.peek() != ':' {
			return s.fail("expected a colon")
		}
		s.i++
		if err := each(key); err != nil {
			return err
		}
		if done, err := s.next('}'); done || err != nil {
			return err
		}
	}
}

// array calls each with every index; each must consume the value.
func (s *scanner) array(each func(index int) error) error {
	if s.peek() != '[' {
		return s.fail("expected an array")
	}
	s.i++
	if s.peek() == ']' {
		s.i++
		return nil
	}
	for n := 0; ; n++ {
		if err := each(n); err != nil {
			return err
		}
		if done, err := s.next(']'); done || err != nil {
			return err
		}
	}
}

func (s *scanner) next(closing byte) (done bool, err error) {
	switch s.peek() {
	case ',':
		s.i++
		return false, nil
	case closing:
		s.i++
		return true, nil
	default:
		return false, s.fail("expected a comma or an end")
	}
}

func (s *scanner) end() error {
	if s.peek() != 0 || s.i < len(s.b) {
		return s.fail("text after the answer")
	}
	return nil
}
