package cost

import (
	"errors"
	"fmt"
	"sort"

	"github.com/shopspring/decimal"
)

// Inputs are the inputs of the closed formula. Token counts are per request.
type Inputs struct {
	Requests int64
	Prefix   int64 // tokens of the shared static prefix
	User     int64 // prompt tokens that are never cached
	Written  int64 // prompt tokens newly written to the cache in each request
	Output   int64
	HitRate  string // share of the prefix's tokens that are read from the cache: decimal text, 0..1
	Price    Price
}

// Estimate is the formula's answer. The amounts are exact.
type Estimate struct {
	Currency      string          `json:"currency"`
	WithoutCache  decimal.Decimal `json:"without_cache"`  // estimated cost had every prompt token been prefilled at the input price
	WithCache     decimal.Decimal `json:"with_cache"`     // estimated cost at the hit rate
	Saving        decimal.Decimal `json:"saving"`         // the difference; negative when writes cost more than reads save
	SavingPercent decimal.Decimal `json:"saving_percent"` // rounded to one place
	HitRate       decimal.Decimal `json:"hit_rate"`
	PriceSource   string          `json:"price_source"`
	Formula       string          `json:"formula"`
}

// Formula is the closed formula of Estimate, in words.
const Formula = "without = requests x ((prefix + user + written) x input + output x output price); " +
	"with = requests x (prefix x (hit rate x cache read + (1 - hit rate) x cache write) + user x input + written x cache write + output x output price); " +
	"prices per million tokens; cache write = input where no write price is given"

func (in *Inputs) validate() (rate decimal.Decimal, err error) {
	for name, n := range map[string]int64{"requests": in.Requests, "prefix": in.Prefix, "user": in.User, "written": in.Written, "output": in.Output} {
		if n < 0 {
			return rate, fmt.Errorf("cannot estimate: %s is negative", name)
		}
	}
	if rate, err = ParseAmount(in.HitRate); err != nil {
		return rate, fmt.Errorf("cannot estimate: hit rate: %w", err)
	}
	if rate.GreaterThan(one) {
		return rate, fmt.Errorf("cannot estimate: hit rate %s is above 1", in.HitRate)
	}
	return rate, nil
}

var (
	one     = decimal.NewFromInt(1)
	hundred = decimal.NewFromInt(100)
)

// Run computes the estimate.
func (in *Inputs) Run() (Estimate, error) {
	rate, err := in.validate()
	if err != nil {
		return Estimate{}, err
	}
	p := &in.Price
	output := times(in.Output, p.Output)
	user := times(in.User, p.Input)
	without := times(in.Prefix, p.Input).Add(times(in.Written, p.Input)).Add(user).Add(output)
	prefix := decimal.NewFromInt(in.Prefix)
	with := prefix.Mul(rate).Mul(p.CacheRead).
		Add(prefix.Mul(one.Sub(rate)).Mul(p.Write5m)).
		Add(times(in.Written, p.Write5m)).Add(user).Add(output)
	e := Estimate{
		Currency:     p.Currency,
		WithoutCache: perMillion(times(in.Requests, without)),
		WithCache:    perMillion(times(in.Requests, with)),
		HitRate:      rate,
		PriceSource:  p.Source,
		Formula:      Formula,
	}
	e.Saving = e.WithoutCache.Sub(e.WithCache)
	e.SavingPercent = percent(e.Saving, e.WithoutCache)
	return e, nil
}

// percent returns part of whole in percent, rounded to one place; 0 of nothing.
func percent(part, whole decimal.Decimal) decimal.Decimal {
	if whole.IsZero() {
		return decimal.Zero
	}
	return part.Mul(hundred).DivRound(whole, 1)
}

// ErrNoHitRatePays says that not even a hit rate of 1 saves the amount.
var ErrNoHitRatePays = errors.New("no hit rate saves that much")

// breakEvenPlaces is the precision of BreakEven: a hundredth of a percent.
const breakEvenPlaces = 4

// BreakEven answers the reverse question: from which hit rate on does the saving
// reach an amount, such as the price of a second fleet for the same period? The
// rate is rounded up to a hundredth of a percent, so that the saving at the
// rate that is returned does reach it. HitRate of the inputs is not read.
func (in *Inputs) BreakEven(amount decimal.Decimal) (decimal.Decimal, error) {
	at := func(rate string) (Estimate, error) {
		other := *in
		other.HitRate = rate
		return other.Run()
	}
	none, err := at("0")
	if err != nil {
		return decimal.Zero, err
	}
	all, err := at("1")
	if err != nil {
		return decimal.Zero, err
	}
	// The saving is linear in the rate.
	if none.Saving.GreaterThanOrEqual(amount) {
		return decimal.Zero, nil
	}
	if all.Saving.LessThan(amount) {
		return decimal.Zero, fmt.Errorf("cannot save %s %s: a hit rate of 1 saves %s: %w", amount, in.Price.Currency, all.Saving, ErrNoHitRatePays)
	}
	slope := all.Saving.Sub(none.Saving)
	need := amount.Sub(none.Saving)
	step := decimal.New(1, -breakEvenPlaces)
	rate := need.DivRound(slope, breakEvenPlaces)
	if rate.Mul(slope).LessThan(need) {
		rate = rate.Add(step)
	}
	return decimal.Min(rate, one), nil
}

// Preset returns the inputs of a named example: sale-day or agent-turn.
func Preset(name string) (Inputs, bool) {
	in, ok := presets[name]
	return in, ok
}

// PresetNames lists the presets in alphabetical order.
func PresetNames() []string {
	names := make([]string, 0, len(presets))
	for n := range presets {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// presets are worked examples; their results are pinned by tests to the unit.
var presets = map[string]Inputs{
	// One day of a sale: a fat shared prefix, a short question, a short answer.
	"sale-day": {
		Requests: 20_000_000, Prefix: 60_000, User: 200, Output: 500, HitRate: "0.95",
		Price: example("2", "0.2", "2", "6"),
	},
	// One turn of a coding agent on a hosted API with priced cache writes.
	"agent-turn": {
		Requests: 1, Prefix: 25_648, User: 1, Written: 321, Output: 146, HitRate: "1",
		Price: example("5", "0.50", "6.25", "25"),
	},
}

func example(input, read, write, output string) Price {
	p := Price{Currency: "USD", Source: "example prices of the preset"}
	p.Input = decimal.RequireFromString(input)
	p.CacheRead = decimal.RequireFromString(read)
	p.Write5m = decimal.RequireFromString(write)
	p.Write1h = p.Write5m
	p.Output = decimal.RequireFromString(output)
	p.Reasoning = p.Output
	return p
}
