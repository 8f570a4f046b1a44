package fingerprint

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Defaults of ChurnOptions.
const (
	DefaultChurnPrefixes = 64
	DefaultChurnBytes    = 4 << 20
	DefaultChurnGap      = 100 * time.Millisecond
)

// grain is the resolution of a sketch: one 32-bit hash stands for so many bytes of text.
const grain = 16

// ChurnOptions of a Churn. The zero value, but for Now, is valid.
type ChurnOptions struct {
	Now func() time.Time // required
	// Seed keys the sketches, so that they say nothing without the process that made
	// them. Give it a random number.
	Seed uint64
	// MaxPrefixes and MaxBytes bound what is remembered. 0 = 64 prefixes and 4 MiB; the
	// ones not seen for longest go first. A prefix takes a quarter of its text.
	MaxPrefixes, MaxBytes int
	// Gap is the least time between two new prefixes that are looked at; those in between
	// are let pass, so that a prompt which is new in every request does not cost a second
	// reading in every request. 0 = 100 ms; negative = none.
	Gap time.Duration
}

// Change says in what a new static prefix differs from the one it is closest to.
type Change uint8

// The changes, in the order in which a prompt is rendered; the first that applies is told.
const (
	ChangeArguments Change = iota + 1 // template arguments or salt
	ChangeToolOrder                   // the same tools in another order
	ChangeToolKeys                    // the same tools with members in another order
	ChangeTools                       // other tools
	ChangeText                        // system or developer text
	ChangeMessages                    // a leading message more or fewer, or one of another shape or role
)

// String returns the label value used in metrics.
func (c Change) String() string {
	switch c {
	case ChangeArguments:
		return "arguments"
	case ChangeToolOrder:
		return "tool-order"
	case ChangeToolKeys:
		return "tool-keys"
	case ChangeTools:
		return "tools"
	case ChangeText:
		return "text"
	case ChangeMessages:
		return "messages"
	default:
		return "none"
	}
}

// Diagnosis is why a prefix is new. It carries no text.
type Diagnosis struct {
	Change     Change
	At         time.Time // when it was seen
	Model      string
	New, Old   uint64        // Result.Prefix of the two
	Age        time.Duration // since Old was last seen
	Message    int           // the leading message that differs, from 0
	From, To   int           // where in its decoded text the first difference lies: [From, To)
	Exact      bool          // From is the byte itself
	TextBytes  int           // decoded bytes of that message
	SharedPart float64       // share of the new system text that stands before the difference
}

// String is one line for a log or for explain.
func (d Diagnosis) String() string {
	age := d.Age.Round(time.Second)
	switch d.Change {
	case ChangeArguments:
		return fmt.Sprintf("other template arguments or salt than the prefix of %s ago", age)
	case ChangeToolOrder:
		return fmt.Sprintf("same tools as the prefix of %s ago, different order", age)
	case ChangeToolKeys:
		return fmt.Sprintf("same tools as the prefix of %s ago, members in different order", age)
	case ChangeTools:
		return fmt.Sprintf("other tools than the prefix of %s ago", age)
	case ChangeText:
		if d.Exact || d.To-d.From <= 1 {
			return fmt.Sprintf("differs from the prefix of %s ago at byte %d, inside system message %d (not shown)", age, d.From, d.Message)
		}
		return fmt.Sprintf("differs from the prefix of %s ago between bytes %d and %d, inside system message %d (not shown)",
			age, d.From, d.To-1, d.Message)
	case ChangeMessages:
		return fmt.Sprintf("other leading messages than the prefix of %s ago, from message %d on", age, d.Message)
	}
	return "no difference found"
}

// Churn explains new static prefixes by the ones before them. It keeps, per prefix, digests
// of the arguments, of every tool, and of every grain of text, each keyed with a secret
// seed and depending on all text before it, and no text.
//
// The first difference is known to within a grain. Where the same grain differs again and
// again, as a clock does, the bytes of that one grain are hashed one by one in the next
// prefix, and the one after it tells the byte.
//
// A Churn is safe for concurrent use. A known prefix costs one lock-free look-up, and so do
// new ones within Gap of the last that was looked at; that one costs a second reading of its
// static part, under a mutex.
type Churn struct {
	o     ChurnOptions
	known sync.Map // prefix and model -> *record

	last atomic.Int64 // when the last new prefix was looked at, Unix nanoseconds

	mu      sync.Mutex
	records []*record
	bytes   int
	p       parser
	text    []byte
	told    map[[2]uint64]struct{} // pairs already reported
	recent  []Diagnosis            // the last ones, oldest first
}

// record is what is kept of one prefix.
type record struct {
	id, prefix uint64
	model      uint64
	seen       atomic.Int64

	args     uint64
	tools    uint64 // in order
	toolSet  uint64 // in any order
	toolMeat uint64 // in any order, members in any order
	messages []sketch
	probe    probe
}

