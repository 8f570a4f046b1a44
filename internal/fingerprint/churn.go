package fingerprint

import (
	"fmt"
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
// A Churn is safe for concurrent use. A known prefix costs one lock-free look-up; a new one
// a second reading of its static part, under a mutex.
type Churn struct {
	o     ChurnOptions
	known sync.Map // prefix and model -> *record

	mu      sync.Mutex
	records []*record
	bytes   int
	last    time.Time // when the last new prefix was looked at
	p       parser
	text    []byte
	told    map[[2]uint64]struct{} // pairs already reported
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
// r must hold the Scan of body.
func (c *Churn) Observe(model string, body []byte, r *Result) (d Diagnosis, ok bool) {
	if r.SystemBytes == 0 && !r.Tools.Present() {
		return d, false
	}
	now := c.o.Now()
	id := Fingerprint(r.Prefix, model, "", "")
	if v, hit := c.known.Load(id); hit {
		v.(*record).seen.Store(now.UnixNano())
		return d, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, hit := c.known.Load(id); hit {
		return d, false
	}
	if now.Sub(c.last) < c.o.Gap {
		return d, false
	}
	c.last = now
	rec := c.take(id, xxhash.Sum64String(model), body, r)
	rec.seen.Store(now.UnixNano())
	old, place := c.closest(rec)
	if old != nil {
		d = c.compare(rec, old, place, body, r)
		d.Age = time.Duration(now.UnixNano() - old.seen.Load())
	}
	c.keep(rec)
	if old == nil || d.Change == 0 {
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
	return d, true
}

// take reads what is needed of one prefix.
func (c *Churn) take(id, model uint64, body []byte, r *Result) *record {
	p := r.p
	rec := &record{id: id, prefix: r.Prefix, model: model, tools: p.tools}
	bare := found{args: p.args}
	rec.args = (&parser{found: bare}).base()
	if r.Tools.Present() {
		rec.toolSet, rec.toolMeat = c.toolSets(body, r.Tools)
	}
	for i := range p.fixed {
		rec.messages = append(rec.messages, c.sketch(body, &p.fixed[i]))
	}
	return rec
}

func (c *Churn) sketch(body []byte, m *message) sketch {
	s := sketch{head: m.head(), whole: m.hash(), length: -1}
	if m.kind != contentText {
		return s
	}
	c.text = respellText(c.text[:0], body[m.text.Start:m.text.End])
	s.length = len(c.text)
	s.grains = make([]uint32, 0, len(c.text)/grain+1)
	h := c.o.Seed
	for at := 0; at < len(c.text); at += grain {
		h = fold('q', h, xxhash.Sum64(c.text[at:min(at+grain, len(c.text))]))
		s.grains = append(s.grains, uint32(h))
	}
	return s
}

// toolSets hashes a tool list without its order: once with the members of each tool in
// their order, once without that as well.
func (c *Churn) toolSets(body []byte, tools Span) (set, meat uint64) {
	p := &c.p
	p.s, p.b, p.i, p.run, p.depth, p.err = scannerForChurn, body, tools.Start, -1, 0, nil
	defer func() { p.b = nil }()
	if !p.at('[') {
		return 0, 0
	}
	p.push(false)
	for first := true; p.element(first); first = false {
		from := p.i
		sum, _ := p.hash(1)
		set += fold('u', sum, 0)
		p.i = from
		meat += fold('u', p.deep(1), 0)
	}
	return set, meat
}

// scannerForChurn only lends its limits.
var scannerForChurn = &Scanner{maxDepth: MaxMaxDepth}

// deep hashes the value at i, which has been scanned before, with the members of objects in
// any order.
func (p *parser) deep(marks int) uint64 {
	var sum uint64
	switch {
	case p.at('{'):
		sum = 1
		p.open()
		for first := true; ; first = false {
			name, more := p.member(first)
			if !more {
				return sum
			}
			drop := marks > 0 && string(name) == markerName
			key := xxhash.Sum64(name)
			if v := p.deep(marks - 1); !drop {
				sum += fold('m', key, v)
			}
		}
	case p.at('['):
		sum = 2
		p.push(false)
		for first := true; p.element(first); first = false {
			sum = fold('a', sum, p.deep(marks-1))
		}
		return sum
	}
	sum, _ = p.hash(0)
	return sum
}

// closest picks the record of the same model that shares most with rec; of equals the one
// seen last. place is where the text of the two parts.
func (c *Churn) closest(rec *record) (best *record, place place) {
	score := -1
	for _, old := range c.records {
		if old.model != rec.model {
			continue
		}
		at := rec.parts(old)
		n := at.before
		if old.args == rec.args {
			n += 1 << 40
		}
		if old.tools == rec.tools {
			n += 1 << 39
		} else if old.toolMeat == rec.toolMeat {
			n += 1 << 38
		}
		if n > score || n == score && old.seen.Load() >= best.seen.Load() {
			best, place, score = old, at, n
		}
	}
	return best, place
}

// place is where the leading messages of two prefixes part.
type place struct {
	same           bool
	message, grain int
	text           bool // inside one text of both
	before         int  // decoded bytes in common, by grains
}

func (rec *record) parts(old *record) (at place) {
	for i := range min(len(rec.messages), len(old.messages)) {
		a, b := &rec.messages[i], &old.messages[i]
		if a.whole == b.whole {
			at.before += max(a.length, 0)
			continue
		}
		at.message = i
		if a.head == b.head && a.length >= 0 && b.length >= 0 {
			at.text = true
			for at.grain < min(len(a.grains), len(b.grains)) && a.grains[at.grain] == b.grains[at.grain] {
				at.grain++
			}
			at.before += at.grain * grain
		}
		return at
	}
	at.message = min(len(rec.messages), len(old.messages))
	at.same = len(rec.messages) == len(old.messages)
	return at
}

// compare says what is different, and arms a probe where it may be different again.
func (c *Churn) compare(rec, old *record, at place, body []byte, r *Result) Diagnosis {
	d := Diagnosis{New: rec.prefix, Old: old.prefix, Message: at.message}
	switch {
	case rec.args != old.args:
		d.Change = ChangeArguments
	case rec.tools != old.tools && rec.toolSet == old.toolSet:
		d.Change = ChangeToolOrder
	case rec.tools != old.tools && rec.toolMeat == old.toolMeat:
		d.Change = ChangeToolKeys
	case rec.tools != old.tools:
		d.Change = ChangeTools
	case at.same:
		return d
	case !at.text:
		d.Change = ChangeMessages
	default:
		d.Change = ChangeText
		a, b := &rec.messages[at.message], &old.messages[at.message]
		shorter := min(a.length, b.length)
		d.From = min(at.grain*grain, shorter)
		d.To = min(d.From+grain, shorter+1)
		d.TextBytes = a.length
		d.SharedPart = float64(at.before) / float64(max(1, r.SystemBytes))
		rec.probe = c.aim(at, body, r)
		if exact, ok := rec.probe.against(&old.probe); ok {
			d.From, d.To, d.Exact = d.From+exact, d.From+exact+1, true
		}
	}
	return d
}

// aim hashes the bytes of the grain at which rec parts from the others.
func (c *Churn) aim(at place, body []byte, r *Result) (p probe) {
	m := &r.p.fixed[at.message]
	c.text = respellText(c.text[:0], body[m.text.Start:m.text.End])
	p = probe{armed: true, message: at.message, grain: at.grain}
	h := fold('y', c.o.Seed, uint64(at.message))
	for _, b := range c.text[min(at.grain*grain, len(c.text)):min((at.grain+1)*grain, len(c.text))] {
		h = fold('z', h, uint64(b))
		p.bytes[p.n] = uint16(h)
		p.n++
	}
	return p
}

// against compares two probes of the same grain, whose text before it is known to be the
// same, and returns the first byte that differs.
func (p *probe) against(old *probe) (int, bool) {
	if !p.armed || !old.armed || p.message != old.message || p.grain != old.grain {
		return 0, false
	}
	for i := range max(p.n, old.n) {
		if i >= p.n || i >= old.n || p.bytes[i] != old.bytes[i] {
			return i, true
		}
	}
	return 0, false
}

func (rec *record) size() (n int) {
	for i := range rec.messages {
		n += 4 * cap(rec.messages[i].grains)
	}
	return n + 256
}

// keep stores rec and drops the oldest records beyond the limits.
func (c *Churn) keep(rec *record) {
	c.records = append(c.records, rec)
	c.bytes += rec.size()
	c.known.Store(rec.id, rec)
	for len(c.records) > c.o.MaxPrefixes || c.bytes > c.o.MaxBytes && len(c.records) > 1 {
		oldest := 0
		for i, old := range c.records[:len(c.records)-1] {
			if old.seen.Load() < c.records[oldest].seen.Load() {
				oldest = i
			}
		}
		old := c.records[oldest]
		c.records = append(c.records[:oldest], c.records[oldest+1:]...)
		c.bytes -= old.size()
		c.known.Delete(old.id)
	}
}

// Size is how many prefixes are remembered and the bytes of their sketches, for gauges.
func (c *Churn) Size() (prefixes, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.records), c.bytes
}
