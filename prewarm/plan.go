package prewarm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PlanOptions tune NewPlan. The zero value works.
type PlanOptions struct {
	Now   time.Time // zero = time.Now()
	Force bool      // plan what cannot work in time or in memory all the same
	Only  []string  // names of entries; empty = all
}

// Plan says which node warms what, in which order. It is read-only once made.
type Plan struct {
	At       time.Time  `json:"at"`
	Digest   string     `json:"digest"` // of everything that is to be warmed and where
	Prefixes []*Prefix  `json:"prefixes"`
	Nodes    []NodePlan `json:"nodes"`
	Items    int        `json:"items"`
	Tokens   int64      `json:"tokens"`  // to prefill, over all nodes
	Seconds  float64    `json:"seconds"` // until the last node is done
	Problems []Problem  `json:"problems,omitempty"`

	manifest *Manifest
	fleet    *Fleet
}

// NodePlan is one node's share.
type NodePlan struct {
	Node     string   `json:"node"`
	Items    []Item   `json:"items"`
	Seconds  float64  `json:"seconds"`
	KV       int64    `json:"kv_tokens"`       // capacity, 0 = unknown
	Blocks   int64    `json:"kv_blocks"`       // capacity in blocks, 0 = unknown
	Reserved int64    `json:"reserved_tokens"` // left to running requests
	Planned  int64    `json:"planned_tokens"`  // of the prefixes, in whole blocks
	Resident int64    `json:"resident_tokens"` // of prefixes that are warm there and not in the plan
	Evicts   []string `json:"evicts,omitempty"`
}

// Item is one prefix on one node.
type Item struct {
	Prefix   int        `json:"prefix"` // index in Plan.Prefixes
	Name     string     `json:"name"`
	Tokens   int64      `json:"tokens"`
	Seconds  float64    `json:"seconds"` // of the cold prefill
	Start    time.Time  `json:"start"`
	End      time.Time  `json:"end"`
	Deadline *time.Time `json:"deadline,omitempty"`
}

// Problem is a reason why the plan cannot work, with the figures.
type Problem struct {
	Prefix string `json:"prefix,omitempty"`
	Node   string `json:"node,omitempty"`
	Line   int    `json:"line,omitempty"` // in the manifest
	Why    string `json:"why"`
	Remedy string `json:"remedy,omitempty"`
	// Fatal problems stay fatal with Force: there is nothing that could be sent.
	Fatal bool `json:"fatal,omitempty"`
	Note  bool `json:"note,omitempty"` // worth knowing; does not stop the plan

	late bool // about a deadline: the scheduler judges those itself
}

// String is the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Prefix != "" {
		b.WriteString("prefix " + p.Prefix + ": ")
	}
	if p.Node != "" {
		b.WriteString("node " + p.Node + ": ")
	}
	b.WriteString(p.Why)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// PlanError lists why a plan is refused.
type PlanError struct{ Problems []Problem }

// Error names all problems, one on each line.
func (e *PlanError) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		if !p.Note {
			lines = append(lines, p.String())
		}
	}
	if len(lines) == 1 {
		return "cannot plan: " + lines[0]
	}
	return fmt.Sprintf("cannot plan: %d problems\n%s", len(lines), strings.Join(lines, "\n"))
}

// NewPlan plans the manifest on the fleet. When something cannot work it returns the
// plan together with a *PlanError, so that the figures can be shown; a plan that came
// with an error is refused by Run.
func NewPlan(m *Manifest, f Fleet, o PlanOptions) (*Plan, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	p := &Plan{At: o.Now, manifest: m}
	f, err := f.withKey(m, o.Now)
	if err != nil {
		p.problem(Problem{Why: err.Error(), Remedy: remedyOf(err), Fatal: true})
		return p, p.verdict(false)
	}
	p.fleet = &f
	if len(f.Nodes) == 0 {
		p.problem(Problem{Why: "there are no nodes", Remedy: "name engines", Fatal: true})
	}
	for _, name := range o.Only {
		if m.Entry(name) == nil {
			p.problem(Problem{Prefix: name, Why: "the manifest has no such entry", Fatal: true})
		}
	}
	p.render(m, o)
	p.place()
	p.spread(o.Now)
	p.fit()
	p.digest()
	return p, p.verdict(o.Force)
}

func (p *Plan) problem(x Problem) { p.Problems = append(p.Problems, x) }

