// Command queen is the broker and the tools around it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal asks for an orderly end. The second one, which finds
	// the default handler again, ends the process at once.
	context.AfterFunc(ctx, stop)
	defer stop()

	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "queen:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "queen",
		Short: "A message broker on PostgreSQL",
		Long: "A message broker on PostgreSQL. `queen dev` runs one with a database of its own;\n" +
			"`queen migrate up` and `queen serve` run one on yours.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServe(), newDev(), newMigrate(), newCheck(), newVersion())
	return root
}
