package cost

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the tests need zones wherever they run

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/shopspring/decimal"
	"pgregory.net/rapid"
)

func mustBook(t testing.TB) *Book {
	t.Helper()
	b, err := NewBook([]Entry{
		entry("m"), entry("m", from("2026-11-30"), func(e *Entry) { e.Input = "3"; e.Source = "new page" }),
		entry("m", func(e *Entry) { e.Channel = "host"; e.Write5m = "2.5"; e.Write1h = "4" }),
		entry("lora", func(e *Entry) { e.Reasoning = "7" }),
	}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func report(book *Book, rows []Row, o ReportOptions) *Report {
	r := NewReporter(book, o)
	for i := range rows {
		r.Add(&rows[i])
	}
	return r.Report()
}

// Any grouping, any order of the rows: the lines add up to the total, in tokens and
// in money.
func TestAnyGroupingAddsUpToTheTotal(t *testing.T) {
	book := mustBook(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(LedgerOptions{})
		for _, e := range rapid.SliceOfN(rapid.Custom(drawEvent), 0, 60).Draw(t, "events") {
			l.Settle(&e)
		}
		rows := rapid.Permutation(l.Snapshot()).Draw(t, "order")
		by := rapid.SliceOfDistinct(rapid.SampledFrom([]Dim{ByTenant, ByModel, ByPrefix, ByNode, ByChannel, ByTier, ByClass, ByDay, ByHour, ByMinute}),
			func(d Dim) Dim { return d }).Draw(t, "by")
		o := ReportOptions{By: by, Location: berlin}
		rep := report(book, rows, o)
		var sums Sums
		var unpriced int64
		var cost, without, saving decimal.Decimal
		for _, line := range rep.Lines {
			sums.Add(&line.Sums)
			unpriced += line.Unpriced
			if line.Money != nil {
				cost, without, saving = cost.Add(line.Money.EstimatedCost), without.Add(line.Money.EstimatedWithoutCache), saving.Add(line.Money.EstimatedSaving)
			}
		}
		if sums != rep.Total.Sums || sums != total(rows) || unpriced != rep.Total.Unpriced {
			t.Fatalf("tokens: %+v\ntotal: %+v", sums, rep.Total.Sums)
		}
		if m := rep.Total.Money; m != nil && !(m.EstimatedCost.Equal(cost) && m.EstimatedWithoutCache.Equal(without) && m.EstimatedSaving.Equal(saving)) {
			t.Fatalf("money: %s %s %s, total %+v", cost, without, saving, m)
		}
		// The money of the total is that of each row alone.
		var each decimal.Decimal
		for _, row := range rows {
			if p, ok := book.Lookup(row.Model, row.Tier, row.Channel, row.Start()); ok {
				each = each.Add(p.Of(&row.Tokens))
			}
		}
		if !each.Equal(cost) {
			t.Fatalf("row by row %s, by groups %s", each, cost)
		}
	})
}

func TestReportTellsKnownFromUnknown(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	settle := func(model string, u dialect.Usage) {
		l.Settle(&Event{At: t0.AddDate(0, 0, -1), Model: model, Node: "n", Usage: u, Verdict: dialect.Success})
	}
	settle("m", usage(1000, 900, 10))
	settle("m", usage(1000, 0, 10))
	settle("m", usage(5000, dialect.Unknown, 10))
	settle("m", dialect.NoUsage)
	settle("free", usage(1000, 500, 10))
	rep := report(mustBook(t), l.Snapshot(), ReportOptions{By: []Dim{ByModel}})
	if len(rep.Lines) != 2 || rep.Lines[0].Group[0] != "free" {
		t.Fatalf("%+v", rep.Lines)
	}
	free, m := rep.Lines[0], rep.Lines[1]
	if free.Money != nil || free.Unpriced != 1 || free.HitRatePercent.String() != "50" || free.Prompt() != 1000 {
		t.Errorf("no price: tokens only, money unknown: %+v", free)
	}
	if m.Requests != 4 || m.Known != 2 || m.Partial != 1 || m.Silent != 1 || m.Prompt() != 7000 {
		t.Errorf("%+v", m.Sums)
	}
	if m.HitRatePercent.String() != "45" || m.UnknownPercent.String() != "50" {
		t.Errorf("hit rate %s, unknown %s", m.HitRatePercent, m.UnknownPercent)
	}
	// 1100 x 2 + 900 x 0.2 + 20 x 6 = 2500; without: 2000 x 2 + 120 = 4120, per million.
	if m.Money.EstimatedCost.String() != "0.0025" || m.Money.EstimatedWithoutCache.String() != "0.00412" ||
		m.Money.EstimatedSaving.String() != "0.00162" || m.Money.SavingPercent.String() != "39.3" {
		t.Errorf("%+v", m.Money)
	}
	if !slices.Equal(m.Money.Sources, []string{"price page (2026-11-01)"}) {
		t.Errorf("%v", m.Money.Sources)
	}
	if rep.Total.Unpriced != 1 || rep.Total.Money == nil || rep.Total.Requests != 5 {
		t.Errorf("%+v", rep.Total)
	}
	none := report(nil, l.Snapshot(), ReportOptions{})
	if none.Total.Money != nil || len(none.Lines) != 1 || none.Total.Unpriced != 3 {
		t.Errorf("without a price list: %+v", none)
	}
	silent := report(nil, []Row{{Key{}, Sums{Requests: 1, Silent: 1}}}, ReportOptions{})
	if silent.Total.HitRatePercent != nil || silent.Total.UnknownPercent.String() != "100" {
		t.Errorf("%+v", silent.Total)
	}
}

func TestReportNamesEachEstimate(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	l.Settle(&Event{At: t0, Model: "m", Usage: usage(1000, 900, 10)})
	text, err := json.Marshal(report(mustBook(t), l.Snapshot(), ReportOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"estimated_cost":"0.00054"`, `"estimated_saving":"0.00252"`, `"price_sources":["new page (2026-11-01)"]`,
		`"unknown_percent":"0"`, `"hit_rate_percent":"90"`, `had_these_tokens_been_prefilled_at_the_input_price":"0.00306"`, `"counterfactual":"the same requests`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("lacks %s:\n%s", want, text)
		}
	}
}

// A price holds from the beginning of the minute it becomes valid in.
func TestPriceChangeAtMidnight(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	midnight := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Duration{-time.Second, 0} {
		l.Settle(&Event{At: midnight.Add(at), Model: "m", Usage: usage(1_000_000, 0, 0)})
	}
	rep := report(mustBook(t), l.Snapshot(), ReportOptions{By: []Dim{ByDay}})
	if len(rep.Lines) != 2 || rep.Lines[0].Money.EstimatedCost.String() != "2" || rep.Lines[1].Money.EstimatedCost.String() != "3" {
		t.Errorf("%+v", rep.Lines)
	}
	if len(rep.Total.Money.Sources) != 2 || rep.Total.Money.EstimatedCost.String() != "5" {
		t.Errorf("%+v", rep.Total.Money)
	}
}

func TestDaysAndHoursWhereClocksChange(t *testing.T) {
	cases := []struct {
		zone, day string
		hours     int
	}{
		{"Europe/Berlin", "2026-03-29", 23},
		{"Europe/Berlin", "2026-10-25", 25},
		{"Europe/Berlin", "2026-11-30", 24},
		{"Australia/Lord_Howe", "2026-04-05", 25}, // by half an hour
		{"America/Sao_Paulo", "2018-11-04", 23},   // the day begins at 01:00
		{"Asia/Kolkata", "2026-11-30", 24},        // no whole hour from UTC
		{"UTC", "2026-11-30", 24},
	}
	for _, c := range cases {
		loc, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		noon, _ := time.ParseInLocation("2006-01-02 15", c.day+" 12", loc)
		l := NewLedger(LedgerOptions{})
		minutes := 0
		for at := noon.Add(-40 * time.Hour); at.Before(noon.Add(40 * time.Hour)); at = at.Add(time.Minute) {
			l.Settle(&Event{At: at, Usage: usage(1, 0, 0)})
			if at.In(loc).Format(time.DateOnly) == c.day {
				minutes++
			}
		}
		rows := l.Snapshot()
		found := int64(0)
		for _, line := range report(nil, rows, ReportOptions{By: []Dim{ByDay}, Location: loc}).Lines {
			if line.Group[0] == c.day {
				found += line.Requests
			}
		}
		if found != int64(minutes) {
			t.Errorf("%s %s: %d minutes in the day, want %d", c.zone, c.day, found, minutes)
		}
		hours := 0
		for _, line := range report(nil, rows, ReportOptions{By: []Dim{ByDay, ByHour}, Location: loc}).Lines {
			if line.Group[0] == c.day {
				hours++
			}
			if line.Requests > 60 {
				t.Errorf("%s %v: an hour of %d minutes", c.zone, line.Group, line.Requests)
			}
		}
		if hours != c.hours {
			t.Errorf("%s %s has %d hours, want %d", c.zone, c.day, hours, c.hours)
		}
	}
}

func TestReportSpanAndTenantNames(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	for i := range 10 {
		l.Settle(&Event{At: t0.Add(time.Duration(i) * time.Minute), Tenant: uint64(i % 2), Usage: usage(1, 0, 0)})
	}
	rep := report(nil, l.Snapshot(), ReportOptions{By: []Dim{ByTenant}, From: t0.Add(2 * time.Minute), To: t0.Add(5 * time.Minute),
		Tenant: func(d uint64) string { return "tenant-" + strconv.FormatUint(d, 10) }})
	if rep.Total.Requests != 3 || !rep.From.Equal(t0.Add(2*time.Minute)) || !rep.To.Equal(t0.Add(5*time.Minute)) || rep.Lines[0].Group[0] != "tenant-0" {
		t.Errorf("%+v", rep)
	}
	rep = report(nil, l.Snapshot(), ReportOptions{By: []Dim{ByTenant}})
	if rep.Lines[1].Group[0] != "0000000000000001" {
		t.Errorf("%+v", rep.Lines)
	}
	if rep := report(nil, nil, ReportOptions{By: []Dim{ByTenant}}); rep.Total.Requests != 0 || !rep.From.IsZero() || len(rep.Lines) != 0 {
		t.Errorf("an empty report: %+v", rep)
	}
}

func TestGPUViewCountsOwnEnginesOnly(t *testing.T) {
	s, err := gpu().Derive("m") // 1000 prefill tokens per second
	if err != nil {
		t.Fatal(err)
	}
	l := NewLedger(LedgerOptions{})
	l.Settle(&Event{At: t0, Model: "m", Usage: usage(120_000, 120_000, 1)})
	l.Settle(&Event{At: t0, Model: "m", Channel: "host", Usage: usage(500_000, 500_000, 1)})
	l.Settle(&Event{At: t0, Model: "m", Class: Prewarm, Usage: usage(500_000, 500_000, 1)})
	rep := report(nil, l.Snapshot(), ReportOptions{Speeds: map[string]*Speed{"m": s, "idle": s}})
	if len(rep.GPU) != 1 || rep.GPU[0].Model != "m" || rep.GPU[0].PrefillSeconds.String() != "120" || rep.GPU[0].EnginesNotNeeded.String() != "2" || rep.GPU[0].EstimatedCost.String() != "0.12" {
		t.Errorf("%+v", rep.GPU)
	}
}

func TestDimNames(t *testing.T) {
	for d := ByTenant; d <= ByMinute; d++ {
		if got, err := ParseDim(d.String()); err != nil || got != d {
			t.Errorf("%d: %v %v", d, got, err)
		}
	}
	if _, err := ParseDim("galaxy"); err == nil {
		t.Error("accepted")
	}
}

// The cost of one row that a store hands over: a million of them, a month of hours
// for 100 tenants and 14 prefixes, take a million times this.
func BenchmarkReportPerRow(b *testing.B) {
	rows := make([]Row, 100_000)
	for i := range rows {
		rows[i] = Row{Key{Minute: t0.Unix()/60 + int64(i/500), Tenant: uint64(i % 100), Model: "m", Prefix: "p" + strconv.Itoa(i%50), Node: "n"}, Sums{Requests: 1, Known: 1, Tokens: Tokens{Input: 1, CacheRead: 9}}}
	}
	book := mustBook(b)
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	r := NewReporter(book, ReportOptions{By: []Dim{ByTenant, ByPrefix, ByDay}, Location: loc})
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r.Add(&rows[i])
		if i++; i == len(rows) {
			i = 0
		}
	}
}
