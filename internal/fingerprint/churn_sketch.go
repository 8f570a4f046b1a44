package fingerprint

import (
	"github.com/cespare/xxhash/v2"
)

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
