package health

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The operator's page names every state, every limit and every threshold as they are.
func TestDocsSayWhatTheDefaultsAre(t *testing.T) {
	b, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	var o Options
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	for _, name := range stateNames {
		if !strings.Contains(text, "| "+name+" |") {
			t.Errorf("state %q is not explained", name)
		}
	}
	for name, s := range map[string]Steps{
		"waiting": o.Thresholds.Waiting, "KV": o.Thresholds.KVUsage, "preemptions": o.Thresholds.Preemptions, "queue": o.Thresholds.QueueTime,
	} {
		row := ""
		for i := range 3 {
			row += fmt.Sprintf("| %s, left at %s ", number2(s.Enter[i]), number2(s.Leave[i]))
		}
		if !strings.Contains(text, row) {
			t.Errorf("thresholds of %s are not in the table: %s", name, row)
		}
	}
	for _, say := range []string{
		fmt.Sprintf("| `/metrics` | %v | %v |", short(o.Metrics.Period.Seconds()), short(o.Metrics.Timeout.Seconds())),
		fmt.Sprintf("| connect failures | %d ", o.Outliers.ConnectFailures),
		fmt.Sprintf("| streams cut short | %d |", o.Outliers.Truncated),
		fmt.Sprintf("%d failed probes in a row", o.Failures),
		fmt.Sprintf("turn back within %v,", short(o.Thresholds.Dwell.Seconds())),
	} {
		if !strings.Contains(text, say) {
			t.Errorf("not in the page: %q", say)
		}
	}
}

func short(seconds float64) string { return fmt.Sprintf("%g s", seconds) }

// number2 writes shares with two digits and everything else as it is.
func number2(v float64) string {
	if v == 0.9 {
		return "0.90"
	}
	return fmt.Sprintf("%g", v)
}
