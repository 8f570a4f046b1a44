package cost

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func entry(model string, change ...func(*Entry)) Entry {
	e := Entry{Model: model, Currency: "USD", Input: "2", CacheRead: "0.2", Output: "6", Source: "price page", Date: "2026-11-01"}
	for _, f := range change {
		f(&e)
	}
	return e
}

func day(s string) time.Time {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return t
}

func from(s string) func(*Entry)  { return func(e *Entry) { e.ValidFrom = day(s) } }
func until(s string) func(*Entry) { return func(e *Entry) { e.ValidUntil = day(s) } }

func TestBadPricesAreRefusedByEntryAndField(t *testing.T) {
	cases := []struct {
		name  string
		list  []Entry
		index int
		field string
		has   string
	}{
		{"negative", []Entry{entry("a"), entry("b", func(e *Entry) { e.CacheRead = "-0.1" })}, 1, "cache_read", "negative"},
		{"no model", []Entry{entry("")}, 0, "model", "missing"},
		{"no input price", []Entry{entry("a", func(e *Entry) { e.Input = "" })}, 0, "input", "missing"},
		{"no output price", []Entry{entry("a", func(e *Entry) { e.Output = "" })}, 0, "output", "missing"},
		{"no source", []Entry{entry("a", func(e *Entry) { e.Source = "" })}, 0, "source", "missing"},
		{"bad date", []Entry{entry("a", func(e *Entry) { e.Date = "1.11.2026" })}, 0, "date", "1.11.2026"},
		{"bad currency", []Entry{entry("a", func(e *Entry) { e.Currency = "$" })}, 0, "currency", "$"},
		{"exponent", []Entry{entry("a", func(e *Entry) { e.Input = "1e999999999" })}, 0, "input", "plain decimal"},
		{"thousands", []Entry{entry("a", func(e *Entry) { e.Input = "1,000" })}, 0, "input", "plain decimal"},
		{"endless", []Entry{entry("a", func(e *Entry) { e.Input = "0." + strings.Repeat("1", 100) })}, 0, "input", "plain decimal"},
		{"same key twice", []Entry{entry("a"), entry("b"), entry("a")}, 2, "valid_from", "prices[0]"},
		{"overlap", []Entry{entry("a", from("2026-02-01")), entry("a", from("2026-01-01"), until("2026-03-01"))}, 0, "valid_from", "prices[1]"},
		{"ends before it begins", []Entry{entry("a", from("2026-02-01"), until("2026-02-01"))}, 0, "valid_until", "not after"},
		{"second currency", []Entry{entry("a"), entry("b", func(e *Entry) { e.Currency = "EUR" })}, 1, "currency", "no rate from EUR to USD"},
		{"amount beside gpu", []Entry{{Model: "a", Input: "1", GPU: gpu()}}, 0, "input", "gpu"},
		{"bad gpu", []Entry{{Model: "a", GPU: &GPU{}}}, 0, "gpu", "per_hour"},
	}
	for _, c := range cases {
		b, err := NewBook(c.list, nil, "")
		var pe *PriceError
		if !errors.As(err, &pe) || b != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if pe.List != "prices" || pe.Index != c.index || pe.Field != c.field || !strings.Contains(pe.Reason, c.has) {
			t.Errorf("%s: %+v", c.name, pe)
		}
	}
}

func gpu() *GPU {
	return &GPU{PerHour: "3.6", GPUs: "1", Prefill: "1000", Decode: "100", Currency: "USD", Source: "contract", Date: "2026-11-01", Measured: "run 1"}
}

func TestAllFaultsAreReportedInOrder(t *testing.T) {
	_, err := NewBook([]Entry{entry("a", func(e *Entry) { e.Input = "-1"; e.Date = "" }), entry(""), entry("c", func(e *Entry) { e.Currency = "x" })}, nil, "USD")
	want := []string{"prices[0].date", "prices[0].input", "prices[1].model", "prices[2].currency"}
	if err == nil {
		t.Fatal("accepted")
	}
	text := err.Error()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %s: %s", w, text)
		}
	}
	if strings.Index(text, "prices[0]") > strings.Index(text, "prices[1]") || strings.Index(text, "prices[1]") > strings.Index(text, "prices[2]") {
		t.Errorf("order: %s", text)
	}
}

