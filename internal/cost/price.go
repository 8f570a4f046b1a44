package cost

import (
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// Entry is one price as written in a price file. Amounts are decimal text per
// million tokens, such as "2", "0.20" or "6.25"; "" is absent.
type Entry struct {
	Model   string // exact model or adapter name; required
	Tier    string // "" for every tier
	Channel string // "" for every channel and for own engines

	Currency string // three capital letters; required

	Input     string // required
	Output    string // required
	CacheRead string // "" means Input: without a price for cached tokens no saving is claimed
	Write5m   string // "" means Input
	Write1h   string // "" means Write5m
	Reasoning string // "" means Output

	Source string // where the price is from: a page, a contract; required, it is printed with each estimate
	Date   string // day the source was read, YYYY-MM-DD; required

	// GPU derives the amounts from own hardware instead; amounts, currency, source
	// and date above must then be empty.
	GPU *GPU

	ValidFrom  time.Time // zero: always
	ValidUntil time.Time // exclusive; zero: until a later entry of the same key begins
}

// Price is a validated Entry in the book's currency, per million tokens.
type Price struct {
	Model, Tier, Channel     string
	Input, CacheRead, Output decimal.Decimal
	Write5m, Write1h         decimal.Decimal
	Reasoning                decimal.Decimal
	Currency                 string // of the amounts above: the book's
	Source                   string // with the date, and with the exchange rate where one was used
	From, Until              time.Time

	units units // the amounts as integers, for budgets
}

// Of returns the exact cost of tokens.
func (p *Price) Of(t *Tokens) decimal.Decimal {
	return perMillion(
		times(t.Input, p.Input).
			Add(times(t.CacheRead, p.CacheRead)).
			Add(times(t.Write5m, p.Write5m)).
			Add(times(t.Write1h, p.Write1h)).
			Add(p.output(t)))
}

// Uncached returns the exact cost of the same tokens had every prompt token been
// prefilled at the input price: the counterfactual of each saving.
func (p *Price) Uncached(t *Tokens) decimal.Decimal {
	return perMillion(times(t.Prompt(), p.Input).Add(p.output(t)))
}

func (p *Price) output(t *Tokens) decimal.Decimal {
	return times(t.Output-t.Reasoning, p.Output).Add(times(t.Reasoning, p.Reasoning))
}

func times(n int64, price decimal.Decimal) decimal.Decimal { return decimal.NewFromInt(n).Mul(price) }

// perMillion moves the decimal point: exact, where a division might not be.
func perMillion(d decimal.Decimal) decimal.Decimal { return d.Shift(-6) }

// maxAmountDigits bounds the digits on either side of the point, so that exact
// arithmetic stays small whatever a file says.
const maxAmountDigits = 18

// ParseAmount reads a decimal without sign, exponent or separators.
func ParseAmount(s string) (decimal.Decimal, error) {
	whole, part, point := strings.Cut(s, ".")
	if !digits(whole) || point && !digits(part) {
		return decimal.Decimal{}, fmt.Errorf("%q is not a plain decimal such as 0.25", s)
	}
	return decimal.NewFromString(s)
}

func digits(s string) bool {
	if s == "" || len(s) > maxAmountDigits {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// PriceError says which entry and which field of a price list is wrong.
type PriceError struct {
	List   string // "prices" or "rates"
	Index  int    // position in the list, from 0
	Field  string // as in the price file; "" for the entry as a whole
	Reason string
}

// Error names the place the way a path into the file does.
func (e *PriceError) Error() string {
	place := fmt.Sprintf("%s[%d]", e.List, e.Index)
	if e.Field != "" {
		place += "." + e.Field
	}
	return "cannot use " + place + ": " + e.Reason
}

// parse validates one entry on its own.
func (e *Entry) parse(i int) (Price, []*PriceError) {
	c := &checker{index: i}
	c.require("model", e.Model)
	if !e.ValidUntil.IsZero() && !e.ValidFrom.Before(e.ValidUntil) {
		c.refuse("valid_until", "is not after valid_from")
	}
	var p Price
	if e.GPU != nil {
		p = e.derived(c)
	} else {
		p = e.listed(c)
	}
	p.Model, p.Tier, p.Channel, p.From, p.Until = e.Model, e.Tier, e.Channel, e.ValidFrom, e.ValidUntil
	return p, c.bad
}

func (e *Entry) listed(c *checker) Price {
	c.require("input", e.Input)
	c.require("output", e.Output)
	c.require("source", e.Source)
	c.require("date", e.Date)
	if !currency(e.Currency) {
		c.refuse("currency", fmt.Sprintf("%q is not three capital letters such as USD", e.Currency))
	}
	if _, err := time.Parse(time.DateOnly, e.Date); err != nil && e.Date != "" {
		c.refuse("date", fmt.Sprintf("%q is not a day such as 2026-11-30", e.Date))
	}
	p := Price{Currency: e.Currency, Source: e.Source + " (" + e.Date + ")"}
	p.Input = c.amount("input", e.Input, decimal.Zero)
	p.Output = c.amount("output", e.Output, decimal.Zero)
	p.CacheRead = c.amount("cache_read", e.CacheRead, p.Input)
	p.Write5m = c.amount("cache_write_5m", e.Write5m, p.Input)
	p.Write1h = c.amount("cache_write_1h", e.Write1h, p.Write5m)
	p.Reasoning = c.amount("reasoning", e.Reasoning, p.Output)
	return p
}

func (e *Entry) derived(c *checker) Price {
	for _, f := range [...]struct{ field, value string }{
		{"currency", e.Currency}, {"input", e.Input}, {"output", e.Output}, {"cache_read", e.CacheRead},
		{"cache_write_5m", e.Write5m}, {"cache_write_1h", e.Write1h}, {"reasoning", e.Reasoning}, {"source", e.Source}, {"date", e.Date},
	} {
		if f.value != "" {
			c.refuse(f.field, "stands beside gpu, which derives it")
		}
	}
	s, err := e.GPU.Derive(e.Model)
	if err != nil {
		c.refuse("gpu", err.Error())
		return Price{}
	}
	return s.Price
}

// checker collects the faults of one entry.
type checker struct {
	index int
	bad   []*PriceError
}

func (c *checker) refuse(field, reason string) {
	c.bad = append(c.bad, &PriceError{"prices", c.index, field, reason})
}

func (c *checker) require(field, value string) {
	if value == "" {
		c.refuse(field, "is missing")
	}
}

// amount parses an amount; an absent one takes another's value.
func (c *checker) amount(field, text string, other decimal.Decimal) decimal.Decimal {
	if text == "" {
		return other
	}
	if strings.HasPrefix(text, "-") {
		c.refuse(field, fmt.Sprintf("%q is negative", text))
		return other
	}
	d, err := ParseAmount(text)
	if err != nil {
		c.refuse(field, err.Error())
	}
	return d
}

func currency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return true
}
