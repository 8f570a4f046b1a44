package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/shopspring/decimal"
	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/cost"
)

func costCommand() *cli.Command {
	return &cli.Command{
		Name:        "cost",
		Usage:       "what a prefix cache saves, estimated from figures",
		UsageText:   "prefixring cost estimate --preset sale-day",
		Subcommands: []*cli.Command{estimateCommand()},
	}
}

func estimateCommand() *cli.Command {
	return &cli.Command{
		Name:  "estimate",
		Usage: "estimated cost with and without cache, by the closed formula",
		UsageText: "prefixring cost estimate --preset sale-day\n" +
			"prefixring cost estimate --requests 1000000 --prefix 60000 --user 200 --output 500 --hit-rate 0.95 \\\n" +
			"    --price-input 2 --price-cache-read 0.2 --price-output 6 --currency USD\n" +
			"prefixring cost estimate --preset sale-day --break-even 1000000",
		Description: "Token counts are per request, prices per million tokens, amounts exact decimals. Flags override those\n" +
			"of a preset. --break-even asks from which hit rate on the saving reaches an amount, such as the price of\n" +
			"a second fleet for the same period; it exits 1 when no hit rate does.\n\n" + cost.Formula,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "preset", Usage: "start from `NAME`: " + strings.Join(cost.PresetNames(), " or ")},
			&cli.Int64Flag{Name: "requests", Usage: "how many requests"},
			&cli.Int64Flag{Name: "prefix", Usage: "tokens of the shared static prefix"},
			&cli.Int64Flag{Name: "user", Usage: "prompt tokens that are never cached"},
			&cli.Int64Flag{Name: "written", Usage: "prompt tokens newly written to the cache in each request"},
			&cli.Int64Flag{Name: "output", Usage: "generated tokens"},
			&cli.StringFlag{Name: "hit-rate", Usage: "`SHARE` of the prefix's tokens that are read from cache, 0..1"},
			&cli.StringFlag{Name: "price-input", Usage: "`AMOUNT` per million prompt tokens"},
			&cli.StringFlag{Name: "price-cache-read", Usage: "`AMOUNT` per million cached tokens (default: the input price)"},
			&cli.StringFlag{Name: "price-cache-write", Usage: "`AMOUNT` per million tokens written to the cache (default: the input price)"},
			&cli.StringFlag{Name: "price-output", Usage: "`AMOUNT` per million generated tokens"},
			&cli.StringFlag{Name: "currency", Usage: "`CODE` of three capital letters; required without a preset"},
			&cli.StringFlag{Name: "price-source", Usage: "where the prices are from, printed with the estimate (default: the command line)"},
			&cli.StringFlag{Name: "break-even", Usage: "from which hit rate on is `AMOUNT` saved?"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError(fmt.Errorf("cost estimate takes no argument %q", c.Args().First()))
			}
			in, err := estimateInputs(c)
			if err != nil {
				return usageError(err)
			}
			if c.IsSet("break-even") {
				return breakEven(c, in)
			}
			e, err := in.Run()
			if err != nil {
				return usageError(err)
			}
			if c.Bool("json") {
				return writeJSON(c.App.Writer, newEstimateView(&e))
			}
			return printEstimate(c.App.Writer, &e)
		},
	}
}

// estimateInputs are the preset's inputs, if one is asked for, under the flags.
func estimateInputs(c *cli.Context) (*cost.Inputs, error) {
	var in cost.Inputs
	preset := c.String("preset")
	if preset != "" {
		var ok bool
		if in, ok = cost.Preset(preset); !ok {
			return nil, fmt.Errorf("unknown --preset %q; there are %s", preset, strings.Join(cost.PresetNames(), " and "))
		}
	} else {
		for _, name := range []string{"requests", "price-input", "price-output", "currency"} {
			if !c.IsSet(name) {
				return nil, fmt.Errorf("--%s is missing; --preset brings all inputs", name)
			}
		}
		if !c.IsSet("hit-rate") && !c.IsSet("break-even") {
			return nil, errors.New("--hit-rate is missing; --break-even asks for one")
		}
	}
	for name, to := range map[string]*int64{
		"requests": &in.Requests, "prefix": &in.Prefix, "user": &in.User, "written": &in.Written, "output": &in.Output,
	} {
		if c.IsSet(name) {
			*to = c.Int64(name)
		}
	}
	if c.IsSet("hit-rate") {
		in.HitRate = c.String("hit-rate")
	}
	return &in, estimatePrice(c, &in.Price, preset == "")
}