func TestTwoCurrenciesNeedARate(t *testing.T) {
	list := []Entry{entry("a"), entry("b", func(e *Entry) { e.Currency = "EUR" })}
	rate := Rate{From: "EUR", To: "USD", Rate: "1.10", Source: "bank", Date: "2026-11-30"}
	b, err := NewBook(list, []Rate{rate}, "USD")
	if err != nil {
		t.Fatal(err)
	}
	p, ok := b.Lookup("b", "", "", day("2026-11-30"))
	if !ok || p.Input.String() != "2.2" || p.CacheRead.String() != "0.22" || p.Output.String() != "6.6" || p.Currency != "USD" {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(p.Source, "1 EUR = 1.10 USD, bank (2026-11-30)") {
		t.Errorf("source %q", p.Source)
	}
	for name, bad := range map[string]Rate{
		"zero":       {From: "EUR", To: "USD", Rate: "0", Source: "s", Date: "d"},
		"negative":   {From: "EUR", To: "USD", Rate: "-1", Source: "s", Date: "d"},
		"no source":  {From: "EUR", To: "USD", Rate: "1", Date: "d"},
		"same":       {From: "EUR", To: "EUR", Rate: "1", Source: "s", Date: "d"},
		"elsewhere":  {From: "EUR", To: "JPY", Rate: "1", Source: "s", Date: "d"},
		"wrong from": {From: "euro", To: "USD", Rate: "1", Source: "s", Date: "d"},
	} {
		if _, err := NewBook(list, []Rate{bad}, "USD"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewBook(list, []Rate{rate, rate}, "USD"); err == nil {
		t.Error("a second rate from one currency is accepted")
	}
}

func TestLookupTakesTheMostSpecificPriceOfItsTime(t *testing.T) {
	priced := func(p string) func(*Entry) { return func(e *Entry) { e.Input = p } }
	at := func(tier, channel string) func(*Entry) {
		return func(e *Entry) { e.Tier, e.Channel = tier, channel }
	}
	b, err := NewBook([]Entry{
		entry("m", priced("1")),
		entry("m", priced("2"), from("2026-06-01")),
		entry("m", priced("3"), at("", "host")),
		entry("m", priced("4"), at("gold", "")),
		entry("m", priced("5"), at("gold", "host"), from("2026-01-01"), until("2026-02-01")),
	}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct{ model, tier, channel, day, want string }{
		{"m", "", "", "2020-01-01", "1"},
		{"m", "", "", "2026-05-31", "1"},
		{"m", "", "", "2026-06-01", "2"},
		{"m", "x", "y", "2026-06-01", "2"},
		{"m", "x", "host", "2026-06-01", "3"},
		{"m", "gold", "y", "2026-06-01", "4"},
		{"m", "gold", "host", "2026-01-31", "5"},
		{"m", "gold", "host", "2026-02-01", "3"},
		{"M", "", "", "2026-06-01", ""},
	}
	for _, c := range cases {
		p, ok := b.Lookup(c.model, c.tier, c.channel, day(c.day))
		if ok != (c.want != "") || ok && p.Input.String() != c.want {
			t.Errorf("%+v: %v %v", c, p, ok)
		}
	}
	var none *Book
	if _, ok := none.Lookup("m", "", "", day("2026-01-01")); ok || none.Currency() != "" {
		t.Error("no book, no price")
	}
}

func TestAbsentPricesClaimNoSaving(t *testing.T) {
	b, err := NewBook([]Entry{entry("m", func(e *Entry) { e.CacheRead = "" }), {Model: "own", GPU: gpu()}}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	tokens := &Tokens{Input: 10, CacheRead: 1000, Write5m: 10, Write1h: 10, Output: 5, Reasoning: 2}
	p, _ := b.Lookup("m", "", "", day("2026-01-01"))
	if !p.Of(tokens).Equal(p.Uncached(tokens)) {
		t.Errorf("%s %s", p.Of(tokens), p.Uncached(tokens))
	}
	p, _ = b.Lookup("own", "", "", day("2026-01-01"))
	if p.Input.String() != "1" || p.Output.String() != "10" || !strings.Contains(p.Source, "GPU-hour") {
		t.Errorf("%+v", p)
	}
	if got := p.Of(tokens).String(); got != "0.00008" { // 30 x 1 + 5 x 10
		t.Errorf("own engine: %s", got)
	}
}

// FuzzParseAmount: what is accepted is exactly the decimal that was written.
func FuzzParseAmount(f *testing.F) {
	for _, s := range []string{"0", "2", "0.20", "6.25", "-1", "1e9", ".5", "5.", "1_000", "٣", "0x1", " 1", "999999999999999999.999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseAmount(s)
		if err != nil {
			return
		}
		whole, part, _ := strings.Cut(s, ".")
		want := strings.TrimLeft(whole, "0")
		if want == "" {
			want = "0"
		}
		if part = strings.TrimRight(part, "0"); part != "" {
			want += "." + part
		}
		if d.String() != want || d.IsNegative() {
			t.Fatalf("%q became %s", s, d)
		}
	})
}
