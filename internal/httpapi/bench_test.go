package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
)

// payload256 is a JSON object of 256 bytes.
var payload256 = `{"id":12345,"text":"` + strings.Repeat("x", 256-22) + `"}`

func BenchmarkDecodePush100(b *testing.B) {
	var body strings.Builder
	body.WriteString(`{"items":[`)
	for i := range 100 {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"queue":"shop.orders","partition":"cust-17","transactionId":"order-%d-created","payload":%s}`, i, payload256)
	}
	body.WriteString(`]}`)
	data := []byte(body.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if items, err := decodePush(data); err != nil || len(items) != 100 {
			b.Fatal(len(items), err)
		}
	}
}

func BenchmarkEncodePop100(b *testing.B) {
	objects := make([]string, 100)
	for i := range objects {
		objects[i] = stored(byte(i), fmt.Sprintf("order-%d-created", i), payload256)
	}
	d := &mq.Delivery{LeaseID: mq.UUID{1}, Claims: []mq.Claim{{
		Queue: "shop.orders", Partition: "cust-17", Attempt: 1, Segments: []mq.Segment{segmentOf(0, time.Now(), objects...)},
	}}}
	p := &mq.Pop{Queue: "shop.orders", Group: "billing"}
	buf := getBuffer()
	buf.b = appendDelivery(buf.b[:0], p, d)
	b.SetBytes(int64(len(buf.b)))
	b.ReportAllocs()
	for b.Loop() {
		buf.b = appendDelivery(buf.b[:0], p, d)
	}
}

func BenchmarkDecodeAckBatch100(b *testing.B) {
	var body strings.Builder
	body.WriteString(`{"consumerGroup":"billing","acknowledgments":[`)
	for i := range 100 {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"transactionId":"order-%d-created","partitionId":"%s","leaseId":"%s","status":"completed"}`, i, mq.UUID{1}, mq.UUID{2})
	}
	body.WriteString(`]}`)
	data := []byte(body.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var a mq.Ack
		if err := decode(data, func(d *decoder) error { return decodeAckBatch(d, &a) }); err != nil || len(a.Items) != 100 {
			b.Fatal(err)
		}
	}
}

// BenchmarkRoute is what the router and the wrapping cost a small request.
func BenchmarkRoute(b *testing.B) {
	var got mq.Push
	h := New(queued(&got), Options{})
	for _, path := range []string{"/api/v1/push", "/api/v1/ack", "/readyz/none"} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call(h, "POST", path, `{`)
			}
		})
	}
}
