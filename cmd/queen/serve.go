package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/longpoll"
	"github.com/queenmq-go/queenmq/internal/node"
	"github.com/queenmq-go/queenmq/internal/obs"
)

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
	n, err := node.Open(ctx, cfg, buildVersion(), log)
	if err != nil {
		return err
	}
	defer n.Close()
	return listen(ctx, cfg, log, n.Handler(), ready, n.Drain)
}

// listen serves HTTP until ctx ends, then stops accepting and gives running
// requests the time they are promised.
func listen(ctx context.Context, cfg config.Config, log *slog.Logger, handler http.Handler, ready func(url string), drain func()) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(cfg.BindAddr, strconv.Itoa(cfg.Port)))
	if err != nil {
		return fmt.Errorf("open port: %w", err)
	}
	const idle = 2 * time.Minute
	waiting := longpoll.Listen(ln, idle)
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       idle,
		BaseContext:       waiting.BaseContext,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(waiting) }()
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
	if err := errors.Join(srv.Shutdown(limit), waiting.Wait(limit)); err != nil {
		_ = srv.Close()
		log.Warn("requests were cut off at shutdown", "error", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
