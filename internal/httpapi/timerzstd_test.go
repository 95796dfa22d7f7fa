package httpapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// TestUnpackIsBoundedByWhatComesOut: a stream does not know its length when it
// begins and asks for a window far larger than it needs.
func TestUnpackIsBoundedByWhatComesOut(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, window := range []int{zstd.MinWindowSize, 8 << 20, 128 << 20} {
		for _, n := range []int{0, 7, limit, limit + 1, 16 << 20} {
			var packed bytes.Buffer
			w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(window))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(bytes.Repeat([]byte{'x'}, n))
			_ = w.Flush() // or a short one is written with its length
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			text := jsontext.Value(`"` + base64.StdEncoding.EncodeToString(packed.Bytes()) + `"`)
			got, err := timerPayload(0, text, true, limit)
			var ref *mq.TimerRefusal
			if n <= limit && (err != nil || len(got) != n) || n > limit && (!errors.As(err, &ref) || ref.Code != mq.CodePayloadTooLarge) {
				t.Errorf("window %d, %d bytes: %d, %v", window, n, len(got), err)
			}
		}
	}
}
