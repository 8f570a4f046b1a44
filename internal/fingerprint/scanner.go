package fingerprint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Limits and defaults of Options.
const (
	DefaultMaxDepth        = 512
	MaxMaxDepth            = 1024
	DefaultCompletionsLead = 4096
	DefaultMaxBoundaries   = 256
	MaxNamed               = 65536

	// maxDetailed leading system messages get a hash at every cut; those behind them
	// still enter Prefix.
	maxDetailed = 8
	// pictureBytes stands for an image, audio, video or file in PromptBytes: about a
	// thousand tokens, whatever its transport encoding weighs.
	pictureBytes = 4096
	tokenBytes   = 4
)

// Options of a Scanner. The zero value is valid.
type Options struct {
	// Named are the registered prefixes. The longest one that a request begins with
	// becomes its key.
	Named []Named
	// CompletionsLead is how many canonical bytes at the head of a raw completion's
	// prompt are its key when no Named matches; a shorter prompt is keyed whole.
	// 0 = 4096; at least 1.
	CompletionsLead int
	// OtherLeads are further lengths that Lead can be asked for, so that pools with
	// different leads share a Scanner: which pool a body is for is known after its scan.
	OtherLeads []int
	// MaxDepth bounds the nesting of a body. 0 = 512; at most 1024.
	MaxDepth int
	// MaxBoundaries bounds Result.Boundaries. 0 = 256; at least 2.
	MaxBoundaries int
}

// Scanner reads request bodies. It is immutable and safe for concurrent use.
type Scanner struct {
	named         []Named
	cuts          []cut
	ends          [][]int32 // for each cut, the indices of the Named that end there
	toolsOnly     []int32   // Named without a system message
	lead          int       // index of the completions lead in cuts
	maxDepth      int
	maxBoundaries int
}

// NewScanner checks o and prepares a Scanner.
func NewScanner(o Options) (*Scanner, error) {
	s := &Scanner{
		named:         slices.Clone(o.Named),
		maxDepth:      orDefault(o.MaxDepth, DefaultMaxDepth),
		maxBoundaries: orDefault(o.MaxBoundaries, DefaultMaxBoundaries),
	}
	lead := orDefault(o.CompletionsLead, DefaultCompletionsLead)
	switch {
	case s.maxDepth < 8 || s.maxDepth > MaxMaxDepth:
		return nil, fmt.Errorf("cannot make scanner: depth limit %d is not in 8..%d", s.maxDepth, MaxMaxDepth)
	case s.maxBoundaries < 2:
		return nil, fmt.Errorf("cannot make scanner: boundary limit %d is below 2", s.maxBoundaries)
	case slices.Min(append(slices.Clip(o.OtherLeads), lead)) < 1:
		return nil, fmt.Errorf("cannot make scanner: completions lead %d is below 1", slices.Min(append(slices.Clip(o.OtherLeads), lead)))
	case len(o.Named) > MaxNamed:
		return nil, fmt.Errorf("cannot make scanner: %d named prefixes are more than %d", len(o.Named), MaxNamed)
	}
	for i, n := range o.Named {
		if n.Length < 0 || n.Context == 0 {
			return nil, fmt.Errorf("cannot make scanner: named prefix %q (number %d) was not built by this package", n.Name, i)
		}
	}
	s.register(lead, o.OtherLeads)
	return s, nil
}

func orDefault(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}

// register lays out all lengths at which a stream is cut, in order.
func (s *Scanner) register(lead int, others []int) {
	lengths := append(append(blockLengths(), lead), others...)
	for _, n := range s.named {
		if n.Length > 0 {
			lengths = append(lengths, n.Length)
		}
	}
	slices.Sort(lengths)
	lengths = slices.Compact(lengths)
	blocks := blockLengths()
	s.cuts = make([]cut, len(lengths))
	s.ends = make([][]int32, len(lengths))
	for i, l := range lengths {
		_, block := slices.BinarySearch(blocks, l)
		s.cuts[i] = cut{length: l, block: block}
	}
	s.lead, _ = slices.BinarySearch(lengths, lead)
	for i, n := range s.named {
		if n.Length == 0 {
			s.toolsOnly = append(s.toolsOnly, int32(i))
			continue
		}
		at, _ := slices.BinarySearch(lengths, n.Length)
		s.cuts[at].named = true
		s.ends[at] = append(s.ends[at], int32(i))
	}
}

// blockLengths are the fixed stream lengths at which every static prefix is hashed for
// the Learner: twice in the first 4 KiB, where a cut costs a short prompt most, then every
// 4 KiB to 256 KiB, then every 16 KiB to 1 MiB.
func blockLengths() []int {
	out := []int{256, 1 << 10}
	for n := 4 << 10; n <= 256<<10; n += 4 << 10 {
		out = append(out, n)
	}
	for n := 272 << 10; n <= 1<<20; n += 16 << 10 {
		out = append(out, n)
	}
	return out
}

// Lead changes the key of a raw completion, which s has scanned into r, to its first n
// canonical bytes: n is one of Options.CompletionsLead and OtherLeads, 0 = CompletionsLead. It
// reports whether it could; a key of another kind is none of its business and stays.
func (s *Scanner) Lead(r *Result, n int) bool {
	if r.Kind != KindLead {
		return true
	}
	if n == 0 {
		r.p.leadKey(r, s.cuts, s.lead)
		return true
	}
	at, ok := slices.BinarySearchFunc(s.cuts, n, func(c cut, n int) int { return cmp.Compare(c.length, n) })
	if ok {
		r.p.leadKey(r, s.cuts, at)
	}
	return ok
}

// Named returns a copy of the registered prefix i, as Result.Named numbers them.
func (s *Scanner) Named(i int) Named { return s.named[i] }

// NamedCount is how many prefixes are registered.
func (s *Scanner) NamedCount() int { return len(s.named) }

// Scan reads body as a request of protocol proto into out. It does not keep body, does
// not allocate once out is warm, and returns a *SyntaxError for a body that must be
// refused; out then holds nothing of use.
//
// An Opaque body is read for model, cache salt, adapter and stream only, and one that
// does not begin with a brace (a form, an array, nothing) is accepted unread with
// out.JSON false.
func (s *Scanner) Scan(proto dialect.Protocol, body []byte, out *Result) error {
	p := out.p
	if p == nil {
		p = new(parser)
	}
	*out = Result{Protocol: proto, Named: -1, Boundaries: out.Boundaries[:0], Strip: out.Strip[:0], p: p}
	p.begin(s, out, body)
	p.top()
	err := p.err
	if err == nil {
		p.finish()
	}
	p.release()
	if err != nil {
		return err
	}
	return nil
}

// release lets go of the body, which the caller may reuse, and of what an extreme body
// has made grow, so that a pool of Results does not remember it.
func (p *parser) release() {
	const names, key = 1 << 10, 4 << 10
	p.s, p.r, p.b, p.err = nil, nil, nil, nil
	p.content.first, p.aux.first = nil, nil
	if cap(p.names) > names {
		p.names, p.table = nil, nil
	}
	if cap(p.key) > key {
		p.key = nil
	}
}
