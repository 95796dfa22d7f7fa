package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/queenmq-go/queenmq/internal/pgstore/migrate"
)

// version is set by the release build: -ldflags "-X main.version=1.2.3".
var version = ""

// buildVersion falls back to what the Go toolchain recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := migrate.Latest()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "queen %s, schema %d, %s %s/%s\n",
				buildVersion(), schema, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
