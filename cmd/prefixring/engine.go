package main

import (
	"fmt"
	"net"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

func engineCommand() *cli.Command {
	return &cli.Command{
		Name:      "engine",
		Usage:     "run a simulated engine",
		UsageText: "prefixring engine --listen 127.0.0.1:8000 --preset 70b-tp4 --speed 10",
		Description: "It speaks the HTTP of vLLM or SGLang, with a prefix cache, continuous batching and the times of\n" +
			"a modelled GPU divided by --speed. POST /fault scripts faults, GET /oracle tells its true counts.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:8000", Usage: "`ADDRESS` to serve on"},
			&cli.StringFlag{Name: "dialect", Value: "vllm", Usage: "vllm or sglang"},
			&cli.StringFlag{Name: "model", Value: "sim", Usage: "served model `NAME`"},
			&cli.StringFlag{Name: "preset", Value: "8b-tp1", Usage: "modelled hardware: 8b-tp1, 32b-tp2, 70b-tp4 or 70b-tp8 on H100"},
			&cli.Float64Flag{Name: "speed", Value: 1, Usage: "divide modelled times by this"},
			&cli.IntFlag{Name: "kv-tokens", Usage: "KV cache in tokens (default: the preset's)"},
			&cli.IntFlag{Name: "block-size", Usage: "KV block in tokens (default: 16)"},
			&cli.IntFlag{Name: "max-num-seqs", Usage: "requests in one batch (default: the preset's)"},
			&cli.IntFlag{Name: "queue-limit", Usage: "waiting requests before it refuses (default: none)"},
			&cli.BoolFlag{Name: "report-cached", Value: true, Usage: "report cached tokens in usage, as --enable-prompt-tokens-details does"},
			&cli.StringFlag{Name: "api-key", EnvVars: []string{"PREFIXRING_ENGINE_KEY"}, Usage: "require this `KEY`"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of its words and noise"},
		},
		Action: func(c *cli.Context) error {
			o := fakeengine.Options{
				Name: c.String("listen"), Model: c.String("model"), Preset: c.String("preset"), Speed: c.Float64("speed"),
				KVTokens: c.Int("kv-tokens"), BlockSize: c.Int("block-size"), MaxSeqs: c.Int("max-num-seqs"),
				QueueLimit: c.Int("queue-limit"), ReportCached: c.Bool("report-cached"), APIKey: c.String("api-key"),
				Seed: c.Uint64("seed"),
			}
			switch c.String("dialect") {
			case "vllm":
			case "sglang":
				o.Dialect = dialect.SGLang
			default:
				return usageError(fmt.Errorf("unknown --dialect %q; there are vllm and sglang", c.String("dialect")))
			}
			return runEngine(c, o)
		},
	}
}

func runEngine(c *cli.Context, o fakeengine.Options) error {
	e, err := fakeengine.New(o)
	if err != nil {
		return usageError(err)
	}
	ln, err := net.Listen("tcp", c.String("listen"))
	if err != nil {
		e.Close()
		return failed{exitUnreachable, fmt.Errorf("cannot listen on %s: %w", c.String("listen"), err)}
	}
	fmt.Fprintf(c.App.Writer, "simulated %s engine, model %q, %s at speed %g, on http://%s\n", o.Dialect, o.Model, o.Preset, o.Speed, ln.Addr())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ln) }()
	select {
	case <-c.Context.Done():
		err = e.Close()
		<-served
		return err
	case err = <-served:
		e.Close()
		return failed{exitUnreachable, err}
	}
}
