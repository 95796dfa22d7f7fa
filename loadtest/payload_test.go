package main

import (
	"bytes"
	"compress/flate"
	"testing"
)

// What is stored together must not hold the same padding twice, or the database would compress it away.
func TestPaddingDoesNotRepeat(t *testing.T) {
	t.Parallel()
	p, err := newPayloads(1, 256, "")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int64{}
	var all []byte
	for seq := range int64(1000) {
		b := p.append(nil, 7, seq, 0)
		if len(b) != 256 {
			t.Fatalf("%d bytes", len(b))
		}
		all = append(all, b...)
		_, padding, _ := bytes.Cut(b, []byte(`"x":"`))
		for i := 0; i+8 <= len(padding)-2; i++ {
			if at, found := seen[string(padding[i:i+8])]; found && at != seq {
				t.Fatalf("messages %d and %d share padding", at, seq)
			}
			seen[string(padding[i:i+8])] = seq
		}
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(all)
	_ = w.Close()
	// Six bits a letter is what there is in it; the rest is the stamp and the quotes.
	if share := float64(out.Len()) / float64(len(all)); share < 0.55 {
		t.Errorf("compressed to %.2f", share)
	}
}
