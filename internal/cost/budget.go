package cost

import (
	"fmt"
	"sync"
	"time"

	"github.com/shopspring/decimal"
)

// Limit is what a tenant may use in one day. Zero values set no limit.
type Limit struct {
	Tokens int64  // prompt and generated tokens that engines counted
	Money  string // decimal text in the book's currency; estimated from known requests
	Alarms []int  // percentages of the limit at which Settle reports a crossing
	// Enforce makes Allowed refuse a tenant that has used its limit up. Without it
	// a budget only raises alarms.
	Enforce bool
}

// Budgets follows daily budgets. The day is that of the location, whatever its
// length; a clock that jumps back does not hand out a second day.
type Budgets struct {
	loc *time.Location

	mu   sync.Mutex
	used map[uint64]*spent
}

// spent is what one tenant has used on its present day.
type spent struct {
	limit  Limit
	money  units128 // limit
	day    int
	tokens int64
	cost   units128
	alarm  int // highest alarm reported today
}

// NewBudgets validates limits by tenant digest. loc nil is UTC.
func NewBudgets(limits map[uint64]Limit, loc *time.Location) (*Budgets, error) {
	if loc == nil {
		loc = time.UTC
	}
	b := &Budgets{loc: loc, used: make(map[uint64]*spent, len(limits))}
	for tenant, l := range limits {
		s := &spent{limit: l}
		if l.Tokens < 0 {
			return nil, fmt.Errorf("cannot use budget: tokens %d is negative", l.Tokens)
		}
		if l.Money != "" {
			d, err := ParseAmount(l.Money)
			if err != nil {
				return nil, fmt.Errorf("cannot use budget: money: %w", err)
			}
			s.money = wide(d)
		}
		for _, a := range l.Alarms {
			if a < 1 || a > 1000 {
				return nil, fmt.Errorf("cannot use budget: alarm at %d percent is not within 1..1000", a)
			}
		}
		b.used[tenant] = s
	}
	return b, nil
}

// dayNumber orders local days.
func dayNumber(t time.Time, loc *time.Location) int {
	y, m, d := t.In(loc).Date()
	return (y*100+int(m))*100 + d
}

// Settle counts one request; price is what holds for it, nil when unknown. The
// result is the highest alarm percentage that this request crossed first today, 0
// for none.
func (b *Budgets) Settle(e *Event, price *Price) int {
	var sums Sums
	sums.one(e.Usage, e.Verdict)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.used[e.Tenant]
	if s == nil {
		return 0
	}
	s.turn(dayNumber(e.At, b.loc))
	s.add(&sums, price)
	return s.crossed()
}

// Load counts a stored row, so that a restart does not forget the day. Load the
// rows of the present day, before traffic.
func (b *Budgets) Load(r *Row, price *Price) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.used[r.Tenant]; s != nil {
		s.turn(dayNumber(r.Start(), b.loc))
		s.add(&r.Sums, price)
		s.crossed()
	}
}

// Allowed reports whether the tenant may begin a request now. When it may not, the
// duration is the time until its next day begins.
func (b *Budgets) Allowed(tenant uint64, now time.Time) (bool, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.used[tenant]
	if s == nil || !s.limit.Enforce {
		return true, 0
	}
	s.turn(dayNumber(now, b.loc))
	if s.percent() < 100 {
		return true, 0
	}
	y, m, d := now.In(b.loc).Date()
	return false, time.Date(y, m, d+1, 0, 0, 0, 0, b.loc).Sub(now)
}

// Used returns the tokens and the estimated money that a tenant has used on the
// day of its last request.
func (b *Budgets) Used(tenant uint64) (tokens int64, money decimal.Decimal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.used[tenant]; s != nil {
		return s.tokens, s.cost.decimal()
	}
	return 0, decimal.Zero
}

// turn begins a new day. A day before the present one is a clock that jumped
// back: its requests count on the present day.
func (s *spent) turn(day int) {
	if day > s.day {
		s.day, s.tokens, s.cost, s.alarm = day, 0, units128{}, 0
	}
}

func (s *spent) add(sums *Sums, price *Price) {
	s.tokens += sums.Prompt() + sums.Output()
	if price != nil {
		s.cost = s.cost.plus(price.units.of(&sums.Tokens))
	}
}

// percent returns how much of the tighter limit is used, rounded down.
func (s *spent) percent() int {
	p := 0
	if s.limit.Tokens > 0 {
		p = units128{0, uint64(s.tokens)}.percentOf(units128{0, uint64(s.limit.Tokens)})
	}
	if s.money != (units128{}) {
		p = max(p, s.cost.percentOf(s.money))
	}
	return p
}

func (s *spent) crossed() int {
	p, highest := s.percent(), 0
	for _, a := range s.limit.Alarms {
		if p >= a && a > s.alarm {
			highest = max(highest, a)
		}
	}
	if highest > 0 {
		s.alarm = highest
	}
	return highest
}