// verdict is the error of a plan that cannot work.
func (p *Plan) verdict(force bool) error {
	for _, x := range p.Problems {
		if x.Fatal || !x.Note && !force {
			return &PlanError{p.Problems}
		}
	}
	return nil
}

// render makes the prefixes and refuses those that two entries share.
func (p *Plan) render(m *Manifest, o PlanOptions) {
	seen := map[uint64]*Prefix{}
	for _, e := range m.Prefixes {
		if len(o.Only) > 0 && !slices.Contains(o.Only, e.Name) {
			continue
		}
		h, err := e.head(o.Now)
		if err != nil {
			p.problem(Problem{Prefix: e.Name, Line: e.line, Why: err.Error(), Remedy: remedyOf(err), Fatal: true})
			continue
		}
		target, ok, err := p.fleet.resolve(h.model, e.Adapter)
		if err != nil || !ok {
			p.unknownModel(e, h.model, err)
			continue
		}
		prefixes, err := e.render(o.Now, p.fleet, target)
		if err != nil {
			p.problem(Problem{Prefix: e.Name, Line: e.line, Why: err.Error(), Remedy: remedyOf(err), Fatal: true})
			continue
		}
		if !e.steady(o.Now) {
			p.problem(Problem{Prefix: e.Name, Line: e.line, Why: "its text changes within the hour", Remedy: "cut the changing part off with static_bytes"})
		}
		for _, x := range prefixes {
			if first := seen[x.Key]; first != nil {
				p.problem(Problem{Prefix: x.Name, Line: e.line, Why: fmt.Sprintf("it has the fingerprint of %s (line %d)", first.Name, first.Entry.line), Remedy: "remove one of the two", Fatal: true})
				continue
			}
			seen[x.Key] = x
			p.Prefixes = append(p.Prefixes, x)
		}
	}
}

func (p *Plan) unknownModel(e *Entry, model string, err error) {
	why := fmt.Sprintf("no node serves model %q", model)
	if e.Adapter != "" {
		why = fmt.Sprintf("no node serves model %q with adapter %q", model, e.Adapter)
	}
	if err != nil {
		why = err.Error()
	}
	p.problem(Problem{Prefix: e.Name, Line: e.line, Why: why, Remedy: "check the name and the engines' models", Fatal: true})
}

// spread makes each node's list in order and puts it on the time line.
func (p *Plan) spread(now time.Time) {
	byNode := map[string][]Item{}
	for i, x := range p.Prefixes {
		for _, name := range x.Nodes {
			n := p.fleet.node(name)
			if n == nil {
				continue
			}
			it := Item{Prefix: i, Name: x.Name, Tokens: x.Tokens, Seconds: n.prefillTime(x.Tokens).Seconds()}
			if d, ok := x.Entry.deadline.next(now); ok {
				it.Deadline = &d
			}
			byNode[name] = append(byNode[name], it)
		}
	}
	p.past(now)
	for _, n := range p.fleet.Nodes {
		items := byNode[n.Name]
		if len(items) == 0 {
			continue
		}
		slices.SortStableFunc(items, p.before)
		np := NodePlan{Node: n.Name, Items: items}
		p.schedule(&np, now)
		p.Nodes = append(p.Nodes, np)
		p.Items += len(items)
		p.Seconds = max(p.Seconds, np.Seconds)
	}
}

// past names deadlines that are gone.
func (p *Plan) past(now time.Time) {
	seen := map[*Entry]bool{}
	for _, x := range p.Prefixes {
		e := x.Entry
		if seen[e] || !e.deadline.set() {
			continue
		}
		seen[e] = true
		if _, ok := e.deadline.next(now); !ok {
			p.problem(Problem{
				Prefix: e.Name, Line: e.line,
				Why:    fmt.Sprintf("its deadline %s is %s in the past", e.deadline.at.In(e.zone).Format(time.RFC3339), now.Sub(e.deadline.at).Round(time.Second)),
				Remedy: "move it, or remove it to warm at once", late: true,
			})
		}
	}
}

// before orders a node's items: the earliest deadline first, then priority, then what
// costs most per second of prefill when it is late, then the larger, then by name.
func (p *Plan) before(a, b Item) int {
	x, y := p.Prefixes[a.Prefix], p.Prefixes[b.Prefix]
	return cmp.Or(
		compareDeadlines(a.Deadline, b.Deadline),
		cmp.Compare(y.Entry.Priority, x.Entry.Priority),
		cmp.Compare(y.Entry.LateCost/max(b.Seconds, 1e-9), x.Entry.LateCost/max(a.Seconds, 1e-9)),
		cmp.Compare(y.Entry.Rate, x.Entry.Rate),
		cmp.Compare(b.Tokens, a.Tokens),
		cmp.Compare(x.Name, y.Name),
	)
}

