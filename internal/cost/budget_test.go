package cost

import (
	"math/big"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"
)

func budgetFor(t *testing.T, l Limit, loc *time.Location) *Budgets {
	t.Helper()
	b, err := NewBudgets(map[uint64]Limit{1: l}, loc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func spend(b *Budgets, at time.Time, tokens int64, p *Price) int {
	return b.Settle(&Event{At: at, Tenant: 1, Model: "m", Usage: usage(tokens, 0, 0)}, p)
}

func TestTokenBudgetAlarmsOnceAndEnforces(t *testing.T) {
	b := budgetFor(t, Limit{Tokens: 1000, Alarms: []int{50, 80, 100}, Enforce: true}, nil)
	for i, step := range []struct {
		tokens int64
		alarm  int
		ok     bool
	}{{499, 0, true}, {1, 50, true}, {1, 0, true}, {498, 80, true}, {1, 100, false}, {5000, 0, false}} {
		if got := spend(b, t0, step.tokens, nil); got != step.alarm {
			t.Errorf("step %d: alarm %d, want %d", i, got, step.alarm)
		}
		ok, wait := b.Allowed(1, t0)
		if ok != step.ok || !ok && wait != 12*time.Hour {
			t.Errorf("step %d: allowed %v, wait %v", i, ok, wait)
		}
	}
	if ok, _ := b.Allowed(1, t0.Add(12*time.Hour)); !ok {
		t.Error("the next day is not a new budget")
	}
	if ok, _ := b.Allowed(2, t0); !ok {
		t.Error("a tenant without a budget is refused")
	}
}

func TestMoneyBudgetIsExact(t *testing.T) {
	p, ok := mustBook(t).Lookup("m", "", "", t0) // 3 per million
	if !ok {
		t.Fatal("no price")
	}
	b := budgetFor(t, Limit{Money: "3", Alarms: []int{100}, Enforce: true}, nil)
	if a := spend(b, t0, 999_999, p); a != 0 {
		t.Errorf("one token before the limit: alarm %d", a)
	}
	if ok, _ := b.Allowed(1, t0); !ok {
		t.Error("one token before the limit")
	}
	if a := spend(b, t0, 1, p); a != 100 {
		t.Errorf("at the limit: alarm %d", a)
	}
	if ok, _ := b.Allowed(1, t0); ok {
		t.Error("at the limit")
	}
	if tokens, money := b.Used(1); tokens != 1_000_000 || money.String() != "3" {
		t.Errorf("%d %s", tokens, money)
	}
}

func TestBudgetWithoutEnforcementOnlyAlarms(t *testing.T) {
	b := budgetFor(t, Limit{Tokens: 10, Alarms: []int{100, 200}}, nil)
	if a := spend(b, t0, 25, nil); a != 200 {
		t.Errorf("alarm %d", a)
	}
	if ok, _ := b.Allowed(1, t0); !ok {
		t.Error("refused without enforcement")
	}
}

func TestBudgetDaysAreLocalAndClockJumpsGiveNoSecondDay(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	b := budgetFor(t, Limit{Tokens: 100, Enforce: true}, berlin)
	evening := time.Date(2026, 10, 24, 23, 59, 0, 0, berlin)
	spend(b, evening, 100, nil)
	if ok, wait := b.Allowed(1, evening); ok || wait != time.Minute {
		t.Errorf("%v %v", ok, wait)
	}
	morning := evening.Add(time.Minute) // a day of 25 hours begins
	if ok, _ := b.Allowed(1, morning); !ok {
		t.Error("a new day")
	}
	spend(b, morning, 100, nil)
	if ok, wait := b.Allowed(1, morning); ok || wait != 25*time.Hour {
		t.Errorf("%v %v", ok, wait)
	}
	if ok, _ := b.Allowed(1, evening); ok {
		t.Error("the clock jumped back and handed out a budget again")
	}
	if tokens, _ := b.Used(1); tokens != 100 {
		t.Errorf("%d", tokens)
	}
}

func TestBudgetSurvivesARestart(t *testing.T) {
	l := NewLedger(LedgerOptions{})
	e := Event{At: t0, Tenant: 1, Model: "m", Usage: usage(900, 0, 50)}
	l.Settle(&e)
	b := budgetFor(t, Limit{Tokens: 1000, Alarms: []int{90, 100}, Enforce: true}, nil)
	for _, r := range l.Snapshot() {
		b.Load(&r, nil)
	}
	if a := spend(b, t0, 10, nil); a != 0 {
		t.Errorf("alarm %d was raised before the restart", a)
	}
	if a := spend(b, t0, 40, nil); a != 100 {
		t.Errorf("alarm %d", a)
	}
}

func TestBadLimitsAreRefused(t *testing.T) {
	for _, l := range []Limit{{Tokens: -1}, {Money: "-1"}, {Money: "x"}, {Alarms: []int{0}}, {Alarms: []int{1001}}} {
		if _, err := NewBudgets(map[uint64]Limit{1: l}, nil); err == nil {
			t.Errorf("accepted: %+v", l)
		}
	}
}

// The integer arithmetic of budgets agrees with the decimals of the reports.
func TestUnitsAgreeWithDecimals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		price := func(name string) decimal.Decimal {
			return decimal.New(rapid.Int64Range(0, 1_000_000_000).Draw(t, name), -int32(rapid.IntRange(0, 6).Draw(t, "places")))
		}
		p := Price{Input: price("input"), CacheRead: price("read"), Output: price("output"), Write5m: price("w5"), Write1h: price("w1"), Reasoning: price("reasoning")}
		p.units = p.integers()
		n := func(name string) int64 { return rapid.Int64Range(0, 1<<40).Draw(t, name) }
		tokens := Tokens{n("i"), n("c"), n("5"), n("1"), n("o"), 0}
		tokens.Reasoning = rapid.Int64Range(0, tokens.Output).Draw(t, "r")
		if got, want := p.units.of(&tokens).decimal(), p.Of(&tokens); !got.Equal(want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func TestUnitsRoundUpAndSaturate(t *testing.T) {
	if got := unit(amount("0.0000001")); got != 1 {
		t.Errorf("a price below the unit became %d", got)
	}
	if got := unit(amount("999999999999999999")); got != 1<<64-1 {
		t.Errorf("an absurd price became %d", got)
	}
}

func TestPercentAgreesWithBigIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) units128 {
			return units128{rapid.Uint64().Draw(t, name) >> rapid.IntRange(0, 64).Draw(t, "shift"), rapid.Uint64().Draw(t, name+" low")}
		}
		a, b := draw("a"), draw("b")
		a.hi >>= 7 // below the saturation of times100
		if b == (units128{}) {
			return
		}
		wide := func(u units128) *big.Int {
			n := new(big.Int).Lsh(new(big.Int).SetUint64(u.hi), 64)
			return n.Or(n, new(big.Int).SetUint64(u.lo))
		}
		q := wide(a)
		q.Mul(q, big.NewInt(100)).Div(q, wide(b))
		want := maxPercent
		if q.IsInt64() && q.Int64() < maxPercent {
			want = int(q.Int64())
		}
		if got := a.percentOf(b); got != want {
			t.Fatalf("%v of %v: %d, want %d", a, b, got, want)
		}
	})
}

func BenchmarkBudgetSettle(b *testing.B) {
	book := mustBook(b)
	budgets, err := NewBudgets(map[uint64]Limit{1: {Tokens: 1 << 60, Money: "1000000", Alarms: []int{50, 80, 100}}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	e := Event{At: t0, Tenant: 1, Model: "m", Usage: usage(60_200, 59_904, 500)}
	b.ReportAllocs()
	for b.Loop() {
		p, _ := book.Lookup(e.Model, e.Tier, e.Channel, e.At)
		budgets.Settle(&e, p)
	}
}
