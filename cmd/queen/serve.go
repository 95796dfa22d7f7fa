package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/obs"
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
	metrics := obs.NewMetrics(prometheus.NewRegistry())
	pool, err := connect(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer pool.Close()
	metrics.SetPool(func() (size, idle, active int) {
		s := pool.Stat()
		return int(s.TotalConns()), int(s.IdleConns()), int(s.AcquiredConns())
	})
	schema, err := migrate.Check(ctx, pool)
	if err != nil {
		return err
	}
	log.Info("database is ready", "schema", schema)
	return run(ctx, cfg, log, metrics, pool, ready)
}

// connect opens the pool and waits for a first answer.
func connect(ctx context.Context, cfg config.Config, log *slog.Logger) (*pgxpool.Pool, error) {
	poolCfg, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	poolCfg.MaxConns = int32(cfg.PoolSize)
	poolCfg.ConnConfig.ConnectTimeout = 5 * time.Second
	poolCfg.ConnConfig.RuntimeParams["application_name"] = "queen " + cfg.ServerID
	pool, err := pgxpool.NewWithConfig(ctx, poolCfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if err := awaitDatabase(ctx, pool.Ping, log); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	return pool, nil
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
func run(ctx context.Context, cfg config.Config, log *slog.Logger, metrics *obs.Metrics, pool *pgxpool.Pool, ready func(url string)) error {
	_ = pool
	mux := http.NewServeMux()
	mux.Handle("GET /metrics/prometheus", metrics.Handler())
	return listen(ctx, cfg, log, mux, ready)
}

// listen serves HTTP until ctx ends, then stops accepting and gives running
// requests the time they are promised.
func listen(ctx context.Context, cfg config.Config, log *slog.Logger, handler http.Handler, ready func(url string)) error {
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
	if err := srv.Shutdown(limit); err != nil {
		_ = srv.Close()
		log.Warn("requests were cut off at shutdown", "error", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
