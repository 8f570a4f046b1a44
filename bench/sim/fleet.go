package sim

import (
	"runtime"
	"slices"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// node is one engine.
type node struct {
	core  *core.Core
	cfg   core.Config
	clock time.Duration // its steps are done up to here
	open  int           // requests that it has not finished
	up    bool
	drain bool
	past  core.Stats // of cores that died
	ev    []core.Event
	inRun bool // in fleet.active
}

// fleet is all engines, and what happened in them that nobody has looked at yet.
type fleet struct {
	nodes  []node
	active []int32 // engines with open requests
	window time.Duration
	happen []happening // sorted, future ones included
	next   int         // first not looked at
}

// happening is an engine's event.
type happening struct {
	core.Event
	node int32
	seq  int32 // its place among the node's own
}

func newFleet(o *Options, stages []Stage) (*fleet, error) {
	f := &fleet{nodes: make([]node, o.Engines)}
	least := stages[0].Source.MinTokens()
	for _, s := range stages {
		least = min(least, s.Source.MinTokens())
	}
	f.window = time.Duration((o.Engine.Cost.FrontFixed + o.Engine.Cost.FrontToken*float64(least)) * float64(time.Second))
	for i := range f.nodes {
		n := &f.nodes[i]
		n.cfg = o.Engine
		n.cfg.Seed = mix(o.Seed, uint64(i), 9)
		var err error
		if n.core, err = core.New(n.cfg); err != nil {
			return nil, err
		}
		n.up = true
	}
	return f, nil
}

// submit hands a request to an engine. t must lie in the current window.
func (f *fleet) submit(i int32, t time.Duration, r *Request, tag uint64) (core.ID, error) {
	n := &f.nodes[i]
	if n.open == 0 {
		n.clock = max(n.clock, t)
	}
	id, err := n.core.Submit(t, core.Request{Prompt: r.Prompt, Output: r.Output, Tag: tag})
	if err != nil {
		return 0, err
	}
	n.open++
	if !n.inRun {
		n.inRun = true
		f.active = append(f.active, i)
	}
	return id, nil
}

// advance runs all engines up to end and merges what happened into the order of time.
func (f *fleet) advance(end time.Duration) {
	const share = 32 // engines below which another goroutine is not worth its start
	workers := min(runtime.GOMAXPROCS(0), len(f.active)/share+1)
	if workers == 1 {
		f.run(f.active, end)
	} else {
		var wg conc.WaitGroup
		for w := range workers {
			part := f.active[len(f.active)*w/workers : len(f.active)*(w+1)/workers]
			wg.Go(func() { f.run(part, end) })
		}
		wg.Wait()
	}
	f.happen = append(f.happen[:0], f.happen[f.next:]...)
	f.next = 0
	old := len(f.happen)
	keep := f.active[:0]
	for _, i := range f.active {
		n := &f.nodes[i]
		for j, e := range n.ev {
			f.happen = append(f.happen, happening{e, i, int32(j)})
			if e.Kind == core.Finished {
				n.open--
			}
		}
		n.ev = n.ev[:0]
		if n.inRun = n.open > 0; n.inRun {
			keep = append(keep, i)
		}
	}
	f.active = keep
	if len(f.happen) > old {
		slices.SortFunc(f.happen, func(a, b happening) int {
			switch {
			case a.At != b.At:
				return cmp(a.At, b.At)
			case a.node != b.node:
				return cmp(a.node, b.node)
			default:
				return cmp(a.seq, b.seq)
			}
		})
	}
}

func cmp[T int32 | time.Duration](a, b T) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func (f *fleet) run(part []int32, end time.Duration) {
	for _, i := range part {
		n := &f.nodes[i]
		for n.clock < end {
			n.clock, n.ev = n.core.Run(n.clock, end, n.ev)
		}
	}
}

// soonest is when the next known thing happens in the engines.
func (f *fleet) soonest() time.Duration {
	at := core.Never
	if f.next < len(f.happen) {
		at = f.happen[f.next].At
	}
	for _, i := range f.active {
		at = min(at, f.nodes[i].clock)
	}
	return at
}

// kill loses an engine's requests and cache.
func (f *fleet) kill(i int32) {
	n := &f.nodes[i]
	add(&n.past, n.core.Stats())
	n.up, n.open = false, 0
	fresh, err := core.New(n.cfg)
	if err != nil {
		panic("BUG: a configuration that was good is refused: " + err.Error())
	}
	n.core = fresh
	// What the dead engine would have said later is never heard.
	f.happen = slices.DeleteFunc(f.happen[f.next:], func(h happening) bool { return h.node == i })
	f.next = 0
	f.active = slices.DeleteFunc(f.active, func(j int32) bool { return j == i })
	n.inRun = false
}

func add(a *core.Stats, b core.Stats) {
	a.Requests += b.Requests
	a.Prompt += b.Prompt
	a.Cached += b.Cached
	a.Generated += b.Generated
	a.Cold += b.Cold
	a.Evicted += b.Evicted
	a.Preemptions += b.Preemptions
	a.Busy += b.Busy
	a.Admitted += b.Admitted
}

// total is what an engine has counted, deaths included.
func (n *node) total() core.Stats {
	s := n.core.Stats()
	add(&s, n.past)
	return s
}
