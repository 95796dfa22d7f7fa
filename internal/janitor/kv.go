package janitor

import (
	"context"
	"time"
)

// pruneKV removes rows of the key/value store whose time is over, until none is
// left or half of the interval is. Nobody waits for it: an expired row counts as
// absent before it is gone.
func (j *Janitor) pruneKV(ctx context.Context, t *tenure) error {
	end := time.Now().Add(j.cfg.KVInterval / 2)
	for {
		n, err := j.store.PruneKV(ctx, j.cfg.BatchSize)
		if err != nil || n < j.cfg.BatchSize || !time.Now().Before(end) {
			return err
		}
		if ok, err := t.hold(ctx); !ok {
			return lost(err)
		}
	}
}
