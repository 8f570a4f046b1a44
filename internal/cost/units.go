package cost

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/shopspring/decimal"
)

// Budgets are followed on the request path, where decimals would allocate. They
// count in units of 10^-12 of the currency, in integers: exact for prices with up
// to six places per million tokens, and rounded up beyond.

// unitShift turns a price per million tokens into units per token: 12 - 6.
const unitShift = 6

// units are the amounts of a price in units per token.
type units struct{ input, read, write5m, write1h, output, reasoning uint64 }

func (p *Price) integers() units {
	return units{unit(p.Input), unit(p.CacheRead), unit(p.Write5m), unit(p.Write1h), unit(p.Output), unit(p.Reasoning)}
}

// unit saturates: a price that large uses up any budget.
func unit(d decimal.Decimal) uint64 {
	n := d.Shift(unitShift).Ceil().BigInt()
	if !n.IsUint64() {
		return math.MaxUint64
	}
	return n.Uint64()
}

func (u *units) of(t *Tokens) units128 {
	return product(t.Input, u.input).
		plus(product(t.CacheRead, u.read)).
		plus(product(t.Write5m, u.write5m)).
		plus(product(t.Write1h, u.write1h)).
		plus(product(t.Output-t.Reasoning, u.output)).
		plus(product(t.Reasoning, u.reasoning))
}

// units128 is an amount; hi and lo are the halves of an unsigned integer.
type units128 struct{ hi, lo uint64 }

func product(n int64, each uint64) units128 {
	hi, lo := bits.Mul64(uint64(n), each)
	return units128{hi, lo}
}

// plus saturates.
func (a units128) plus(b units128) units128 {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, over := bits.Add64(a.hi, b.hi, carry)
	if over != 0 {
		return units128{math.MaxUint64, math.MaxUint64}
	}
	return units128{hi, lo}
}

// maxPercent caps percentOf.
const maxPercent = 1000

// percentOf returns a in percent of b, rounded down and capped.
func (a units128) percentOf(b units128) int {
	scaled := a.times100()
	if b.hi == 0 {
		if scaled.hi >= b.lo {
			return maxPercent // the quotient is above 2^64, or b is zero
		}
		q, _ := bits.Div64(scaled.hi, scaled.lo, b.lo)
		return int(min(q, maxPercent))
	}
	p := 0
	for ; p < maxPercent; p++ { // beyond 18 million a day: subtract, at most 1000 times
		lo, borrow := bits.Sub64(scaled.lo, b.lo, 0)
		hi, under := bits.Sub64(scaled.hi, b.hi, borrow)
		if under != 0 {
			return p
		}
		scaled = units128{hi, lo}
	}
	return p
}

func (a units128) times100() units128 {
	over, hi := bits.Mul64(a.hi, 100)
	carry, lo := bits.Mul64(a.lo, 100)
	hi, c := bits.Add64(hi, carry, 0)
	if over != 0 || c != 0 {
		return units128{math.MaxUint64, math.MaxUint64}
	}
	return units128{hi, lo}
}

// wide is an amount of money in units, rounded up.
func wide(d decimal.Decimal) units128 {
	n := d.Shift(12).Ceil().BigInt()
	lo := new(big.Int).And(n, new(big.Int).SetUint64(math.MaxUint64))
	return units128{new(big.Int).Rsh(n, 64).Uint64(), lo.Uint64()}
}

func (a units128) decimal() decimal.Decimal {
	n := new(big.Int).Lsh(new(big.Int).SetUint64(a.hi), 64)
	return decimal.NewFromBigInt(n.Or(n, new(big.Int).SetUint64(a.lo)), -12)
}
