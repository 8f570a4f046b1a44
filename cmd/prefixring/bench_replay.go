package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/bench"
)

func benchReplayCommand() *cli.Command {
	return &cli.Command{
		Name:      "replay",
		Usage:     "play a trace against an endpoint",
		ArgsUsage: "TRACE...",
		UsageText: "prefixring bench replay --url http://127.0.0.1:8080 --model llama --format mooncake --jitter 3s trace.jsonl.gz\n" +
			"prefixring bench replay --url http://127.0.0.1:8080 --model llama --format claude conversations/*.json",
		Description: "Equal blocks of the trace become equal text, so the endpoint can share prefixes as the trace did. Files that end\n" +
			"in .gz are unpacked. azure traces hold no prefixes: a control in which no cache can help.",
		Flags: append(endpointFlags(), traceFlags()...),
		Action: func(c *cli.Context) error {
			t, err := readTrace(c)
			if err != nil {
				return err
			}
			o, err := endpointOptions(c, "replay")
			if err != nil {
				return err
			}
			res, err := bench.Replay(c.Context, o, t, replayOptions(c))
			return benchOutcome(c, &res, err)
		},
	}
}

// traceFlags say how a trace is read and shaped.
func traceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "format", Value: "mooncake", Usage: "of the trace: mooncake, azure or claude (one conversation per file)"},
		&cli.IntFlag{Name: "system-blocks", Value: 2, Usage: "mooncake: leading blocks that are the system message"},
		&cli.Float64Flag{Name: "speed", Value: 1, Usage: "2 plays twice as fast"},
		&cli.DurationFlag{Name: "jitter", Usage: "moves each request later by up to that much (mooncake times sit on 3 s ticks)"},
		&cli.IntFlag{Name: "max-input", Usage: "cut prompts to `N` tokens"},
		&cli.IntFlag{Name: "max-output", Usage: "cut answers to `N` tokens"},
		&cli.IntFlag{Name: "limit", Usage: "play the first `N` requests only"},
	}
}

func replayOptions(c *cli.Context) bench.ReplayOptions {
	return bench.ReplayOptions{
		Speed: c.Float64("speed"), Jitter: c.Duration("jitter"), MaxInput: c.Int("max-input"), MaxOutput: c.Int("max-output"),
		Limit: c.Int("limit"), Seed: c.Uint64("seed"),
	}
}

// readTrace reads the files that are the arguments.
func readTrace(c *cli.Context) (*bench.Trace, error) {
	files, format := c.Args().Slice(), c.String("format")
	switch {
	case len(files) == 0:
		return nil, usageError(errors.New("no trace: name its file"))
	case format == "claude":
		t, err := readClaude(files, c.Uint64("seed"))
		if err != nil {
			return nil, usageError(err)
		}
		return t, nil
	case len(files) > 1:
		return nil, usageError(fmt.Errorf("a %s trace is one file, not %d; flags go before it", format, len(files)))
	}
	f, err := openInput(files[0])
	if err != nil {
		return nil, usageError(err)
	}
	defer f.Close()
	var t *bench.Trace
	switch format {
	case "mooncake":
		t, err = bench.ReadMooncake(f, c.Int("system-blocks"))
	case "azure":
		t, err = bench.ReadAzure(f)
	default:
		err = fmt.Errorf("unknown --format %q; there are mooncake, azure and claude", format)
	}
	if err != nil {
		return nil, usageError(fmt.Errorf("%s: %w", files[0], err))
	}
	return t, nil
}

func readClaude(files []string, seed uint64) (*bench.Trace, error) {
	all := bench.NewClaudeTraces(bench.ClaudeOptions{Every: 5 * time.Second, Seed: seed})
	for _, name := range files {
		f, err := openInput(name)
		if err != nil {
			return nil, err
		}
		err = all.Add(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all.Trace()
}

// input is a file, unpacked on the way when it ends in .gz.
type input struct {
	io.Reader
	file *os.File
}

func (i *input) Close() error { return i.file.Close() }

func openInput(path string) (*input, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(path, ".gz") {
		return &input{f, f}, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot unpack %s: %w", path, err)
	}
	return &input{z, f}, nil
}
