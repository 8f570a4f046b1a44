// Command prefixring stands in front of a fleet of vLLM and SGLang engines and sends
// every request to an engine that already holds its prompt prefix in KV cache.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/urfave/cli/v2"
)

// Exit codes, the same for all commands.
const (
	exitNo          = 1 // it ran, and the answer is no
	exitUsage       = 2 // wrong usage or configuration
	exitUnreachable = 3 // could not reach what it needed
)

// failed is an error with the exit code that it ends the process with.
type failed struct {
	code int
	err  error
}

func (f failed) Error() string { return f.err.Error() }
func (f failed) Unwrap() error { return f.err }

func usageError(err error) error { return failed{exitUsage, err} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newApp(os.Stdout, os.Stderr).RunContext(ctx, os.Args)
	stop()
	os.Exit(exitCode(err, os.Stderr))
}

// exitCode reports the error, if there is one, and maps it to a code. Errors that no
// command has classified come from the parsing of flags.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "prefixring:", err)
	if f := (failed{}); errors.As(err, &f) {
		return f.code
	}
	return exitUsage
}

// newApp assembles the commands. Nothing writes to a global stream, so that tests can
// run it whole.
func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:            "prefixring",
		Usage:           "route LLM requests to the engine that holds their prompt prefix in cache",
		Version:         version(),
		Writer:          stdout,
		ErrWriter:       stderr,
		Suggest:         true,
		HideHelpCommand: true,
		// A comma separates the parts of one --engine; the flag is given once per engine.
		DisableSliceFlagSeparator: true,
		// cli would end the process by itself; main does that, once.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return usageError(err) },
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError(fmt.Errorf("unknown command %q; prefixring --help lists the commands", c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
		Commands: commands(),
	}
}

// commands are all subcommands, in the order of --help.
func commands() []*cli.Command {
	list := []*cli.Command{
		serveCommand(), checkCommand(), explainCommand(), statusCommand(), prewarmCommand(), capacityCommand(), costCommand(), benchCommand(),
		engineCommand(), demoCommand(),
	}
	for _, c := range list {
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return usageError(err) }
	}
	return list
}

// version is the module version, the commit and the Go version.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit := "no commit"
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			commit = s.Value[:12]
		}
	}
	return fmt.Sprintf("%s (%s, %s)", b.Main.Version, commit, b.GoVersion)
}
