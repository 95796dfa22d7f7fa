package node

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queenmq-go/queenmq/internal/broker"
	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/obs"
	"github.com/queenmq-go/queenmq/internal/pgstore"
	"github.com/queenmq-go/queenmq/internal/wake"
)

// How long hints gather. A notification costs the database a little, a message
// in Redis next to nothing.
const (
	redisTick  = 2 * time.Millisecond
	notifyTick = 10 * time.Millisecond
)

// relay breaks the circle between the broker, which sends hints, and the bus,
// which tells the broker of them.
type relay struct{ bus atomic.Pointer[wake.Bus] }

func (r *relay) Send(h mq.Hint) {
	if bus := r.bus.Load(); bus != nil {
		bus.Send(h)
	}
}

// start opens the ways hints travel: Redis when there is one (client is not
// nil), else notifications of the database. The latter are always heard, because
// queen.push tells of messages that way.
func (r *relay) start(ctx context.Context, loops *sync.WaitGroup, cfg config.Config, client redis.UniversalClient, log *slog.Logger, metrics *obs.Metrics, b *broker.Broker) (closeAll func()) {
	notifier := pgstore.NewNotifier(cfg.DatabaseURL)
	busConfig := wake.Config{Heard: b.Hinted, Missed: b.HintsLost, Metrics: metrics, Logger: log, Tick: notifyTick}
	bus := wake.New(notifier, busConfig)
	loops.Go(func() { bus.Run(ctx) })
	if client == nil {
		r.bus.Store(bus)
		return notifier.Close
	}
	busConfig.Tick = redisTick
	fast := wake.New(wake.NewRedis(client, cfg.RedisPrefix), busConfig)
	loops.Go(func() { fast.Run(ctx) })
	r.bus.Store(fast)
	return notifier.Close
}
