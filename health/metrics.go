package health

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"sync"
	"unsafe"

	"github.com/prefixring/prefixring/internal/dialect"
)

// The reasons for which a page is refused as a whole.
var (
	// ErrTruncated says that the page ended within a line.
	ErrTruncated = errors.New("metrics page is cut off within a line")
	// ErrNotMetrics says that the page is not in the text exposition format.
	ErrNotMetrics = errors.New("not a metrics page")
)

// maxLine bounds a line that is split over reads. The longest known line, vLLM's
// cache_config_info, has 1.2 KB.
const maxLine = 64 << 10

// maxRanks bounds the ranks kept apart; further ones share the last place, so that a
// hostile page cannot make the parser grow.
const maxRanks = 64

// ParseMetrics reads a whole metrics page of an engine of dialect e into out, which is
// reset first. It returns ErrTruncated or ErrNotMetrics for a page that must not be
// believed; out then holds what had been read and should be discarded. A page of
// another program is no error: out.Samples is 0. It allocates nothing once out and the
// shared parsers are warm, and is safe for concurrent use with different outs.
func ParseMetrics(page []byte, e dialect.Engine, out *Signals) error {
	p := parsers.Get().(*parser)
	p.reset(e, out)
	err := p.write(page)
	if err == nil {
		err = p.end()
	}
	p.out = nil
	parsers.Put(p)
	return err
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

// parser reads a page in pieces of any size.
type parser struct {
	engine  dialect.Engine
	out     *Signals
	carry   []byte // start of a line whose end has not arrived
	slots   []slot // one per rank, in page order
	lastLab labels
	seen    uint32 // bit per field that any rank has

	blockSize float64
	loraAt    float64
	lines     int
	awake     Sleep
}

// slot collects the numbers of one rank.
type slot struct {
	label  string
	v      [numFields]float64
	place  [numFields]int32 // pipeline and tensor place of the series that v came from
	seen   uint32           // bit per field
	blocks float64
	tokens float64
}

func (p *parser) reset(e dialect.Engine, out *Signals) {
	out.Reset()
	p.engine, p.out = e, out
	p.carry = p.carry[:0]
	p.slots = p.slots[:0]
	p.blockSize, p.loraAt, p.lines, p.seen, p.awake = 0, -1, 0, 0, SleepUnknown
}

// write takes the next piece of the page.
func (p *parser) write(b []byte) error {
	if len(p.carry) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return p.keep(b)
		}
		if err := p.keep(b[:i]); err != nil {
			return err
		}
		p.line(p.carry)
		p.carry = p.carry[:0]
		b = b[i+1:]
	}
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		p.line(b[:i])
		b = b[i+1:]
	}
	return p.keep(b)
}

func (p *parser) keep(b []byte) error {
	if len(p.carry)+len(b) > maxLine {
		return ErrNotMetrics
	}
	p.carry = append(p.carry, b...)
	return nil
}

// end closes the page and fills the totals.
func (p *parser) end() error {
	cut := len(bytes.TrimSpace(p.carry)) > 0
	p.total()
	if cut {
		return ErrTruncated
	}
	if p.lines < 0 {
		return ErrNotMetrics
	}
	return nil
}

// line reads one line without its line feed.
func (p *parser) line(b []byte) {
	if len(b) == 0 || b[0] == '#' {
		return
	}
	// Nearly every line of a page is of no interest: most begin with another letter, or
	// are buckets. The first byte decides for those of the Python runtime.
	switch b[0] {
	case 'v', 's', 'p':
	case ' ', '\t':
		p.line(bytes.TrimLeft(b, " \t"))
		return
	case '<', '{', '[':
		// A page that begins like this is HTML or JSON from a wrong address. Within a
		// page '{' is a quoted metric name, which no engine uses.
		if p.lines == 0 {
			p.lines = -1 << 30
		}
		return
	default:
		p.lines++
		return
	}
	p.lines++
	n := 0
	for n < len(b) && b[n] != '{' && b[n] != ' ' && b[n] != '\t' {
		n++
	}
	f := lookup(p.engine, b[:n])
	if f == fNone {
		return
	}
	p.sample(f, b[n:])
}

