package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/pgstore/inspect"
)

// checkTimeout bounds the whole command: a check that hangs says nothing.
const checkTimeout = 15 * time.Second

var errCheckFailed = errors.New("check failed")

func newCheck() *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration, the database and Redis",
		Long: "Check the configuration, the database and Redis before a broker starts, and exit\n" +
			"with 0 or 1. Warnings do not count as failures. With --ready, ask the broker on\n" +
			"this machine whether it is ready instead: a probe for images without curl.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			if ready {
				return askReady(ctx, cfg)
			}
			return report(cmd.OutOrStdout(), checkAll(ctx, cfg))
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&ready, "ready", false, "ask the local broker whether it is ready, and check nothing else")
	return cmd
}

func checkAll(ctx context.Context, cfg config.Config) []inspect.Finding {
	findings := []inspect.Finding{{Subject: "configuration", Level: inspect.OK, Detail: "valid"}}
	findings = append(findings, checkPostgres(ctx, cfg)...)
	return append(findings, checkRedis(ctx, cfg)...)
}

func checkPostgres(ctx context.Context, cfg config.Config) []inspect.Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout*2/3) // leave some for Redis
	defer cancel()
	conn, err := pgx.Connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return []inspect.Finding{{Subject: "postgres", Level: inspect.Fail, Detail: err.Error()}}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	findings := []inspect.Finding{{Subject: "postgres", Level: inspect.OK, Detail: config.MaskURL(cfg.DatabaseURL)}}
	second, err := pgx.Connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return append(findings, inspect.Finding{Subject: "postgres", Level: inspect.Fail, Detail: "a second connection: " + err.Error()})
	}
	defer second.Close(context.WithoutCancel(ctx))
	if pooler, found := inspect.Pooler(ctx, conn, second); found {
		findings = append(findings, pooler)
	}
	return append(findings, inspect.Run(ctx, conn, cfg.PoolSize)...)
}

func report(w io.Writer, findings []inspect.Finding) error {
	failed := 0
	err := table(w, func(w io.Writer) {
		fmt.Fprintln(w, "CHECK\tRESULT\tDETAIL")
		for _, f := range findings {
			fmt.Fprintf(w, "%s\t%s\t%s\n", f.Subject, f.Level, f.Detail)
			if f.Level == inspect.Fail {
				failed++
			}
		}
	})
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d", errCheckFailed, failed, len(findings))
	}
	return err
}

func askReady(ctx context.Context, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	url := "http://" + net.JoinHostPort(reachable(cfg.BindAddr), strconv.Itoa(cfg.Port)) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s answers %s", errCheckFailed, url, resp.Status)
	}
	return nil
}

// reachable turns "listen everywhere" into an address one can connect to.
func reachable(bind string) string {
	if ip := net.ParseIP(bind); ip != nil && ip.IsUnspecified() {
		return "localhost"
	}
	return bind
}
