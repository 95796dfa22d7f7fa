package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/devdb"
	"github.com/queenmq-go/queenmq/internal/obs"
	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

// errDatabaseEnded is why the broker stops when its database does.
var errDatabaseEnded = errors.New("the private PostgreSQL ended; its log is postgres.log in the data folder")

func newDev() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker with a PostgreSQL of its own",
		Long: "Run a broker for development. It brings a PostgreSQL of its own, keeps the data\n" +
			"between runs, and listens on this machine only. Ephemeral queues are in its memory\n" +
			"and end with it. With DATABASE_URL set it uses that database instead, and with\n" +
			"REDIS_URL that Redis.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Earlier entries give way to later ones, so this is a default.
			environ := append([]string{"HOST=127.0.0.1"}, config.Environment()...)
			cfg, err := config.Load(environ, cmd.Flags())
			if err != nil {
				return err
			}
			log := obs.NewLogger(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogJSON)
			return dev(cmd.Context(), cfg, dataDir, log, func(url string) {
				fmt.Fprint(cmd.OutOrStdout(), firstSteps(url))
			})
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "folder for the data (default ~/.queen/dev)")
	return cmd
}

// dev starts what is missing, migrates, serves, and stops what it started.
func dev(ctx context.Context, cfg config.Config, dataDir string, log *slog.Logger, ready func(url string)) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !cfg.DatabaseGiven {
		db, startErr := startDatabase(ctx, dataDir, log)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, stopped(db.Stop)) }()
		cfg.DatabaseURL = db.URL()
		go func() {
			select {
			case <-db.Done():
				cancel(errDatabaseEnded)
			case <-ctx.Done():
			}
		}()
	}
	if cfg.RedisURL == "" {
		redis, startErr := devdb.StartMiniRedis()
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, stopped(redis.Stop)) }()
		cfg.RedisURL = redis.URL()
	}
	if _, err := migrate.Up(ctx, cfg.DatabaseURL); err != nil {
		return err
	}
	if err := serve(ctx, cfg, log, ready); err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errDatabaseEnded) {
		return cause
	}
	return nil
}

func startDatabase(ctx context.Context, dir string, log *slog.Logger) (*devdb.Server, error) {
	if dir == "" {
		var err error
		if dir, err = devdb.DefaultDir(); err != nil {
			return nil, err
		}
	}
	db, err := devdb.Start(ctx, devdb.Options{Dir: dir, Persist: true, Logger: log})
	if err != nil {
		return nil, err
	}
	log.Info("private PostgreSQL is running", "dir", db.Dir(), "url", db.URL())
	return db, nil
}

// stopLimit bounds the stop of each part.
const stopLimit = 20 * time.Second

// stopped stops a part when ctx, the signal's, is long over.
func stopped(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return stop(ctx)
}
