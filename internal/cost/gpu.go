package cost

import (
	"fmt"

	"github.com/shopspring/decimal"
)

// GPU turns what an engine's hardware costs into a price per token. All fields are
// decimal text above zero.
type GPU struct {
	PerHour  string // cost of one GPU for one hour
	GPUs     string // GPUs of one engine
	Prefill  string // measured prompt tokens per second of one engine
	Decode   string // measured generated tokens per second of one engine, all streams together
	Currency string
	Source   string // of the hourly cost; required
	Date     string // YYYY-MM-DD; required
	Measured string // of the speeds: which run, which model; required
}

// gpuPlaces is the precision of a derived price per million tokens. A division by a
// measured speed has no exact decimal; twelve places are far below any unit of
// money.
const gpuPlaces = 12

var secondsPerHour = decimal.NewFromInt(3600)

// Speed is the validated form of a GPU.
type Speed struct {
	Price   Price           // derived, per million tokens
	Engine  decimal.Decimal // cost of one engine for one hour
	Prefill decimal.Decimal // tokens per second
	Formula string          // with the numbers filled in
}

// Derive computes the price per token of own hardware. Reading a cached token
// costs no prefill, so its price is zero; the memory that holds it is part of the
// hourly cost already.
func (g *GPU) Derive(model string) (*Speed, error) {
	var d [4]decimal.Decimal
	for i, f := range [...]struct{ name, text string }{
		{"per_hour", g.PerHour}, {"gpus", g.GPUs}, {"prefill_tokens_per_second", g.Prefill}, {"decode_tokens_per_second", g.Decode},
	} {
		var err error
		if d[i], err = ParseAmount(f.text); err != nil {
			return nil, fmt.Errorf("cannot derive a price: %s: %w", f.name, err)
		}
		if d[i].IsZero() {
			return nil, fmt.Errorf("cannot derive a price: %s is zero", f.name)
		}
	}
	if !currency(g.Currency) {
		return nil, fmt.Errorf("cannot derive a price: currency %q is not three capital letters", g.Currency)
	}
	if g.Source == "" || g.Date == "" || g.Measured == "" {
		return nil, fmt.Errorf("cannot derive a price: source, date and measured must say where the numbers are from")
	}
	hour := d[0].Mul(d[1])
	each := func(speed decimal.Decimal) decimal.Decimal {
		return hour.Shift(6).DivRound(secondsPerHour.Mul(speed), gpuPlaces)
	}
	s := &Speed{Engine: hour, Prefill: d[2]}
	s.Price = Price{Model: model, Input: each(d[2]), Output: each(d[3]), Currency: g.Currency}
	s.Price.Write5m, s.Price.Write1h, s.Price.Reasoning = s.Price.Input, s.Price.Input, s.Price.Output
	s.Formula = fmt.Sprintf("%s %s/GPU-hour x %s GPUs / 3600 s / %s prefill tokens/s x 1,000,000 = %s per million prompt tokens; "+
		"the same / %s decode tokens/s = %s per million generated tokens; a cached token costs no prefill",
		g.PerHour, g.Currency, g.GPUs, g.Prefill, s.Price.Input, g.Decode, s.Price.Output)
	s.Price.Source = fmt.Sprintf("%s (%s); speeds: %s; %s", g.Source, g.Date, g.Measured, s.Formula)
	return s, nil
}

// GPUView is what cached tokens spared an own fleet.
type GPUView struct {
	Model            string          `json:"model"`
	PrefillSeconds   decimal.Decimal `json:"prefill_seconds_avoided"` // engine seconds, rounded to milliseconds
	EnginesNotNeeded decimal.Decimal `json:"engines_not_needed"`      // on average over the period, rounded to two places
	EstimatedCost    decimal.Decimal `json:"estimated_cost_of_those"` // of the avoided engine time, rounded to twelve places
	Currency         string          `json:"currency"`
	Formula          string          `json:"formula"`
}

// View computes the GPU view of cached tokens that were read within a period.
func (s *Speed) View(cached int64, periodSeconds int64) GPUView {
	seconds := decimal.NewFromInt(cached).DivRound(s.Prefill, 3)
	v := GPUView{PrefillSeconds: seconds, Currency: s.Price.Currency}
	if periodSeconds > 0 {
		v.EnginesNotNeeded = decimal.NewFromInt(cached).DivRound(s.Prefill.Mul(decimal.NewFromInt(periodSeconds)), 2)
	}
	v.EstimatedCost = decimal.NewFromInt(cached).Mul(s.Engine).DivRound(s.Prefill.Mul(secondsPerHour), gpuPlaces)
	v.Formula = fmt.Sprintf("%d cached tokens / %s prefill tokens/s = %s s; / %d s = %s engines; x %s %s per engine-hour",
		cached, s.Prefill, seconds, periodSeconds, v.EnginesNotNeeded, s.Engine, s.Price.Currency)
	return v
}
