package cost

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shopspring/decimal"
)

// Dim is a dimension that a report groups by.
type Dim uint8

// The dimensions. Day and Hour are those of the report's location: a day has 23
// or 25 hours where the clocks change.
const (
	ByTenant Dim = iota + 1
	ByModel
	ByPrefix
	ByNode
	ByChannel
	ByTier
	ByClass
	ByDay
	ByHour
	ByMinute
)

var dimNames = map[Dim]string{
	ByTenant: "tenant", ByModel: "model", ByPrefix: "prefix", ByNode: "node", ByChannel: "channel",
	ByTier: "tier", ByClass: "class", ByDay: "day", ByHour: "hour", ByMinute: "minute",
}

// String returns the name used on the command line.
func (d Dim) String() string { return dimNames[d] }

// ParseDim is the inverse of String.
func ParseDim(s string) (Dim, error) {
	for d, name := range dimNames {
		if name == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("cannot group by %q: choose tenant, model, prefix, node, channel, tier, class, day, hour or minute", s)
}

// ReportOptions configures a Reporter.
type ReportOptions struct {
	By       []Dim
	Location *time.Location // of days and hours; nil is UTC
	From, To time.Time      // rows outside [From, To) are left out; zero is open
	// Tenant names a tenant's digest; nil prints 16 hexadecimal digits.
	Tenant func(uint64) string
	// Speeds adds the GPU view of the models it names: rows without a channel.
	Speeds map[string]*Speed
}

// Money are the estimates of one line. All are exact, and cover the known requests
// that have a price, and only those.
type Money struct {
	Currency string `json:"currency"`
	// EstimatedCost is what the tokens cost at the price list.
	EstimatedCost decimal.Decimal `json:"estimated_cost"`
	// EstimatedWithoutCache is the estimated cost had these tokens been prefilled at
	// the input price: the counterfactual of the saving.
	EstimatedWithoutCache decimal.Decimal `json:"estimated_cost_had_these_tokens_been_prefilled_at_the_input_price"`
	EstimatedSaving       decimal.Decimal `json:"estimated_saving"`
	SavingPercent         decimal.Decimal `json:"estimated_saving_percent"` // one place
	Sources               []string        `json:"price_sources"`
}

// Line is one group of a report.
type Line struct {
	Group []string `json:"group"` // one value per dimension, in the order of Report.By
	Sums
	// HitRatePercent is cached of prompt tokens over the known requests, one place;
	// nil when there are none.
	HitRatePercent *decimal.Decimal `json:"hit_rate_percent"`
	// UnknownPercent is the share of requests whose cached tokens nobody reported.
	UnknownPercent decimal.Decimal `json:"unknown_percent"`
	// Unpriced are the known requests for which no price was found.
	Unpriced int64 `json:"unpriced"`
	// Money is nil, that is unknown, when no known request had a price.
	Money *Money `json:"money"`
}

// Report is the answer to "what was used and what did the cache save".
type Report struct {
	By             []string  `json:"by"`
	From           time.Time `json:"from"` // beginning of the first minute in it
	To             time.Time `json:"to"`   // end of the last
	Lines          []Line    `json:"lines"`
	Total          Line      `json:"total"`
	Counterfactual string    `json:"counterfactual"`
	GPU            []GPUView `json:"gpu,omitempty"` // by model, of those whose speeds are known
	// Notes are limits of this report that its reader must know of.
	Notes []string `json:"notes,omitempty"`
}

// Counterfactual states what the saving is compared with.
const Counterfactual = "the same requests, each prompt token prefilled and paid at the input price; the same answers; " +
	"requests whose cached tokens the engine did not report are left out of both sides"

// group is a line that is being added up, by price.
type group struct {
	values  []string
	byPrice map[*Price]*Sums
}

// Reporter adds rows up to a Report. Money is computed once per group and price,
// so a month of rows costs integer additions.
type Reporter struct {
	book     *Book
	o        ReportOptions
	groups   map[groupKey]*group
	prices   map[priceKey]*priceAt
	days     map[int64]int64 // minute -> beginning of its day, seconds
	first    int64
	last     int64
	any      bool
	from, to int64
	ownRead  map[string]int64 // cached tokens on own engines, by model
}

// groupKey holds the dimensions of a group that rows differ in.
type groupKey struct {
	key       Key   // the fields grouped by, others zero
	day, hour int64 // their beginnings, seconds
}

// priceAt remembers the price that was looked up last for a key.
type priceAt struct {
	minute int64
	price  *Price
	set    bool
}

// NewReporter returns an empty report. book may be nil: tokens only.
func NewReporter(book *Book, o ReportOptions) *Reporter {
	if o.Location == nil {
		o.Location = time.UTC
	}
	r := &Reporter{book: book, o: o, groups: map[groupKey]*group{}, prices: map[priceKey]*priceAt{}, days: map[int64]int64{}, ownRead: map[string]int64{}}
	if !o.From.IsZero() {
		r.from = minuteOf(o.From)
	}
	if !o.To.IsZero() {
		r.to = minuteOf(o.To)
	}
	return r
}

// Add adds one row. Rows may come in any order and repeat a key.
func (r *Reporter) Add(row *Row) {
	m := row.Minute
	if !r.o.From.IsZero() && m < r.from || !r.o.To.IsZero() && m >= r.to {
		return
	}
	r.AddSpan(row, m, m)
}

// AddSpan adds a row that stands for all minutes from first to last, whatever From and
// To are. No border that Cuts names may lie among those minutes.
func (r *Reporter) AddSpan(row *Row, first, last int64) {
	if !r.any || first < r.first {
		r.first = first
	}
	if !r.any || last > r.last {
		r.last = last
	}
	r.any = true
	if row.Channel == "" && row.Class == Traffic {
		if s := r.o.Speeds[row.Model]; s != nil {
			r.ownRead[row.Model] += row.Tokens.CacheRead
		}
	}
	g := r.group(row)
	p := r.price(row)
	s := g.byPrice[p]
	if s == nil {
		s = &Sums{}
		g.byPrice[p] = s
	}
	s.Add(&row.Sums)
}

func (r *Reporter) price(row *Row) *Price {
	if r.book == nil {
		return nil
	}
	k := priceKey{row.Model, row.Tier, row.Channel}
	at := r.prices[k]
	if at == nil {
		at = &priceAt{}
		r.prices[k] = at
	}
	if !at.set || at.minute != row.Minute {
		at.price, _ = r.book.Lookup(row.Model, row.Tier, row.Channel, row.Start())
		at.minute, at.set = row.Minute, true
	}
	return at.price
}

func (r *Reporter) group(row *Row) *group {
	k := r.key(row)
	g := r.groups[k]
	if g == nil {
		g = &group{values: r.values(row, k), byPrice: map[*Price]*Sums{}}
		r.groups[k] = g
	}
	return g
}

func (r *Reporter) key(row *Row) groupKey {
	var k groupKey
	for _, d := range r.o.By {
		switch d {
		case ByTenant:
			k.key.Tenant = row.Tenant
		case ByModel:
			k.key.Model = row.Model
		case ByPrefix:
			k.key.Prefix = row.Prefix
		case ByNode:
			k.key.Node = row.Node
		case ByChannel:
			k.key.Channel = row.Channel
		case ByTier:
			k.key.Tier = row.Tier
		case ByClass:
			k.key.Class = row.Class
		case ByMinute:
			k.key.Minute = row.Minute
		case ByHour:
			// A zone's offset may be no whole hour, and an hour occurs twice when
			// clocks go back: the offset keeps the two apart.
			_, offset := row.Start().In(r.o.Location).Zone()
			local := row.Minute*60 + int64(offset)
			k.hour = local - mod(local, 3600) - int64(offset)
		case ByDay:
			k.day = r.dayOf(row)
		}
	}
	return k
}

// dayOf returns the beginning of the row's local day.
func (r *Reporter) dayOf(row *Row) int64 {
	day, ok := r.days[row.Minute]
	if !ok {
		y, m, d := row.Start().In(r.o.Location).Date()
		day = time.Date(y, m, d, 0, 0, 0, 0, r.o.Location).Unix()
		r.days[row.Minute] = day
	}
	return day
}

func mod(a, b int64) int64 {
	if a %= b; a < 0 {
		a += b
	}
	return a
}

func (r *Reporter) values(row *Row, k groupKey) []string {
	out := make([]string, len(r.o.By))
	for i, d := range r.o.By {
		switch d {
		case ByTenant:
			out[i] = r.tenant(row.Tenant)
		case ByModel:
			out[i] = row.Model
		case ByPrefix:
			out[i] = row.Prefix
		case ByNode:
			out[i] = row.Node
		case ByChannel:
			out[i] = row.Channel
		case ByTier:
			out[i] = row.Tier
		case ByClass:
			out[i] = row.Class.String()
		case ByMinute:
			out[i] = row.Start().In(r.o.Location).Format(time.RFC3339)
		case ByHour:
			out[i] = time.Unix(k.hour, 0).In(r.o.Location).Format("2006-01-02T15:04Z07:00")
		case ByDay:
			out[i] = row.Start().In(r.o.Location).Format(time.DateOnly)
		}
	}
	return out
}

func (r *Reporter) tenant(digest uint64) string {
	if r.o.Tenant != nil {
		return r.o.Tenant(digest)
	}
	return fmt.Sprintf("%016x", digest)
}

// Report computes the lines and the total. More rows may be added afterwards.
func (r *Reporter) Report() *Report {
	out := &Report{Counterfactual: Counterfactual, Lines: []Line{}}
	for _, d := range r.o.By {
		out.By = append(out.By, d.String())
	}
	if r.any {
		out.From = time.Unix(r.first*60, 0).In(r.o.Location)
		out.To = time.Unix((r.last+1)*60, 0).In(r.o.Location)
	}
	all := &group{values: make([]string, len(r.o.By)), byPrice: map[*Price]*Sums{}}
	for _, g := range r.groups {
		out.Lines = append(out.Lines, g.line())
		for p, s := range g.byPrice {
			if all.byPrice[p] == nil {
				all.byPrice[p] = &Sums{}
			}
			all.byPrice[p].Add(s)
		}
	}
	out.Total = all.line()
	slices.SortFunc(out.Lines, func(a, b Line) int { return slices.CompareFunc(a.Group, b.Group, cmp.Compare[string]) })
	for _, model := range slices.Sorted(maps.Keys(r.ownRead)) {
		v := r.o.Speeds[model].View(r.ownRead[model], (r.last+1-r.first)*60)
		v.Model = model
		out.GPU = append(out.GPU, v)
	}
	return out
}

func (g *group) line() Line {
	l := Line{Group: g.values}
	var m Money
	priced := false
	for p, s := range g.byPrice {
		l.Add(s)
		if s.Known == 0 {
			continue
		}
		if p == nil {
			l.Unpriced += s.Known
			continue
		}
		priced = true
		m.add(p, &s.Tokens)
	}
	if prompt := l.Tokens.Prompt(); prompt > 0 {
		rate := percent(decimal.NewFromInt(l.Tokens.CacheRead), decimal.NewFromInt(prompt))
		l.HitRatePercent = &rate
	}
	l.UnknownPercent = percent(decimal.NewFromInt(l.Partial+l.Silent), decimal.NewFromInt(l.Requests))
	if priced {
		m.EstimatedSaving = m.EstimatedWithoutCache.Sub(m.EstimatedCost)
		m.SavingPercent = percent(m.EstimatedSaving, m.EstimatedWithoutCache)
		slices.Sort(m.Sources)
		l.Money = &m
	}
	return l
}

func (m *Money) add(p *Price, t *Tokens) {
	m.Currency = p.Currency
	m.EstimatedCost = m.EstimatedCost.Add(p.Of(t))
	m.EstimatedWithoutCache = m.EstimatedWithoutCache.Add(p.Uncached(t))
	if !slices.Contains(m.Sources, p.Source) {
		m.Sources = append(m.Sources, p.Source)
	}
}
