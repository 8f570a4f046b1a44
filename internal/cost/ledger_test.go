package cost

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// drawUsage draws what engines report: known, partial, silent and contradictory.
func drawUsage(t *rapid.T) dialect.Usage {
	n := func(name string, most int64) int64 {
		return rapid.OneOf(rapid.Just(dialect.Unknown), rapid.Int64Range(0, most)).Draw(t, name)
	}
	return dialect.Usage{Prompt: n("prompt", 90_000), Cached: n("cached", 90_000), CacheWrite: n("write", 500),
		Write1h: n("hour", 500), Output: n("output", 2000), Reasoning: n("reasoning", 2500)}
}

func drawEvent(t *rapid.T) Event {
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	return Event{
		At:      t0.Add(time.Duration(rapid.IntRange(-3*3600, 3*3600).Draw(t, "second")) * time.Second),
		Tenant:  rapid.Uint64Range(0, 3).Draw(t, "tenant"),
		Model:   pick("model", "m", "lora", "free"),
		Prefix:  pick("prefix", "", "shop"),
		Node:    pick("node", "n1", "n2", Other),
		Channel: pick("channel", "", "host"),
		Tier:    pick("tier", "", "gold"),
		Class:   Class(rapid.IntRange(0, 2).Draw(t, "class")),
		Usage:   drawUsage(t),
		Verdict: dialect.Verdict(rapid.IntRange(0, 4).Draw(t, "verdict")),
	}
}

func total(rows []Row) Sums {
	var s Sums
	for i := range rows {
		s.Add(&rows[i].Sums)
	}
	return s
}

// Whatever the bound, the drains and the restores: no token is lost or doubled.
func TestLedgerLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(LedgerOptions{MaxRows: rapid.IntRange(1, 200).Draw(t, "rows")})
		var want Sums
		var stored []Row
		for _, e := range rapid.SliceOfN(rapid.Custom(drawEvent), 1, 120).Draw(t, "events") {
			l.Settle(&e)
			want.one(e.Usage, e.Verdict)
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				rows := l.Drain(e.At)
				for _, r := range rows {
					if !r.Start().Before(e.At) {
						t.Fatalf("drained the running minute: %v at %v", r.Start(), e.At)
					}
				}
				stored = append(stored, rows...)
			case 1:
				l.Restore(l.Drain(e.At)) // a store that could not write
			}
		}
		if got := total(append(l.Snapshot(), stored...)); got != want {
			t.Fatalf("\n got %+v\nwant %+v", got, want)
		}
		stored = append(stored, l.Drain(t0.Add(1000*time.Hour))...)
		if got := total(stored); got != want || l.Len() != 0 {
			t.Fatalf("after the last drain %d rows are left\n got %+v\nwant %+v", l.Len(), got, want)
		}
		for i := range l.shards {
			if l.shards[i].other != 0 {
				t.Fatalf("shard %d counts %d rows of Other in an empty ledger", i, l.shards[i].other)
			}
		}
	})
}

func TestB65LedgerIsBounded(t *testing.T) {
	l := NewLedger(LedgerOptions{MaxRows: 1600})
	const events = 100_000
	for i := range events {
		e := Event{At: t0.Add(time.Duration(i) * time.Minute), Tenant: uint64(i), Model: "model-" + strconv.Itoa(i), Node: "n" + strconv.Itoa(i%7), Usage: usage(10, 5, 1)}
		l.Settle(&e)
	}
	if n := l.Len(); n > 1600+ledgerShards*maxOther {
		t.Errorf("%d rows", n)
	}
	if s := total(l.Snapshot()); s.Requests != events || s.Tokens.CacheRead != 5*events {
		t.Errorf("%+v", s)
	}
	if l.Folded() < events-2000 {
		t.Errorf("%d folded: the alarm is too quiet", l.Folded())
	}
}

func TestMinutesRoundDownOnBothSidesOfTheEpoch(t *testing.T) {
	for second, want := range map[int64]int64{0: 0, 59: 0, 60: 1, -1: -1, -60: -1, -61: -2} {
		if got := minuteOf(time.Unix(second, 0)); got != want {
			t.Errorf("%d s: minute %d, want %d", second, got, want)
		}
	}
}

func TestLedgerIsSafeForConcurrentUse(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	var settle, drain sync.WaitGroup
	stop := make(chan struct{})
	var stored Sums
	drain.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s := total(l.Drain(t0.Add(time.Hour)))
				stored.Add(&s)
			}
		}
	})
	for g := range 4 {
		settle.Go(func() {
			for i := range 2000 {
				e := Event{At: t0, Tenant: uint64(i % 9), Node: "n" + strconv.Itoa(g), Usage: usage(10, 4, 2), Verdict: dialect.Success}
				l.Settle(&e)
			}
		})
	}
	settle.Wait()
	close(stop)
	drain.Wait()
	s := total(l.Snapshot())
	stored.Add(&s)
	if stored.Requests != 8000 || stored.Tokens.Input != 48000 || stored.Verdicts[dialect.Success] != 8000 {
		t.Errorf("%+v", stored)
	}
}

func TestRowExport(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	l.Settle(&Event{At: t0.Add(30 * time.Second), Tenant: 0xabc, Model: "m", Prefix: "shop", Node: "n1", Class: Prewarm,
		Usage: dialect.Usage{Prompt: 100, Cached: 60, CacheWrite: 10, Write1h: 4, Output: 7, Reasoning: 3}, Verdict: dialect.Success})
	rows := l.Snapshot()
	want := []string{"2026-11-30T12:00:00Z", "0000000000000abc", "m", "shop", "n1", "", "", "prewarm", "1",
		"0", "1", "0", "0", "0", "1", "30", "60", "6", "4", "7", "3", "0", "0", "0", "0", "0"}
	got := rows[0].Record()
	if len(rows) != 1 || len(got) != len(want) || len(want) != len(Columns()) {
		t.Fatalf("%d rows, %d fields, %d columns", len(rows), len(got), len(Columns()))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: %q, want %q", Columns()[i], got[i], want[i])
		}
	}
}

// Verdicts are stored by their number: a new order would mix up old rows.
func TestVerdictColumnsFollowTheDialect(t *testing.T) {
	names := Columns()[9:14]
	for i, want := range []dialect.Verdict{dialect.Unproven, dialect.Success, dialect.Incomplete, dialect.Failed, dialect.Cancelled} {
		if int(want) != i || names[i] != want.String() && want != dialect.Unproven {
			t.Errorf("column %s, verdict %d %s", names[i], want, want)
		}
	}
}

func BenchmarkSettle(b *testing.B) {
	l := NewLedger(LedgerOptions{})
	tenants := make([]Event, 5000)
	for i := range tenants {
		tenants[i] = Event{At: t0, Tenant: uint64(i % 100), Model: "qwen3-32b", Prefix: "shop-" + strconv.Itoa(i/100), Node: "engine-" + strconv.Itoa(i%8),
			Usage: usage(60_200, 59_904, 500), Verdict: dialect.Success}
		l.Settle(&tenants[i])
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l.Settle(&tenants[i])
		if i++; i == len(tenants) {
			i = 0
		}
	}
}

func BenchmarkSettleParallel(b *testing.B) {
	l := NewLedger(LedgerOptions{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := Event{At: t0, Model: "qwen3-32b", Prefix: "shop", Node: "engine-1", Usage: usage(60_200, 59_904, 500), Verdict: dialect.Success}
		for i := uint64(0); pb.Next(); i++ {
			e.Tenant = i % 100
			l.Settle(&e)
		}
	})
}
