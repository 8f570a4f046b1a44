package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The presets are worked examples whose results are known to the unit.
func TestCostEstimatePresetsToTheUnit(t *testing.T) {
	for preset, want := range map[string][4]string{
		"sale-day":   {`"2468000"`, `"416000"`, `"2052000"`, `83.1`},
		"agent-turn": {`"0.1335"`, `"0.01848525"`, `"0.11501475"`, `86.2`},
	} {
		code, out, errs := invoke(t, "cost", "estimate", "--preset", preset, "--json")
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
			t.Fatalf("%s: exit %d, %v: %s%s", preset, code, err, out, errs)
		}
		for i, key := range []string{"without_cache", "with_cache", "saving", "saving_percent"} {
			if string(got[key]) != want[i] {
				t.Errorf("%s: %s is %s, want %s", preset, key, got[key], want[i])
			}
		}
	}
}

// The same figures by flags give the same amounts, and the table names their currency.
func TestCostEstimateFromFlags(t *testing.T) {
	args := []string{"cost", "estimate", "--requests", "20000000", "--prefix", "60000", "--user", "200", "--output", "500", "--hit-rate", "0.95",
		"--price-input", "2", "--price-cache-read", "0.2", "--price-output", "6", "--currency", "EUR", "--price-source", "contract"}
	code, out, errs := invoke(t, args...)
	for _, want := range []string{"2468000 EUR", "416000 EUR", "2052000 EUR", "83.1 %", "contract"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q: %s%s", code, want, out, errs)
		}
	}
	// Without a price for cached tokens no saving is claimed.
	code, out, errs = invoke(t, "cost", "estimate", "--requests", "1000", "--prefix", "1000", "--hit-rate", "1",
		"--price-input", "2", "--price-output", "6", "--currency", "EUR", "--json")
	if code != 0 || !strings.Contains(out, `"saving": "0"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	// A flag changes one input of a preset.
	code, out, errs = invoke(t, "cost", "estimate", "--preset", "sale-day", "--hit-rate", "0", "--json")
	if code != 0 || !strings.Contains(out, `"saving": "0"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

// The reverse question: the hit rate at which the saving reaches an amount, and "no"
// when none does.
func TestCostEstimateBreakEven(t *testing.T) {
	code, out, errs := invoke(t, "cost", "estimate", "--preset", "sale-day", "--break-even", "2052000", "--json")
	if code != 0 || !strings.Contains(out, `"hit_rate": "0.95"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := invoke(t, "cost", "estimate", "--preset", "sale-day", "--break-even", "2160001"); code != exitNo || errs == "" {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestCostEstimateRefusesBadInput(t *testing.T) {
	for want, args := range map[string][]string{
		"sale-day":             {"--preset", "sale-night"},
		"--requests":           {"--price-input", "2"},
		"--hit-rate":           {"--requests", "1", "--price-input", "2", "--price-output", "2", "--currency", "USD"},
		"negative":             {"--preset", "sale-day", "--requests", "-1"},
		"above 1":              {"--preset", "sale-day", "--hit-rate", "1.5"},
		"--price-input":        {"--preset", "sale-day", "--price-input", "1,5"},
		"three capital":        {"--preset", "sale-day", "--currency", "usd"},
		"preset's prices":      {"--preset", "sale-day", "--currency", "EUR"},
		"--break-even":         {"--preset", "sale-day", "--break-even", "-1"},
		"argument":             {"--preset", "sale-day", "now"},
		"flag provided but":    {"--preset", "sale-day", "--requsts", "1"},
		"invalid value \"many": {"--preset", "sale-day", "--requests", "many"},
	} {
		code, _, errs := invoke(t, append([]string{"cost", "estimate"}, args...)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d, %q; want %d with %q", args, code, errs, exitUsage, want)
		}
	}
}
