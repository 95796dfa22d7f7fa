package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
)

// payloads writes message payloads: a stamp the verifier reads back, then either padding or a line of a file.
type payloads struct {
	run    int64
	size   int
	filler []byte
	lines  [][]byte
}

// fillerBytes is how much padding there is to cut from.
const fillerBytes = 4 << 20

// maxLine bounds one line of --data.
const maxLine = 16 << 20

func newPayloads(run int64, size int, file string) (*payloads, error) {
	p := &payloads{run: run, size: size}
	if file != "" {
		lines, err := readLines(file)
		p.lines = lines
		return p, err
	}
	// Random text: a run of one letter would be compressed away by the storage and flatter it.
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
	// So would text that comes twice in a run of messages stored together: there is much more than those hold.
	p.filler = make([]byte, size+fillerBytes)
	for i := range p.filler {
		p.filler[i] = letters[rand.IntN(len(letters))]
	}
	return p, nil
}

func readLines(file string) ([][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open data: %w", err)
	}
	defer func() { _ = f.Close() }()
	var lines [][]byte
	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 64<<10), maxLine)
	for n := 1; in.Scan(); n++ {
		if len(in.Bytes()) == 0 {
			continue
		}
		if !json.Valid(in.Bytes()) {
			return nil, fmt.Errorf("data line %d: not JSON", n)
		}
		lines = append(lines, append([]byte(nil), in.Bytes()...))
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read data: %w", err)
	}
	if len(lines) == 0 {
		return nil, errors.New("data file holds no line")
	}
	return lines, nil
}

func (p *payloads) append(b []byte, lane, seq, at int64) []byte {
	start := len(b)
	b = append(b, `{"r":`...)
	b = strconv.AppendInt(b, p.run, 10)
	b = append(b, `,"l":`...)
	b = strconv.AppendInt(b, lane, 10)
	b = append(b, `,"s":`...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"t":`...)
	b = strconv.AppendInt(b, at, 10)
	if p.lines != nil {
		b = append(b, `,"d":`...)
		b = append(b, p.lines[(lane*31+seq)%int64(len(p.lines))]...)
		return append(b, '}')
	}
	const overhead = len(`,"x":""}`)
	if pad := p.size - (len(b) - start) - overhead; pad > 0 {
		from := int(uint64(lane*7919+seq*104729) % uint64(len(p.filler)-p.size))
		b = append(b, `,"x":"`...)
		b = append(b, p.filler[from:from+pad]...)
		b = append(b, '"')
	}
	return append(b, '}')
}