func compareDeadlines(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// proofTime is what the proof adds to each item: one request over a warm prefix.
const proofTime = 300 * time.Millisecond

func (p *Plan) schedule(np *NodePlan, now time.Time) {
	at := now
	for i := range np.Items {
		it := &np.Items[i]
		x := p.Prefixes[it.Prefix]
		if x.Entry.notBefore.After(at) {
			at = x.Entry.notBefore
		}
		it.Start = at
		at = at.Add(time.Duration(it.Seconds*float64(time.Second)) + proofTime)
		it.End = at
		p.Tokens += it.Tokens
		if it.Deadline != nil && it.End.After(*it.Deadline) {
			p.problem(Problem{
				Prefix: x.Name, Node: np.Node, Line: x.Entry.line,
				Why: fmt.Sprintf("it would be warm at %s, %s after its deadline %s: %d tokens take %.1f s at %.0f tokens/s, behind %d others",
					it.End.In(x.Entry.zone).Format(time.TimeOnly), it.End.Sub(*it.Deadline).Round(time.Second),
					it.Deadline.In(x.Entry.zone).Format(time.RFC3339), it.Tokens, it.Seconds, float64(it.Tokens)/max(it.Seconds, 1e-9), i),
				Remedy: "start earlier, use fewer owners, or raise its priority", late: true,
			})
		}
	}
	np.Seconds = at.Sub(now).Seconds()
}

// fit checks each node's KV memory: whole blocks of every prefix, beside what running
// requests need.
func (p *Plan) fit() {
	for i := range p.Nodes {
		np := &p.Nodes[i]
		n := p.fleet.node(np.Node)
		block := max(n.BlockSize, 1)
		for _, it := range np.Items {
			np.Planned += wholeBlocks(it.Tokens, block)
		}
		if n.KVTokens <= 0 {
			p.problem(Problem{Node: np.Node, Why: "its KV capacity is unknown: not checked", Note: true})
			continue
		}
		np.KV, np.Blocks = n.KVTokens, n.KVTokens/block
		np.Reserved = p.fleet.reserved(n)
		p.evicts(np)
		if free := np.KV - np.Reserved; np.Planned > free {
			p.problem(Problem{
				Node: np.Node,
				Why: fmt.Sprintf("%d prefixes need %d tokens (%d blocks of %d) and %d of %d are free beside the %d left to running requests",
					len(np.Items), np.Planned, np.Planned/block, block, max(free, 0), np.KV, np.Reserved),
				Remedy: "use fewer prefixes, fewer owners, or more nodes",
			})
		}
	}
}

func wholeBlocks(tokens, block int64) int64 { return (tokens + block - 1) / block * block }

// evicts tells what the engine's LRU would drop: prefixes that are warm and not in the
// plan, oldest first, then the plan's own first ones.
func (p *Plan) evicts(np *NodePlan) {
	planned := map[uint64]bool{}
	for _, it := range np.Items {
		planned[p.Prefixes[it.Prefix].Key] = true
	}
	var old []Resident
	if p.fleet.Resident != nil {
		for _, r := range p.fleet.Resident(np.Node) {
			if !planned[r.Key] {
				old = append(old, r)
				np.Resident += r.Tokens
			}
		}
	}
	over := np.Planned + np.Resident + np.Reserved - np.KV
	for _, r := range old {
		if over <= 0 {
			return
		}
		over -= r.Tokens
		np.Evicts = append(np.Evicts, r.Name)
	}
	for _, it := range np.Items {
		if over <= 0 {
			return
		}
		over -= it.Tokens
		np.Evicts = append(np.Evicts, it.Name)
	}
}

// digest identifies the work: resuming a state file of other work would skip wrongly.
func (p *Plan) digest() {
	var b strings.Builder
	for _, n := range p.Nodes {
		b.WriteString(n.Node + "\x00")
		for _, it := range n.Items {
			b.WriteString(p.Prefixes[it.Prefix].Digest + "\x00")
		}
	}
	p.Digest = sum([]byte(b.String()))[:32]
}
