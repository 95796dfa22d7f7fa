package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/config"
	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of the database up to date",
		Long: "Bring the schema of the database up to date. A broker never does that by itself.\n" +
			"Any number of these may run at once: each step is applied once.",
	}
	config.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(
		&cobra.Command{Use: "up", Short: "Apply all pending steps", Args: cobra.NoArgs, RunE: migrateUp},
		&cobra.Command{Use: "status", Short: "List the steps and when they were applied", Args: cobra.NoArgs, RunE: migrateStatus},
		&cobra.Command{Use: "down", Short: "Take back the newest step", Args: cobra.NoArgs, RunE: migrateDown},
	)
	return cmd
}

func migrateUp(cmd *cobra.Command, _ []string) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	applied, err := migrate.Up(cmd.Context(), cfg.DatabaseURL)
	// What was applied before a failure stays applied, so it is told either way.
	for _, name := range applied {
		fmt.Fprintln(cmd.OutOrStdout(), "applied", name)
	}
	if err == nil && len(applied) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing to apply")
	}
	return err
}

func migrateDown(cmd *cobra.Command, _ []string) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	name, err := migrate.Down(cmd.Context(), cfg.DatabaseURL)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "took back", name)
	return nil
}

func migrateStatus(cmd *cobra.Command, _ []string) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	steps, err := migrate.Status(cmd.Context(), cfg.DatabaseURL)
	if err != nil {
		return err
	}
	return table(cmd.OutOrStdout(), func(w io.Writer) {
		fmt.Fprintln(w, "STEP\tAPPLIED")
		for _, s := range steps {
			at := "pending"
			if !s.Pending() {
				at = s.AppliedAt.Format(time.DateTime)
			}
			fmt.Fprintf(w, "%s\t%s\n", s.Name, at)
		}
	})
}

// loadConfig reads the environment and the command's flags.
func loadConfig(cmd *cobra.Command) (config.Config, error) {
	return config.Load(config.Environment(), cmd.Flags())
}

// table aligns the tab-separated columns that fill writes.
func table(w io.Writer, fill func(io.Writer)) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fill(tw)
	return tw.Flush()
}
