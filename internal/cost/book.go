package cost

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/shopspring/decimal"
)

// Rate turns one currency into another. It is used only if a price list has more
// than one currency, or another than the one asked for.
type Rate struct {
	From, To string // currencies
	Rate     string // how many To for one From; decimal text above zero
	Source   string // printed with each estimate that used the rate; required
	Date     string // YYYY-MM-DD; required
}

// Book is a validated price list in one currency. It is immutable.
type Book struct {
	currency string
	prices   []Price
	byKey    map[priceKey][]int // indices into prices by From
}

type priceKey struct{ model, tier, channel string }

// NewBook validates a price list. currency is the one that estimates are given in;
// "" takes the currency of the list, which must then have only one. A list that
// has another currency is refused unless a rate to the wanted one is given.
//
// The error joins one *PriceError per fault.
func NewBook(entries []Entry, rates []Rate, currency string) (*Book, error) {
	b := &Book{currency: currency, byKey: map[priceKey][]int{}}
	var faults []*PriceError
	into := b.rates(rates, &faults)
	for i := range entries {
		p, bad := entries[i].parse(i)
		faults = append(faults, bad...)
		if b.currency == "" && len(bad) == 0 {
			b.currency = p.Currency
		}
		if len(bad) == 0 && p.Currency != b.currency {
			if reason := p.convert(into[p.Currency], b.currency); reason != "" {
				faults = append(faults, &PriceError{"prices", i, "currency", reason})
			}
		}
		b.prices = append(b.prices, p)
		key := priceKey{p.Model, p.Tier, p.Channel}
		b.byKey[key] = append(b.byKey[key], i)
	}
	for _, list := range b.byKey {
		faults = append(faults, b.overlaps(list)...)
	}
	if len(faults) == 0 {
		for i := range b.prices {
			b.prices[i].units = b.prices[i].integers()
		}
		return b, nil
	}
	sort.SliceStable(faults, func(i, j int) bool {
		x, y := faults[i], faults[j]
		return x.List < y.List || x.List == y.List && x.Index < y.Index
	})
	all := make([]error, len(faults))
	for i := range faults {
		all[i] = faults[i]
	}
	return nil, errors.Join(all...)
}

// exchange is a validated Rate.
type exchange struct {
	rate   decimal.Decimal
	to     string
	source string
}

func (b *Book) rates(rates []Rate, faults *[]*PriceError) map[string]exchange {
	into := map[string]exchange{}
	for i, r := range rates {
		refuse := func(field, reason string) {
			*faults = append(*faults, &PriceError{"rates", i, field, reason})
		}
		d, err := ParseAmount(r.Rate)
		switch {
		case !currency(r.From):
			refuse("from", fmt.Sprintf("%q is not three capital letters", r.From))
		case !currency(r.To) || r.To == r.From:
			refuse("to", fmt.Sprintf("%q is not another currency", r.To))
		case err != nil:
			refuse("rate", err.Error())
		case d.IsZero():
			refuse("rate", "is zero")
		case r.Source == "":
			refuse("source", "is missing")
		case r.Date == "":
			refuse("date", "is missing")
		case into[r.From].to != "":
			refuse("from", r.From+" has a rate already")
		default:
			into[r.From] = exchange{d, r.To, fmt.Sprintf("1 %s = %s %s, %s (%s)", r.From, r.Rate, r.To, r.Source, r.Date)}
		}
	}
	return into
}

// convert turns the amounts into another currency, exactly; the answer is the
// reason why that cannot be done.
func (p *Price) convert(x exchange, to string) string {
	if x.to != to {
		return fmt.Sprintf("%s is not the currency of the estimates (%s), and no rate from %s to %s is given", p.Currency, to, p.Currency, to)
	}
	for _, d := range []*decimal.Decimal{&p.Input, &p.CacheRead, &p.Output, &p.Write5m, &p.Write1h, &p.Reasoning} {
		*d = d.Mul(x.rate)
	}
	p.Currency = to
	p.Source += "; " + x.source
	return ""
}

// overlaps sorts the entries of one key by their beginning and refuses two that
// hold at the same time. An entry without an end gives way to the next one.
func (b *Book) overlaps(list []int) (faults []*PriceError) {
	sort.SliceStable(list, func(i, j int) bool { return b.prices[list[i]].From.Before(b.prices[list[j]].From) })
	for k := 1; k < len(list); k++ {
		i, j := list[k-1], list[k]
		before, after := &b.prices[i], &b.prices[j]
		switch {
		case before.From.Equal(after.From):
			faults = append(faults, &PriceError{"prices", max(i, j), "valid_from",
				fmt.Sprintf("is the same price key and beginning as prices[%d]", min(i, j))})
		case before.Until.IsZero():
			before.Until = after.From
		case before.Until.After(after.From):
			faults = append(faults, &PriceError{"prices", j, "valid_from", fmt.Sprintf("overlaps with prices[%d]", i)})
		}
	}
	return faults
}

// Currency returns the currency of all prices; "" for an empty list.
func (b *Book) Currency() string {
	if b == nil {
		return ""
	}
	return b.currency
}

// Lookup returns the price that held at a time. The most specific entry wins:
// model, tier and channel; model and channel; model and tier; model alone. A more
// specific entry that did not hold at that time leaves the choice to the next.
func (b *Book) Lookup(model, tier, channel string, at time.Time) (*Price, bool) {
	if b == nil {
		return nil, false
	}
	for _, key := range [...]priceKey{{model, tier, channel}, {model, "", channel}, {model, tier, ""}, {model, "", ""}} {
		for _, i := range b.byKey[key] {
			p := &b.prices[i]
			if !at.Before(p.From) && (p.Until.IsZero() || at.Before(p.Until)) {
				return p, true
			}
		}
	}
	return nil, false
}