// sample reads labels and value of a series of interest.
func (p *parser) sample(f field, rest []byte) {
	l := &p.lastLab
	rest, ok := l.parse(rest)
	if !ok {
		return
	}
	v, ok := value(rest)
	if !ok {
		return
	}
	p.out.Samples++
	switch f {
	case fStart:
		p.out.StartTime = positive(v)
	case fSleep:
		p.sleep(l, v)
	case fConfig:
		p.config(l)
	case fLoRA:
		p.lora(l, v)
	case fPage:
		p.blockSize = positive(v)
	case fRunning, fWaiting:
		// With priority scheduling SGLang reports a total with priority="" beside one
		// series per priority; adding all would count twice (its QueueCount).
		if len(l.get(lPriority)) > 0 {
			f += fRunningPrio - fRunning
		}
		p.add(f, l, positive(v))
	case fCapacity:
		if string(l.get(lReason)) == "capacity" {
			p.add(f, l, positive(v))
		}
	case fKVNew, fKVOld:
		p.add(f, l, share(v))
	case fHitsNew:
		// SGLang: cache_source "total" stands beside its parts.
		if src := l.get(lSource); len(src) > 0 && string(src) != "total" {
			f = fHitsOld
		}
		p.add(f, l, positive(v))
	default:
		p.add(f, l, positive(v))
	}
}

// add books v for the rank that the labels name. KV usage of a rank is the fullest
// series', everything else is summed.
func (p *parser) add(f field, l *labels, v float64) {
	s, place := p.slot(l), l.place()
	bit := uint32(1) << f
	switch {
	case s.seen&bit == 0 || place < s.place[f]:
		// Every tensor-parallel worker may repeat its rank's gauges
		// (--enable-metrics-for-all-schedulers): the lowest speaks for all.
		s.v[f], s.place[f] = v, place
		s.seen |= bit
		p.seen |= bit
	case place > s.place[f]:
	case f == fKVNew || f == fKVOld:
		if !(s.v[f] >= v) {
			s.v[f] = v
		}
	default:
		s.v[f] += v // NaN stays: a sum with an unknown part is unknown
	}
}

func (p *parser) slot(l *labels) *slot {
	label := l.get(lEngine)
	for i := range p.slots {
		if p.slots[i].label == string(label) {
			return &p.slots[i]
		}
	}
	n := len(p.slots)
	if n == maxRanks {
		return &p.slots[n-1]
	}
	if n < cap(p.slots) {
		p.slots = p.slots[:n+1]
	} else {
		p.slots = append(p.slots, slot{})
	}
	s := &p.slots[n]
	old := s.label
	*s = slot{label: old}
	if old != string(label) {
		s.label = string(label)
	}
	return s
}

func (p *parser) sleep(l *labels, v float64) {
	awake := string(l.get(lSleep)) == "awake"
	switch {
	case v == 1 && !awake, v == 0 && awake:
		p.awake = Sleeping // one sleeping rank puts the engine to sleep
	case v == 1 && p.awake == SleepUnknown:
		p.awake = Awake
	}
}

func (p *parser) config(l *labels) {
	s := p.slot(l)
	if n := number(l.get(lBlockSize)); n > 0 {
		p.blockSize = n
	}
	if n := number(l.get(lBlocks)); n > 0 {
		s.blocks = n
	}
	if n := number(l.get(lKVTokens)); n > 0 {
		s.tokens = n
	}
	switch string(l.get(lCaching)) {
	case "True":
		p.out.PrefixCaching = Yes
	case "False":
		p.out.PrefixCaching = No
	}
}

// lora takes the newest sample: the gauge's value is the time at which it was set, and
// stale combinations of label values stay on the page.
func (p *parser) lora(l *labels, at float64) {
	if !(at >= p.loraAt) {
		return
	}
	p.loraAt = at
	if b := l.get(lLoRARunning); p.out.LoRARunning != string(b) {
		p.out.LoRARunning = string(b)
	}
	if b := l.get(lLoRAWaiting); p.out.LoRAWaiting != string(b) {
		p.out.LoRAWaiting = string(b)
	}
	p.out.LoRAMax = int64(max(number(l.get(lLoRAMax)), 0))
}

// value reads the value behind the labels, and ignores a timestamp behind it.
func value(b []byte) (float64, bool) {
	b = bytes.TrimLeft(b, " \t")
	n := 0
	for n < len(b) && b[n] != ' ' && b[n] != '\t' && b[n] != '\r' {
		n++
	}
	return parseFloat(b[:n])
}

// number reads a label value that is a number, 0 if it is none ("None", "").
func number(b []byte) float64 {
	v, ok := parseFloat(b)
	if !ok || !(v > 0) || v > 1<<53 {
		return 0
	}
	return v
}

func parseFloat(b []byte) (float64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	// The string lives only as long as the call, and b does not change meanwhile.
	v, err := strconv.ParseFloat(unsafe.String(&b[0], len(b)), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return v, true
}

// positive is v, or unknown if it cannot be a count.
func positive(v float64) float64 {
	if v >= 0 && v <= math.MaxFloat64 {
		return v
	}
	return math.NaN()
}

// share is v, or unknown if it cannot be a share: some exporters wrote percent
// (field case B42). A sliver above 1 is rounding.
func share(v float64) float64 {
	switch {
	case v >= 0 && v <= 1:
		return v
	case v > 1 && v < 1.001:
		return 1
	}
	return math.NaN()
}
