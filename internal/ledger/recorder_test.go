package ledger

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixring/prefixring/internal/cost"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func record(at time.Time, node string, u dialect.Usage) *telemetry.Record {
	return &telemetry.Record{Start: at.Add(-time.Second), Total: time.Second, Tenant: 7, Model: "m", Named: "shop", Node: node, Usage: u, Verdict: dialect.Success}
}

func usage(prompt, cached, output int64) dialect.Usage {
	u := dialect.NoUsage
	u.Prompt, u.Cached, u.Output = prompt, cached, output
	return u
}

// What Settle counts is in the report at once, and in the file when Run has ended.
func TestRunWritesWhatWasSettled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	r := NewRecorder(Options{Path: path, Flush: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	now := time.Now()
	r.Settle(record(now, "n", usage(1000, 900, 10)))
	r.Settle(record(now, "", dialect.NoUsage)) // reached no engine
	rep, err := r.Report(nil, cost.ReportOptions{By: []cost.Dim{cost.ByPrefix}})
	if err != nil || rep.Total.Requests != 1 || rep.Total.Tokens.CacheRead != 900 || rep.Lines[0].Group[0] != "shop" {
		t.Errorf("%v, %+v", err, rep)
	}
	cancel()
	<-done
	rep, err = openStore(t, path).Report(nil, cost.ReportOptions{By: []cost.Dim{cost.ByTenant}})
	if err != nil || rep.Total.Requests != 1 || rep.Lines[0].Group[0] != "0000000000000007" {
		t.Errorf("in the file: %v, %+v", err, rep)
	}
}

// Without a file the last two days are kept, by hour, and the report says what it is.
func TestWithoutAFileTwoDaysAreKept(t *testing.T) {
	now := t0
	r := NewRecorder(Options{Now: func() time.Time { return now }, Flush: time.Hour})
	for range 72 {
		r.Settle(record(now, "n", usage(10, 0, 1)))
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	rep, err := r.Report(nil, cost.ReportOptions{})
	if err != nil || rep.Total.Requests < 48 || rep.Total.Requests > 50 || len(rep.Notes) != 1 {
		t.Errorf("%v: %d requests, notes %q", err, rep.Total.Requests, rep.Notes)
	}
	rep, err = r.Report(nil, cost.ReportOptions{From: now.Add(-3 * time.Hour)})
	if err != nil || rep.Total.Requests != 3 {
		t.Errorf("%v: %d requests in the last 3 hours", err, rep.Total.Requests)
	}
	if s := r.State(); s.File || !s.Recording {
		t.Errorf("%+v", s)
	}
}

// While another router holds the file (a rolling restart), rows wait in memory.
func TestAFileInUseIsTakenOverLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	old := openStore(t, path)
	r := NewRecorder(Options{Path: path, Now: func() time.Time { return t0 }})
	defer r.close()
	r.Settle(record(t0, "n", usage(10, 0, 1)))
	if err := r.Flush(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
	rep, err := r.Report(nil, cost.ReportOptions{})
	if err != nil || rep.Total.Requests != 1 || len(rep.Notes) != 1 {
		t.Errorf("%v, %+v", err, rep)
	}
	old.Close()
	if err := r.Flush(); err != nil || !r.State().Recording {
		t.Errorf("after: %v, %+v", err, r.State())
	}
}

// A clock that jumps years ahead and back deletes nothing and loses no token.
func TestClockJumpsLoseNothing(t *testing.T) {
	now := t0
	r := NewRecorder(Options{Path: filepath.Join(t.TempDir(), "ledger"), Now: func() time.Time { return now }, Keep: 24 * time.Hour, KeepMinutes: 24 * time.Hour})
	defer r.close()
	settle := func() {
		r.Settle(record(now, "n", usage(10, 0, 1)))
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 { // past the first hour, in which nothing is deleted anyway
		now = now.Add(10 * time.Second)
		settle()
	}
	back := now
	for _, jump := range []time.Duration{100 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour, time.Hour, -time.Hour} {
		now = back.Add(jump)
		settle()
	}
	rep, err := r.Report(nil, cost.ReportOptions{})
	if err != nil || rep.Total.Requests != 1004 {
		t.Errorf("%v: %d requests, want 1004", err, rep.Total.Requests)
	}
}

// Time that passes does delete, once it may be believed.
func TestRetentionFollowsTime(t *testing.T) {
	now := t0
	r := NewRecorder(Options{Path: filepath.Join(t.TempDir(), "ledger"), Now: func() time.Time { return now }, Flush: time.Hour, Keep: 48 * time.Hour})
	defer r.close()
	for range 24 * 6 {
		r.Settle(record(now, "n", usage(10, 0, 1)))
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	rep, err := r.Report(nil, cost.ReportOptions{})
	if err != nil || rep.Total.Requests < 48 || rep.Total.Requests > 72 {
		t.Errorf("%v: %d hours are left of 144, want those of 2 to 3 days", err, rep.Total.Requests)
	}
}

func TestTodayIsTheLocalDay(t *testing.T) {
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 10, 25, 0, 30, 0, 0, loc) // the day the clocks go back
	r := NewRecorder(Options{Path: filepath.Join(t.TempDir(), "ledger"), Now: func() time.Time { return now }})
	defer r.close()
	now = now.Add(-time.Hour)
	r.Settle(record(now, "n", usage(10, 0, 1))) // the day before
	for range 25 {
		now = now.Add(time.Hour)
		r.Settle(record(now, "n", usage(10, 0, 1)))
		r.Flush()
	}
	if rep, err := r.Today(nil, loc); err != nil || rep.Total.Requests != 25 {
		t.Errorf("%v: %d requests on a day of 25 hours", err, rep.Total.Requests)
	}
	now = now.Add(time.Hour)
	if rep, err := r.Today(nil, loc); err != nil || rep.Total.Requests != 0 {
		t.Errorf("%v: %d requests on the next day", err, rep.Total.Requests)
	}
}