// estimatePrice sets the prices that flags give. A new price list without a price for
// cached tokens claims no saving for them.
func estimatePrice(c *cli.Context, p *cost.Price, fresh bool) error {
	given := false
	set := func(name string, def decimal.Decimal, to ...*decimal.Decimal) error {
		if !c.IsSet(name) {
			if fresh {
				*to[0] = def
			}
			return nil
		}
		given = true
		d, err := cost.ParseAmount(c.String(name))
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		for _, t := range to {
			*t = d
		}
		return nil
	}
	if err := errors.Join(
		set("price-input", decimal.Zero, &p.Input), set("price-cache-read", p.Input, &p.CacheRead),
		set("price-cache-write", p.Input, &p.Write5m, &p.Write1h), set("price-output", decimal.Zero, &p.Output, &p.Reasoning),
	); err != nil {
		return err
	}
	if given {
		p.Source = "given on the command line"
	}
	if s := c.String("price-source"); s != "" {
		p.Source = s
	}
	if s := c.String("currency"); c.IsSet("currency") {
		if len(s) != 3 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			return fmt.Errorf("--currency %q is not three capital letters", s)
		}
		if !given && s != p.Currency {
			return fmt.Errorf("--currency %s: the preset's prices are in %s; give prices, too", s, p.Currency)
		}
		p.Currency = s
	}
	return nil
}

// estimateView is the estimate as JSON: amounts are exact decimal strings, the percentage
// is rounded to one place and a number.
type estimateView struct {
	WithoutCache  string      `json:"without_cache"`
	WithCache     string      `json:"with_cache"`
	Saving        string      `json:"saving"`
	SavingPercent json.Number `json:"saving_percent"`
	Currency      string      `json:"currency"`
	HitRate       string      `json:"hit_rate"`
	PriceSource   string      `json:"price_source"`
	Formula       string      `json:"formula"`
}

func newEstimateView(e *cost.Estimate) estimateView {
	return estimateView{
		WithoutCache: e.WithoutCache.String(), WithCache: e.WithCache.String(), Saving: e.Saving.String(),
		SavingPercent: json.Number(e.SavingPercent.String()), Currency: e.Currency, HitRate: e.HitRate.String(),
		PriceSource: e.PriceSource, Formula: e.Formula,
	}
}

func printEstimate(out io.Writer, e *cost.Estimate) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "estimated cost without cache\t%s %s\n", e.WithoutCache, e.Currency)
	fmt.Fprintf(w, "estimated cost with cache\t%s %s\n", e.WithCache, e.Currency)
	fmt.Fprintf(w, "estimated saving\t%s %s\t(%s %%)\n", e.Saving, e.Currency, e.SavingPercent)
	fmt.Fprintf(w, "hit rate\t%s\n", e.HitRate)
	fmt.Fprintf(w, "prices\t%s\n", e.PriceSource)
	return w.Flush()
}

// breakEven answers the reverse question.
func breakEven(c *cli.Context, in *cost.Inputs) error {
	amount, err := cost.ParseAmount(c.String("break-even"))
	if err != nil {
		return usageError(fmt.Errorf("--break-even: %w", err))
	}
	rate, err := in.BreakEven(amount)
	if errors.Is(err, cost.ErrNoHitRatePays) {
		return failed{exitNo, err}
	}
	if err != nil {
		return usageError(err)
	}
	if c.Bool("json") {
		return writeJSON(c.App.Writer, map[string]string{
			"break_even": amount.String(), "hit_rate": rate.String(), "currency": in.Price.Currency, "price_source": in.Price.Source,
		})
	}
	fmt.Fprintf(c.App.Writer, "from a hit rate of %s on the estimated saving reaches %s %s (prices: %s)\n", rate, amount, in.Price.Currency, in.Price.Source)
	return nil
}
