package cost

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/shopspring/decimal"
)

func amount(s string) decimal.Decimal { return decimal.RequireFromString(s) }

func TestPresetsToTheUnit(t *testing.T) {
	cases := []struct {
		name, without, with, saving, percent string
		places                               int32 // of the published figures
	}{
		{"sale-day", "2468000", "416000", "2052000", "83.1", 0},
		{"agent-turn", "0.13350", "0.01849", "0.11501", "86.2", 5},
	}
	if names := PresetNames(); len(names) != len(cases) {
		t.Fatalf("%v: every preset needs a case", names)
	}
	for _, c := range cases {
		in, ok := Preset(c.name)
		if !ok {
			t.Fatalf("no preset %s", c.name)
		}
		e, err := in.Run()
		if err != nil {
			t.Fatal(err)
		}
		for what, pair := range map[string][2]decimal.Decimal{
			"without": {e.WithoutCache, amount(c.without)}, "with": {e.WithCache, amount(c.with)}, "saving": {e.Saving, amount(c.saving)},
		} {
			if !pair[0].Round(c.places).Equal(pair[1]) {
				t.Errorf("%s %s: %s, want %s", c.name, what, pair[0], pair[1])
			}
		}
		if e.SavingPercent.String() != c.percent {
			t.Errorf("%s: %s %%, want %s", c.name, e.SavingPercent, c.percent)
		}
	}
}

func TestEstimateJSONHasExactDecimalStrings(t *testing.T) {
	for name, want := range map[string][4]string{
		"sale-day":   {"2468000", "416000", "2052000", "83.1"},
		"agent-turn": {"0.1335", "0.01848525", "0.11501475", "86.2"},
	} {
		in, _ := Preset(name)
		e, err := in.Run()
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Without string `json:"without_cache"`
			With    string `json:"with_cache"`
			Saving  string `json:"saving"`
			Percent string `json:"saving_percent"`
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if [4]string{got.Without, got.With, got.Saving, got.Percent} != want {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Arithmetic that binary floating point gets wrong.
func TestMoneyIsExact(t *testing.T) {
	in := Inputs{Requests: 3, User: 1, HitRate: "0", Price: example("0.1", "0.1", "0.1", "0")}
	e, err := in.Run()
	if err != nil || e.WithCache.String() != "0.0000003" {
		t.Errorf("%s %v", e.WithCache, err)
	}
	in = Inputs{Requests: 9_007_199_254_740_993, User: 1, HitRate: "0", Price: example("1", "1", "1", "0")}
	if e, _ := in.Run(); e.WithCache.String() != "9007199254.740993" {
		t.Errorf("%s", e.WithCache)
	}
}

func TestMissedPrefixIsWrittenAtTheWritePrice(t *testing.T) {
	in := Inputs{Requests: 1_000_000, Prefix: 100, HitRate: "0.5", Price: example("4", "1", "5", "0")}
	e, err := in.Run()
	if err != nil || e.WithoutCache.String() != "400" || e.WithCache.String() != "300" {
		t.Errorf("%+v %v", e, err)
	}
	in.HitRate = "0"
	if e, _ := in.Run(); e.Saving.String() != "-100" {
		t.Errorf("writes that are never read cost more: %s", e.Saving)
	}
}

func TestBreakEven(t *testing.T) {
	in, _ := Preset("sale-day")
	rate, err := in.BreakEven(amount("1000000"))
	if err != nil || rate.String() != "0.463" {
		t.Errorf("%s %v", rate, err) // 1,000,000 / 2,160,000 = 0.46296..., rounded up
	}
	for _, target := range []string{"1000000", "1", "2159999.99", "2160000"} {
		rate, err := in.BreakEven(amount(target))
		if err != nil {
			t.Fatal(err)
		}
		at := in
		at.HitRate = rate.String()
		e, err := at.Run()
		if err != nil || e.Saving.LessThan(amount(target)) {
			t.Errorf("the saving at %s is %s, below %s (%v)", rate, e.Saving, target, err)
		}
		if below := rate.Sub(amount("0.0001")); below.IsPositive() {
			at.HitRate = below.String()
			if e, err := at.Run(); err != nil || e.Saving.GreaterThanOrEqual(amount(target)) {
				t.Errorf("%s is not the lowest rate for %s (%v)", rate, target, err)
			}
		}
	}
	if _, err := in.BreakEven(amount("2160001")); !errors.Is(err, ErrNoHitRatePays) {
		t.Errorf("%v", err)
	}
	if rate, err := in.BreakEven(decimal.Zero); err != nil || !rate.IsZero() {
		t.Errorf("%s %v", rate, err)
	}
}

func TestEstimateRefusesBadInputs(t *testing.T) {
	good, _ := Preset("sale-day")
	for want, change := range map[string]func(*Inputs){
		"requests is negative": func(in *Inputs) { in.Requests = -1 },
		"prefix is negative":   func(in *Inputs) { in.Prefix = -1 },
		"above 1":              func(in *Inputs) { in.HitRate = "1.01" },
		`"-0.5"`:               func(in *Inputs) { in.HitRate = "-0.5" },
		`""`:                   func(in *Inputs) { in.HitRate = "" },
		`"1e-2"`:               func(in *Inputs) { in.HitRate = "1e-2" },
		`"NaN"`:                func(in *Inputs) { in.HitRate = "NaN" },
	} {
		in := good
		change(&in)
		if _, err := in.Run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := in.BreakEven(amount("1")); strings.Contains(want, "negative") && err == nil {
			t.Errorf("%s: break-even accepts it", want)
		}
	}
}

func TestGPUPriceShowsItsFormula(t *testing.T) {
	g := GPU{PerHour: "2.50", GPUs: "4", Prefill: "20000", Decode: "2500", Currency: "USD", Source: "contract", Date: "2026-11-01", Measured: "bench run 7, 70B"}
	s, err := g.Derive("m")
	if err != nil {
		t.Fatal(err)
	}
	// 10 / 3600 / 20000 x 1e6 = 0.13888...; / 2500 = 1.1111...
	if s.Price.Input.String() != "0.138888888889" || s.Price.Output.String() != "1.111111111111" || !s.Price.CacheRead.IsZero() {
		t.Errorf("%+v", s.Price)
	}
	for _, want := range []string{"2.50 USD/GPU-hour x 4 GPUs / 3600 s / 20000 prefill tokens/s", "0.138888888889", "2500 decode tokens/s"} {
		if !strings.Contains(s.Formula, want) || !strings.Contains(s.Price.Source, want) {
			t.Errorf("formula lacks %q: %s", want, s.Formula)
		}
	}
	v := s.View(144_000_000, 3600) // 7200 engine seconds in an hour
	if v.PrefillSeconds.String() != "7200" || v.EnginesNotNeeded.String() != "2" || v.EstimatedCost.String() != "20" {
		t.Errorf("%+v", v)
	}
	for _, change := range []func(*GPU){
		func(g *GPU) { g.PerHour = "0" }, func(g *GPU) { g.GPUs = "-1" }, func(g *GPU) { g.Prefill = "" }, func(g *GPU) { g.Decode = "x" },
		func(g *GPU) { g.Currency = "usd" }, func(g *GPU) { g.Source = "" }, func(g *GPU) { g.Measured = "" },
	} {
		bad := g
		change(&bad)
		if _, err := bad.Derive("m"); err == nil {
			t.Errorf("accepted: %+v", bad)
		}
	}
}
