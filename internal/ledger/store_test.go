package ledger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/prefixring/prefixring/internal/cost"
)

func openStore(t testing.TB, path string) *Store {
	t.Helper()
	s, err := OpenStore(path, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// row is one request with one thousand prompt tokens, 900 of them cached.
func row(at time.Time, tenant uint64, prefix, node string) cost.Row {
	return cost.Row{
		Key:  cost.Key{Minute: cost.Minute(at), Tenant: tenant, Model: "m", Prefix: prefix, Node: node},
		Sums: cost.Sums{Requests: 1, Verdicts: [5]int64{0, 1}, Known: 1, Tokens: cost.Tokens{Input: 100, CacheRead: 900, Output: 50}},
	}
}

var t0 = time.Date(2026, 11, 11, 20, 0, 0, 0, time.UTC)

func book(t testing.TB) *cost.Book {
	t.Helper()
	price := func(from time.Time, in string) cost.Entry {
		return cost.Entry{Model: "m", Currency: "USD", Input: in, CacheRead: "0.1", Output: "6", Source: "list", Date: "2026-11-01", ValidFrom: from}
	}
	b, err := cost.NewBook([]cost.Entry{price(time.Time{}, "2"), price(t0.Add(90*time.Minute+30*time.Second), "3")}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func drawRows(t *rapid.T) []cost.Row {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) cost.Row {
		at := t0.Add(time.Duration(rapid.IntRange(-3*1440, 3*1440).Draw(t, "minute")) * time.Minute)
		r := row(at, rapid.Uint64Range(0, 3).Draw(t, "tenant"), rapid.SampledFrom([]string{"", "shop", "news"}).Draw(t, "prefix"), "n")
		r.Class = cost.Class(rapid.IntRange(0, 2).Draw(t, "class"))
		for _, n := range r.Numbers() {
			*n = rapid.Int64Range(0, 1<<40).Draw(t, "n")
		}
		return r
	}), 1, 60).Draw(t, "rows")
}

// Whatever the period, the zone and the grouping: what the file answers from minutes,
// hours and days is what the rows themselves add up to.
func TestReportsFromBlocksEqualThoseFromRows(t *testing.T) {
	b := book(t)
	zones := []string{"UTC", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"}
	dims := [][]cost.Dim{nil, {cost.ByTenant}, {cost.ByPrefix, cost.ByDay}, {cost.ByHour}, {cost.ByMinute, cost.ByModel}, {cost.ByClass}}
	rapid.Check(t, func(rt *rapid.T) {
		s, err := OpenStore(filepath.Join(t.TempDir(), "l"), StoreOptions{noSync: true})
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		rows := drawRows(rt)
		half := len(rows) / 2
		for _, part := range [][]cost.Row{rows[:half], rows[half:]} {
			if err := s.Append(part); err != nil {
				rt.Fatal(err)
			}
		}
		loc, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(rt, "zone"))
		if err != nil {
			rt.Fatal(err)
		}
		o := cost.ReportOptions{By: rapid.SampledFrom(dims).Draw(rt, "by"), Location: loc}
		if rapid.Bool().Draw(rt, "bounded") {
			o.From = t0.Add(time.Duration(rapid.IntRange(-4*1440, 1440).Draw(rt, "from")) * time.Minute)
			o.To = o.From.Add(time.Duration(rapid.IntRange(1, 3*1440).Draw(rt, "length")) * time.Minute)
		}
		want := cost.NewReporter(b, o)
		for i := range rows {
			want.Add(&rows[i])
		}
		got, err := s.Report(b, o)
		if err != nil {
			rt.Fatal(err)
		}
		if w := want.Report(); !equal(got, w) {
			rt.Fatalf("from the file:\n%s\nfrom the rows:\n%s", text(got), text(w))
		}
	})
}

func equal(a, b *cost.Report) bool {
	return reflect.DeepEqual(text(a), text(b)) && a.From.Equal(b.From) && a.To.Equal(b.To)
}

// text prints what a report counts and estimates.
func text(r *cost.Report) string {
	var b bytes.Buffer
	line := func(l *cost.Line) {
		fmt.Fprintf(&b, "%v %+v unpriced %d", l.Group, l.Sums, l.Unpriced)
		if m := l.Money; m != nil {
			fmt.Fprintf(&b, " %s %s %s %s %v", m.Currency, m.EstimatedCost, m.EstimatedWithoutCache, m.EstimatedSaving, m.Sources)
		}
		b.WriteByte('\n')
	}
	for i := range r.Lines {
		line(&r.Lines[i])
	}
	line(&r.Total)
	return b.String()
}

func TestLedgerSurvivesARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	for i := range 3 {
		s, err := OpenStore(path, StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Append([]cost.Row{row(t0, 1, "shop", "n")}); err != nil {
			t.Fatal(err)
		}
		rep, err := s.Report(nil, cost.ReportOptions{})
		if err != nil || rep.Total.Requests != int64(i+1) || len(rep.Lines) != 1 {
			t.Errorf("start %d: %v, %+v", i, err, rep)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	s := openStore(t, path)
	if _, err := OpenStore(path, StoreOptions{Wait: time.Millisecond}); err == nil || !bytes.Contains([]byte(err.Error()), []byte(ErrBusy.Error())) {
		t.Errorf("a second writer: %v", err)
	}
	if _, err := OpenStore(path, StoreOptions{ReadOnly: true, Wait: time.Millisecond}); err == nil {
		t.Error("a reader beside a writer was let in")
	}
	s.Close()
	a, err := OpenStore(path, StoreOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := OpenStore(path, StoreOptions{ReadOnly: true})
	if err != nil {
		t.Fatalf("two readers: %v", err)
	}
	b.Close()
}

// A file that is no ledger is refused and left as it is.
func TestForeignAndDamagedFilesAreRefused(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good")
	s := openStore(t, good)
	var rows []cost.Row
	for i := range 2000 {
		rows = append(rows, row(t0, uint64(i), "shop", "n"))
	}
	if err := s.Append(rows); err != nil {
		t.Fatal(err)
	}
	s.Close()
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"text":       []byte("prices: [1, 2, 3]\n"),
		"noise":      bytes.Repeat([]byte{0xa5, 0x5a, 0x00}, 40_000),
		"cut off":    whole[:len(whole)/2],
		"cut at 4 k": whole[:4096],
		"no head":    append(make([]byte, 8192), whole[8192:]...),
	} {
		path := filepath.Join(t.TempDir(), "l")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := OpenStore(path, StoreOptions{}); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, content) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := OpenStore(t.TempDir(), StoreOptions{}); err == nil {
		t.Error("a folder was accepted")
	}
	if _, err := OpenStore(filepath.Join(t.TempDir(), "none"), StoreOptions{ReadOnly: true}); err == nil {
		t.Error("a missing file was read")
	}
}

// Beyond the bound of a block no token is lost, only its attribution.
func TestB65BlocksAreBounded(t *testing.T) {
	s, err := OpenStore(filepath.Join(t.TempDir(), "l"), StoreOptions{MaxRows: 10, noSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 100 {
		if err := s.Append([]cost.Row{row(t0, 1, "shop", fmt.Sprint("node-", i))}); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := s.Report(nil, cost.ReportOptions{By: []cost.Dim{cost.ByNode}})
	if err != nil || rep.Total.Requests != 100 || len(rep.Lines) != 11 {
		t.Errorf("%v: %d requests in %d lines", err, rep.Total.Requests, len(rep.Lines))
	}
}

func TestRetentionDeletesMinutesFirst(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "l"))
	var rows []cost.Row
	for d := range 10 {
		rows = append(rows, row(t0.AddDate(0, 0, d), 1, "shop", "n"), row(t0.AddDate(0, 0, d).Add(7*time.Minute), 1, "shop", "n"))
	}
	if err := s.Append(rows); err != nil {
		t.Fatal(err)
	}
	end := t0.AddDate(0, 0, 9)
	if n, err := s.Prune(end.AddDate(0, 0, -3), end.AddDate(0, 0, -7)); err != nil || n == 0 {
		t.Fatalf("%d, %v", n, err)
	}
	rep, err := s.Report(nil, cost.ReportOptions{})
	if err != nil || rep.Total.Requests != 16 {
		t.Errorf("%v: %d requests are left of 20, want those of 8 days", err, rep.Total.Requests)
	}
	// Where only hours are kept, a border within one is moved, and the report says so.
	from := t0.AddDate(0, 0, 4).Add(3 * time.Minute)
	rep, err = s.Report(nil, cost.ReportOptions{From: from, To: from.Add(10 * time.Minute)})
	if err != nil || rep.Total.Requests != 2 || len(rep.Notes) != 1 {
		t.Errorf("%v: %d requests, notes %q", err, rep.Total.Requests, rep.Notes)
	}
	from = t0.AddDate(0, 0, 8).Add(3 * time.Minute)
	rep, err = s.Report(nil, cost.ReportOptions{From: from, To: from.Add(10 * time.Minute)})
	if err != nil || rep.Total.Requests != 1 || len(rep.Notes) != 0 {
		t.Errorf("%v: %d requests, notes %q", err, rep.Total.Requests, rep.Notes)
	}
}
