package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

//go:embed sample.ndjson
var sample []byte

// delivery is one line of the file.
type delivery struct {
	Line       int
	Event      string          `json:"event"`
	Action     string          `json:"action"`
	Repository string          `json:"repository"`
	Payload    json.RawMessage `json:"payload"` // exactly the bytes on the line
	id         string
}

// maxLine bounds one delivery; GitHub caps webhooks at 25 MB.
const maxLine = 25 << 20

// open returns the named file, or the sample that comes with the example.
func open(file string) (io.ReadCloser, error) {
	if file == "" {
		return io.NopCloser(bytes.NewReader(sample)), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open deliveries: %w", err)
	}
	return f, nil
}

func readDeliveries(r io.Reader) ([]delivery, error) {
	var out []delivery
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), maxLine)
	for n := 1; in.Scan(); n++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		d := delivery{Line: n}
		if err := json.Unmarshal(in.Bytes(), &d); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if d.Event == "" || d.Repository == "" || d.Payload == nil {
			return nil, fmt.Errorf("line %d: event, repository and payload are needed", n)
		}
		// The number is part of the id because two deliveries may be equal to the byte and still both count. The
		// same file pushed again has the same ids, so the broker stores nothing twice.
		sum := sha256.Sum256(append(strconv.AppendInt(nil, int64(n), 10), in.Bytes()...))
		d.id = hex.EncodeToString(sum[:16])
		out = append(out, d)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("no deliveries in the file")
	}
	return out, nil
}

func (d *delivery) queue() string { return "github." + d.Event }
