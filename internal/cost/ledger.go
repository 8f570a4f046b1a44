package cost

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Event is one settled request.
type Event struct {
	At      time.Time // when it was settled
	Tenant  uint64    // digest
	Model   string
	Prefix  string
	Node    string
	Channel string
	Tier    string
	Class   Class
	Usage   dialect.Usage
	Verdict dialect.Verdict
}

// LedgerOptions configures a Ledger. The zero value is a working default.
type LedgerOptions struct {
	// MaxRows bounds the rows held in memory; 0 means 131072 (about 40 MB). Beyond
	// it new keys of a minute are counted together under the name Other, so that no
	// token is lost, only its attribution.
	MaxRows int
}

// Other is the model, prefix, node and channel of rows that hold what had no room.
const Other = "other"

const (
	defaultMaxRows = 1 << 17
	ledgerShards   = 16
)

// Ledger adds up settled requests per key and minute, in memory, until someone
// drains it. Settle does no I/O and is safe for concurrent use.
type Ledger struct {
	perShard int
	folded   atomic.Int64
	shards   [ledgerShards]ledgerShard
}

type ledgerShard struct {
	mu    sync.Mutex
	rows  map[Key]*Sums
	other int            // rows of Other among them
	last  [classes]int64 // minute of the newest row of Other, by class
	_     [64]byte       // keeps two shards off one cache line
}

// NewLedger returns an empty ledger.
func NewLedger(o LedgerOptions) *Ledger {
	if o.MaxRows <= 0 {
		o.MaxRows = defaultMaxRows
	}
	l := &Ledger{perShard: max(1, o.MaxRows/ledgerShards)}
	for i := range l.shards {
		l.shards[i].rows = map[Key]*Sums{}
	}
	return l
}

// Settle counts one request.
func (l *Ledger) Settle(e *Event) {
	k := Key{minuteOf(e.At), e.Tenant, e.Model, e.Prefix, e.Node, e.Channel, e.Tier, e.Class}
	s := l.shard(&k)
	s.mu.Lock()
	l.row(s, k).one(e.Usage, e.Verdict)
	s.mu.Unlock()
}

// Minute returns the minute, since 1970-01-01 UTC, that a time is in.
func Minute(t time.Time) int64 { return minuteOf(t) }

// minuteOf rounds down, also before 1970.
func minuteOf(t time.Time) int64 {
	u := t.Unix()
	m := u / 60
	if u%60 < 0 {
		m--
	}
	return m
}

// shard spreads tenants and nodes; requests of one tenant on one node share one.
func (l *Ledger) shard(k *Key) *ledgerShard {
	h := k.Tenant
	for i := range len(k.Node) {
		h = (h ^ uint64(k.Node[i])) * 0x100000001b3
	}
	h ^= h >> 29
	return &l.shards[h%ledgerShards]
}

// row finds or makes the row of a key; the shard is locked.
func (l *Ledger) row(s *ledgerShard, k Key) *Sums {
	if r, ok := s.rows[k]; ok {
		return r
	}
	if len(s.rows)-s.other < l.perShard && !k.isOther() {
		r := &Sums{}
		s.rows[k] = r
		return r
	}
	l.folded.Add(1)
	class := min(k.Class, classes-1)
	k = OtherKey(k.Minute, class)
	if s.other >= maxOther {
		k.Minute = s.last[class] // nobody has drained a full ledger for a day
	}
	r, ok := s.rows[k]
	if !ok {
		r = &Sums{}
		s.rows[k] = r
		s.other++
		s.last[class] = k.Minute
	}
	return r
}

// OtherKey is the key of rows whose attribution had no room.
func OtherKey(minute int64, class Class) Key {
	return Key{Minute: minute, Model: Other, Prefix: Other, Node: Other, Channel: Other, Class: class}
}

// maxOther bounds the rows of Other in a shard: a day of minutes without a drain.
const maxOther = 24 * 60

func (k *Key) isOther() bool {
	return k.Tenant == 0 && k.Model == Other && k.Prefix == Other && k.Node == Other && k.Channel == Other
}

// Folded returns how many settled requests lost their attribution to Other since
// the ledger was made. Above zero is worth an alarm: raise MaxRows or drain.
func (l *Ledger) Folded() int64 { return l.folded.Load() }

// Len returns the rows held.
func (l *Ledger) Len() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += len(s.rows)
		s.mu.Unlock()
	}
	return n
}

// Drain removes and returns the rows of minutes that ended at or before a time.
// Pass the present to keep the running minute, a far future to take everything. The
// order is not defined.
func (l *Ledger) Drain(before time.Time) []Row {
	limit := minuteOf(before)
	var out []Row
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for k, sums := range s.rows {
			if k.Minute < limit {
				out = append(out, Row{k, *sums})
				delete(s.rows, k)
				if k.isOther() {
					s.other--
				}
			}
		}
		s.mu.Unlock()
	}
	return out
}

// Restore puts drained rows back, for a store that could not write them. They are
// added to what has been settled since.
func (l *Ledger) Restore(rows []Row) {
	for i := range rows {
		s := l.shard(&rows[i].Key)
		s.mu.Lock()
		l.row(s, rows[i].Key).Add(&rows[i].Sums)
		s.mu.Unlock()
	}
}

// Snapshot returns a copy of all rows. The order is not defined.
func (l *Ledger) Snapshot() []Row {
	var out []Row
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for k, sums := range s.rows {
			out = append(out, Row{k, *sums})
		}
		s.mu.Unlock()
	}
	return out
}
