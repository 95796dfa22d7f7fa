package broker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/singleflight"
)

func TestAHerdAsksOnce(t *testing.T) {
	t.Parallel()
	var g singleflight.Group
	asked := make(chan struct{}, 100)
	answer := make(chan int)
	look := func(ctx context.Context) (int, error) {
		asked <- struct{}{}
		select {
		case n := <-answer:
			return n, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	first, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := together(first, &g, "k", look); !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller, who left, got %v", err)
		}
	})
	<-asked
	for range 50 {
		wg.Go(func() {
			n, err := together(t.Context(), &g, "k", look)
			if err != nil || n != 7 {
				t.Errorf("%d %v", n, err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	leave() // takes the look-up with it for nobody else
	answer <- 7
	wg.Wait()
	if len(asked) != 0 {
		t.Errorf("%d more look-ups", len(asked))
	}
	if n, err := together(t.Context(), &g, "k", func(context.Context) (int, error) { return 8, nil }); n != 8 || err != nil {
		t.Errorf("the next one got %d %v", n, err)
	}
}