// sketch is one leading message.
type sketch struct {
	head   uint64 // role and other members
	whole  uint64
	length int      // decoded bytes; -1 if the content is not one text
	grains []uint32 // chained: each depends on all text before its end
}

// probe is one grain of one message hashed byte by byte.
type probe struct {
	armed          bool
	message, grain int
	bytes          [grain]uint16
	n              int
}

// NewChurn returns an empty Churn.
func NewChurn(o ChurnOptions) *Churn {
	if o.Now == nil {
		panic("BUG: a Churn needs a clock")
	}
	o.MaxPrefixes = max(2, orDefault(o.MaxPrefixes, DefaultChurnPrefixes))
	o.MaxBytes = orDefault(o.MaxBytes, DefaultChurnBytes)
	if o.Gap == 0 {
		o.Gap = DefaultChurnGap
	}
	return &Churn{o: o, told: map[[2]uint64]struct{}{}}
}

// Observe takes note of the static prefix of a request and, the first time that it differs
// from all before, says how it differs from the closest one of the same model. ok is false
// for a known prefix, for the first one of a model, and for a pair that was reported before.
// A request that a registered prefix matched is noted once per registered prefix, for others
// to be compared with, and never reported: its tail is known to move.
// r must hold the Scan of body.
func (c *Churn) Observe(model string, body []byte, r *Result) (d Diagnosis, ok bool) {
	if !r.churns() {
		return d, false
	}
	now := c.o.Now()
	id := r.churnID(model)
	if v, hit := c.known.Load(id); hit {
		v.(*record).seen.Store(now.UnixNano())
		return d, false
	}
	last := c.last.Load()
	if gap := now.UnixNano() - last; gap < int64(c.o.Gap) && gap >= 0 || !c.last.CompareAndSwap(last, now.UnixNano()) {
		return d, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, hit := c.known.Load(id); hit {
		return d, false
	}
	rec, old, d := c.diagnose(model, body, r, now)
	c.keep(rec)
	if old == nil || d.Change == 0 || r.Kind == KindNamed {
		return d, false
	}
	pair := [2]uint64{min(rec.id, old.id), max(rec.id, old.id)}
	if _, dup := c.told[pair]; dup {
		return d, false
	}
	if len(c.told) >= 4*c.o.MaxPrefixes {
		clear(c.told)
	}
	c.told[pair] = struct{}{}
	if len(c.recent) >= keptDiagnoses {
		c.recent = append(c.recent[:0], c.recent[1:]...)
	}
	c.recent = append(c.recent, d)
	return d, true
}

// keptDiagnoses are kept for status and explain.
const keptDiagnoses = 32

// churns says whether a request has a static prefix that is kept or compared.
func (r *Result) churns() bool {
	return (r.Kind == KindPrefix || r.Kind == KindNamed) && (r.SystemBytes > 0 || r.Tools.Present())
}

// churnID is what a request is known by: its whole static prefix, or the registered one.
func (r *Result) churnID(model string) uint64 {
	if r.Kind == KindNamed {
		return Fingerprint(fold('N', r.Key, 0), model, "", "")
	}
	return Fingerprint(r.Prefix, model, "", "")
}

// diagnose compares a prefix with the closest of its model, nil if there is none.
func (c *Churn) diagnose(model string, body []byte, r *Result, now time.Time) (rec, old *record, d Diagnosis) {
	rec = c.take(r.churnID(model), xxhash.Sum64String(model), body, r)
	rec.seen.Store(now.UnixNano())
	old, place := c.closest(rec)
	if old != nil {
		d = c.compare(rec, old, place, body, r)
		d.Age = time.Duration(now.UnixNano() - old.seen.Load())
		d.At, d.Model = now, model
	}
	return rec, old, d
}

// Recent returns the last diagnoses, newest first, at most 32.
func (c *Churn) Recent() []Diagnosis {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.recent)
	slices.Reverse(out)
	return out
}

// Peek says how the prefix of a request differs from the closest one before it, without
// taking note of it: what was told when it was new, else what would be told now. ok is
// false where there is nothing to tell. It may read the static part under a mutex: it is
// for explanations.
func (c *Churn) Peek(model string, body []byte, r *Result) (d Diagnosis, ok bool) {
	if r.Kind != KindPrefix || !r.churns() {
		return d, false
	}
	now := c.o.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range slices.Backward(c.recent) {
		if d.New == r.Prefix && d.Model == model {
			d.Age += now.Sub(d.At)
			return d, true
		}
	}
	if _, hit := c.known.Load(r.churnID(model)); hit {
		return d, false
	}
	_, _, d = c.diagnose(model, body, r, now)
	return d, d.Change != 0
}

// Size is how many prefixes are remembered and the bytes of their sketches, for gauges.
func (c *Churn) Size() (prefixes, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.records), c.bytes
}
