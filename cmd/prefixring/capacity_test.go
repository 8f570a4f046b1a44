package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// capacity says what fits by its exit code, with the figures as JSON, table and plot.
func TestCapacitySaysWhatFits(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "c.svg")
	args := []string{"capacity", "--prefixes", "6", "--prefix-tokens", "60000", "--rate", "4", "--nodes", "16"}
	code, out, errs := invoke(t, append(args, "--svg", plot, "--json")...)
	var got struct {
		Fits  bool
		Nodes []json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || !got.Fits || len(got.Nodes) != 16 {
		t.Fatalf("exit %d, %v, fits %t on %d nodes: %s", code, err, got.Fits, len(got.Nodes), errs)
	}
	if b, err := os.ReadFile(plot); err != nil || !strings.Contains(string(b), "<svg") {
		t.Errorf("plot: %v", err)
	}
	if code, out, errs = invoke(t, args...); code != 0 || !strings.Contains(out, "6 prefixes on 16 nodes") {
		t.Errorf("table: exit %d: %s%s", code, out, errs)
	}
	if code, out, errs = invoke(t, append(args, "--kv-tokens", "70000")...); code != exitNo || !strings.Contains(out, "DOES NOT FIT") || errs == "" {
		t.Errorf("too small: exit %d: %s%s", code, out, errs)
	}
	m := write(t, "prefixes:\n  - {name: sale, model: m1, text: a text, tokens: 60000, share: 0.8}\n  - {name: help, model: m1, text: another, tokens: 20000, share: 0.2}\n")
	if code, out, errs = invoke(t, "capacity", "--manifest", m, "--rate", "5"); code != 0 || !strings.Contains(out, "sale") {
		t.Errorf("manifest: exit %d: %s%s", code, out, errs)
	}
}

func TestCapacityRefusesBadInput(t *testing.T) {
	short := write(t, "prefixes:\n  - {name: sale, model: m1, text: a text}\n")
	for want, args := range map[string][]string{
		"neither nodes nor a rate": nil,
		"--prefixes":               {"--prefixes", "0"},
		"900b":                     {"--preset", "900b"},
		"a block has":              {"--prefix-tokens", "3", "--nodes", "2"},
		"utilisation":              {"--nodes", "2", "--utilisation", "70"},
		"has no tokens":            {"--nodes", "2", "--manifest", short},
		"nowhere.yaml":             {"--nodes", "2", "--manifest", "nowhere.yaml"},
		"argument":                 {"--nodes", "2", "now"},
	} {
		code, _, errs := invoke(t, append([]string{"capacity"}, args...)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d, %q; want %d with %q", args, code, errs, exitUsage, want)
		}
	}
}
