package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/prewarm"
)

func capacityCommand() *cli.Command {
	return &cli.Command{
		Name:  "capacity",
		Usage: "do these prefixes fit the fleet's KV memory, how many engines does a peak need, what moves when engines come or go",
		UsageText: "prefixring capacity --prefixes 24 --prefix-tokens 60000 --zipf 1 --rate 180 --nodes 256\n" +
			"prefixring capacity --manifest sale.yaml --rate 180 --nodes 256 --svg capacity.svg",
		Description: "Works on figures alone; no engine is asked. Without --nodes it sizes the fleet for the peak. The table ends with\n" +
			"what the model leaves out. Exits 1 when it does not fit.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "manifest", Aliases: []string{"m"}, Usage: "take names, tokens and shares of `FILE`, whose entries give tokens"},
			&cli.IntFlag{Name: "prefixes", Value: 24, Usage: "how many prefixes"},
			&cli.Int64Flag{Name: "prefix-tokens", Value: 60000, Usage: "length of each"},
			&cli.Float64Flag{Name: "zipf", Value: 1, Usage: "popularity exponent; 0 = all equally hot"},
			&cli.IntFlag{Name: "nodes", Usage: "engines", DefaultText: "as many as the peak needs"},
			&cli.StringFlag{Name: "preset", Value: prewarm.DefaultModel, Usage: "of the engines: 8b-tp1, 32b-tp2, 70b-tp4 or 70b-tp8 on H100"},
			&cli.Int64Flag{Name: "kv-tokens", Usage: "KV memory of one engine", DefaultText: "the preset's"},
			&cli.Int64Flag{Name: "block-size", Usage: "KV block in tokens", DefaultText: "16"},
			&cli.Float64Flag{Name: "rate", Usage: "requests per second at the peak, over all engines"},
			&cli.Int64Flag{Name: "user-tokens", Usage: "of the user's text", DefaultText: "200"},
			&cli.Int64Flag{Name: "output-tokens", Usage: "generated", DefaultText: "500"},
			&cli.Float64Flag{Name: "utilisation", Usage: "what the fleet is sized for", DefaultText: "0.7"},
			&cli.Float64Flag{Name: "headroom", Usage: "share of KV memory left to running requests", DefaultText: "0.25"},
			&cli.DurationFlag{Name: "touch", Usage: "keep-warm interval", DefaultText: "none"},
			&cli.IntFlag{Name: "join", Usage: "engines that join", DefaultText: "4"},
			&cli.IntFlag{Name: "leave", Usage: "engines that fail", DefaultText: "2"},
			&cli.StringFlag{Name: "svg", Usage: "write a plot to `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Action: runCapacity,
	}
}

func runCapacity(c *cli.Context) error {
	if c.Args().Present() {
		return usageError(fmt.Errorf("unknown argument %q", c.Args().First()))
	}
	model, err := prewarm.PresetByName(c.String("preset"))
	if err != nil {
		return usageError(err)
	}
	in := prewarm.CapacityInput{
		Count: c.Int("nodes"), Model: model, KVTokens: c.Int64("kv-tokens"), BlockSize: c.Int64("block-size"), Rate: c.Float64("rate"),
		User: c.Int64("user-tokens"), Output: c.Int64("output-tokens"), Utilisation: c.Float64("utilisation"), Headroom: c.Float64("headroom"),
		Touch: c.Duration("touch"), Join: c.Int("join"), Leave: c.Int("leave"),
	}
	if in.Prefixes, err = capacityPrefixes(c); err != nil {
		return usageError(err)
	}
	got, err := prewarm.NewCapacity(in)
	if err != nil {
		return usageError(err)
	}
	if path := c.String("svg"); path != "" {
		if err := plotCapacity(got, path); err != nil {
			return failed{exitNo, err}
		}
		fmt.Fprintf(c.App.ErrWriter, "written: %s\n", path)
	}
	if c.Bool("json") {
		err = writeJSON(c.App.Writer, got)
	} else {
		err = got.WriteTable(c.App.Writer)
	}
	if err != nil {
		return failed{exitNo, err}
	}
	if !got.Fits {
		return failed{exitNo, errors.New(got.Why)}
	}
	return nil
}

// capacityPrefixes are those of the manifest, or made from number and length. Nothing is
// asked here, so a manifest's entries must say how long they are.
func capacityPrefixes(c *cli.Context) ([]prewarm.CapacityPrefix, error) {
	path := c.String("manifest")
	if path == "" {
		n := c.Int("prefixes")
		if n < 1 || n > 1<<20 {
			return nil, fmt.Errorf("--prefixes must be within 1..%d, not %d", 1<<20, n)
		}
		return prewarm.ZipfPrefixes(n, c.Int64("prefix-tokens"), c.Float64("zipf")), nil
	}
	m, err := prewarm.LoadManifest(path)
	if err != nil {
		return nil, err
	}
	var out []prewarm.CapacityPrefix
	for _, e := range m.Prefixes {
		if e.Tokens == 0 {
			return nil, fmt.Errorf("%s:%d: prefix %s has no tokens; add them (prewarm plan counts them on the engines)", path, e.Line(), e.Name)
		}
		share := e.Share
		if share == 0 {
			share = e.Rate
		}
		out = append(out, prewarm.CapacityPrefix{Name: e.Name, Tokens: e.Tokens, Share: share})
	}
	return out, nil
}

func plotCapacity(got *prewarm.Capacity, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cannot write the plot: %w", err)
	}
	if err := errors.Join(got.WriteSVG(f), f.Close()); err != nil {
		return fmt.Errorf("cannot write the plot: %w", err)
	}
	return nil
}
