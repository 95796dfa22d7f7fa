package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/broker"
	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/httpapi"
	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/obs"
	"github.com/queenmq-go/queenmq/internal/pgstore"
	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

// firstConnection is how long a broker waits for a database that is still
// starting, as in a compose file without health checks.
const firstConnection = 60 * time.Second

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker",
		Long: "Run a broker on a database that `queen migrate up` has prepared.\n" +
			"Every setting is a flag and, in brackets, an environment variable.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log := obs.NewLogger(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogJSON)
			return serve(cmd.Context(), cfg, log, func(string) {})
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// serve runs a broker until ctx ends, then lets it finish what it has. ready
// is called once with the address when it answers requests.
func serve(ctx context.Context, cfg config.Config, log *slog.Logger, ready func(url string)) error {
	log.LogAttrs(ctx, slog.LevelInfo, "configuration", cfg.Effective()...)
	if len(cfg.Ignored) > 0 {
		log.Warn("variables without a meaning here are ignored", "names", cfg.Ignored)
	}
	store, err := pgstore.Open(ctx, pgstore.Config{
		URL: cfg.DatabaseURL, PoolSize: cfg.PoolSize, StmtTimeout: cfg.StatementTimeout, AppName: "queen " + cfg.ServerID,
	})
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer store.Close()
	if err := awaitDatabase(ctx, store.Ping, log); err != nil {
		return fmt.Errorf("connect to database: %w", err)
	}
	if err := checkSchema(ctx, cfg, log); err != nil {
		return err
	}
	return run(ctx, cfg, log, store, ready)
}

// checkSchema refuses a schema this broker does not know. It never changes it:
// that is the job of queen migrate.
func checkSchema(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	c, err := pgx.Connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return fmt.Errorf("connect to check the schema: %w", err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	schema, err := migrate.Check(ctx, c)
	if err != nil {
		return err
	}
	log.Info("database is ready", "schema", schema)
	return nil
}

func awaitDatabase(ctx context.Context, ping func(context.Context) error, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, firstConnection)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := ping(ctx)
		if err == nil || !mayPass(err) {
			return err
		}
		log.Warn("database does not answer yet", "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// mayPass tells a server that is still starting from one that has answered
// and will answer the same a minute later: a wrong password, no such database.
func mayPass(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return true
	}
	return !strings.HasPrefix(pgErr.Code, "28") && !strings.HasPrefix(pgErr.Code, "3D")
}

// run builds the parts of a broker, plugs them together, and takes them apart
// in reverse order.
func run(ctx context.Context, cfg config.Config, log *slog.Logger, store *pgstore.Store, ready func(url string)) error {
	limitMemory()
	metrics := obs.NewMetrics(prometheus.NewRegistry())
	metrics.SetPool(store.Stat)

	hints := &relay{}
	b := broker.New(store, hints, metrics, brokerConfig(cfg, log))
	metrics.SetParked(b.Parked)

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	closeHints, err := hints.start(background, &loops, cfg, log, metrics, b)
	if err != nil {
		return err
	}
	defer closeHints()

	var draining atomic.Bool
	handler := httpapi.New(b, httpapi.Options{
		MaxBodyBytes: cfg.MaxBodyBytes, MaxInflightBytes: cfg.MaxInflight, DefaultTimeout: cfg.PopTimeout,
		DefaultStart: startMode(cfg), Version: buildVersion(), Logger: log, Metrics: metrics,
		MetricsHandler: metrics.Handler(), Draining: draining.Load,
	})
	return listen(ctx, cfg, log, handler, ready, func() {
		draining.Store(true)
		b.Drain()
	})
}

// softMemory is where the garbage collector starts to work harder. A broker
// holds requests and caches, so a few hundred megabytes are plenty.
const softMemory = 200 << 20

func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemory)
	}
}

func brokerConfig(cfg config.Config, log *slog.Logger) broker.Config {
	return broker.Config{
		CacheTTL: cfg.CacheRefresh, FetchSafeFloor: cfg.FetchSafeFloor,
		RecheckInterval: cfg.PopWait.InitialInterval, RecheckMax: cfg.PopWait.MaxInterval,
		RecheckThreshold: cfg.PopWait.BackoffThreshold, RecheckFactor: cfg.PopWait.Multiplier, Logger: log,
	}
}

func startMode(cfg config.Config) mq.StartMode {
	if cfg.SubscriptionMode == config.SubscribeAll {
		return mq.StartAll
	}
	return mq.StartNew
}

// listen serves HTTP until ctx ends, then stops accepting and gives running
// requests the time they are promised.
func listen(ctx context.Context, cfg config.Config, log *slog.Logger, handler http.Handler, ready func(url string), drain func()) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(cfg.BindAddr, strconv.Itoa(cfg.Port)))
	if err != nil {
		return fmt.Errorf("open port: %w", err)
	}
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	port := ln.Addr().(*net.TCPAddr).Port
	url := "http://" + net.JoinHostPort(reachable(cfg.BindAddr), strconv.Itoa(port))
	log.Info("broker is listening", "url", url, "version", buildVersion())
	ready(url)

	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping", "reason", context.Cause(ctx))
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.ShutdownLimit)
	defer cancel()
	// Parked pops are answered while Shutdown waits for them.
	go drain()
	if err := srv.Shutdown(limit); err != nil {
		_ = srv.Close()
		log.Warn("requests were cut off at shutdown", "error", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
