package prewarm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"
)

func randFloat() float64 { return rand.Float64() }

// Result is what became of one item.
type Result struct {
	Node   string `json:"node"`
	Prefix string `json:"prefix"`
	Key    string `json:"fingerprint"`
	Digest string `json:"digest"`
	Proof  Proof  `json:"proof"`
	// Skipped says that the proof is of an earlier run and was not made again.
	Skipped bool `json:"skipped,omitempty"`
}

// Report is the outcome of Run or Verify.
type Report struct {
	Plan    string    `json:"plan"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Items   []Result  `json:"items"` // in the plan's order, settled or not
	Warm    int       `json:"warm"`
	NotWarm int       `json:"not_warm"`
	// Weak counts the items that are warm by weaker evidence than cached tokens.
	Weak int `json:"weak"`
}

// Cold lists the items that are not proven warm.
func (r *Report) Cold() []Result {
	var out []Result
	for _, it := range r.Items {
		if !it.Proof.Warm {
			out = append(out, it)
		}
	}
	return out
}

// Run warms and proves every item of the plan. It returns an error when it could not
// do its work (a text that has changed since, a state file it cannot use, ctx ended);
// what is not warm stands in the report. Sources are checked before anything is sent.
// When ctx ends, running requests are cancelled, the state file is whole, and the report
// tells what was done.
func Run(ctx context.Context, p *Plan, o Options) (Report, error) {
	return runPlan(ctx, p, o, false)
}

// Verify proves every item of the plan again without warming it first. What it finds
// cold is warm afterwards, since a proof is a request like any other; the report tells
// what it found.
func Verify(ctx context.Context, p *Plan, o Options) (Report, error) {
	o.State = ""
	return runPlan(ctx, p, o, true)
}

func runPlan(ctx context.Context, p *Plan, o Options, only bool) (Report, error) {
	o.fill()
	if err := p.manifest.Changed(); err != nil {
		return Report{}, err
	}
	for _, x := range p.Problems {
		if x.Fatal {
			return Report{}, &PlanError{p.Problems}
		}
	}
	st, err := openState(o.State, p.Digest)
	if err != nil {
		return Report{}, err
	}
	r := newRunner(p.fleet, o, &counter{})
	defer r.close()
	r.begin(p)
	report := Report{Plan: p.Digest, Start: o.Clock.Now()}
	results := r.nodes(ctx, p, st, only)
	for _, n := range results {
		report.Items = append(report.Items, n...)
	}
	report.End = o.Clock.Now()
	for _, it := range report.Items {
		switch {
		case !it.Proof.Warm:
			report.NotWarm++
		case it.Proof.Evidence != EvidenceUsage:
			report.Weak++
			fallthrough
		default:
			report.Warm++
		}
	}
	r.emit(Event{Kind: EventDone})
	return report, errors.Join(r.failure(), ctx.Err())
}

// runner holds what the workers of a run share.
type runner struct {
	o      Options
	fleet  *Fleet
	tokens *counter
	budget *budget
	gate   chan struct{} // places for nodes at work, nil = no bound
	turns  atomic.Uint64
	ids    atomic.Uint64
	id     string
	probes map[string]*prober

	mu       sync.Mutex // guards the following and orders events
	err      error      // the first failure of the run itself
	done     int
	total    int
	sumDone  int64
	sumTotal int64
	start    time.Time
	perNode  map[string][2]int
}

func newRunner(f *Fleet, o Options, tokens *counter) *runner {
	r := &runner{o: o, tokens: tokens, fleet: f, probes: map[string]*prober{}, perNode: map[string][2]int{}, budget: newBudget(o.MaxTokens)}
	if o.Total > 0 {
		r.gate = make(chan struct{}, o.Total)
	}
	// Turns of another run must not be met in the cache: a proof has to diverge from what
	// was warmed right after the static prefix.
	r.turns.Store(uint64(o.Rand() * (1 << 40)))
	r.id = "prewarm-" + strconv.FormatUint(uint64(o.Rand()*(1<<48)), 36) + "-"
	for i := range f.Nodes {
		n := &f.Nodes[i]
		e := &engine{node: n, client: newClient(n), clock: o.Clock, ids: &r.ids, run: r.id}
		r.probes[n.Name] = &prober{engine: e, r: r}
	}
	return r
}

func (r *runner) close() {
	for _, b := range r.probes {
		b.client.CloseIdleConnections()
	}
}

// turn is a short text that no other request of this process has. Its first letter
// differs from that of the one before, so that two requests share nothing but the static
// prefix.
func (r *runner) turn() string {
	n := r.turns.Add(1)
	return string(rune('a'+n%26)) + strconv.FormatUint(n, 36)
}

func (r *runner) begin(p *Plan) {
	r.start = r.o.Clock.Now()
	r.total, r.sumTotal = p.Items, p.Tokens
	for _, n := range p.Nodes {
		r.perNode[n.Node] = [2]int{0, len(n.Items)}
	}
	r.emit(Event{Kind: EventPlan})
	for _, n := range p.Nodes {
		r.emit(Event{Kind: EventPlan, Node: n.Node})
	}
}

// emit fills the totals and hands the event on.
func (r *runner) emit(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emitLocked(e)
}

func (r *runner) emitLocked(e Event) {
	e.At = r.o.Clock.Now()
	e.Done, e.Total, e.SumDone, e.SumTotal = r.done, r.total, r.sumDone, r.sumTotal
	if n, ok := r.perNode[e.Node]; ok {
		e.NodeDone, e.NodeTotal = n[0], n[1]
	}
	if r.sumDone > 0 && r.sumDone < r.sumTotal {
		spent := e.At.Sub(r.start).Seconds()
		e.ETA = spent / float64(r.sumDone) * float64(r.sumTotal-r.sumDone)
	}
	r.o.Events(e)
}

// settle counts an item and tells it.
func (r *runner) settle(node string, p *Prefix, res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	r.sumDone += p.Tokens
	n := r.perNode[node]
	n[0]++
	r.perNode[node] = n
	e := Event{Kind: EventWarm, Node: node, Prefix: p.Name, Key: p.Fingerprint, Tokens: p.Tokens, Proof: &res.Proof, Seconds: res.Proof.Cold}
	if !res.Proof.Warm {
		e.Kind, e.Why = EventFailed, res.Proof.Why
	}
	r.emitLocked(e)
}

func (r *runner) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *runner) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// nodes works all nodes off side by side and returns their results in plan order.
func (r *runner) nodes(ctx context.Context, p *Plan, st *state, only bool) [][]Result {
	out := make([][]Result, len(p.Nodes))
	var wg conc.WaitGroup
	for i := range p.Nodes {
		np := &p.Nodes[i]
		out[i] = make([]Result, len(np.Items))
		for j, it := range np.Items {
			x := p.Prefixes[it.Prefix]
			out[i][j] = Result{Node: np.Node, Prefix: x.Name, Key: x.Fingerprint, Digest: x.Digest, Proof: unasked()}
		}
		wg.Go(func() { r.node(ctx, p, np, st, only, out[i]) })
	}
	if c := wg.WaitAndRecover(); c != nil {
		r.fail(fmt.Errorf("cannot go on: %w", c.AsError()))
	}
	return out
}

func unasked() Proof { return Proof{Cached: -1, Prompt: -1, Why: "it was not asked"} }

// node works one node's items off in order, PerNode at a time.
func (r *runner) node(ctx context.Context, p *Plan, np *NodePlan, st *state, only bool, out []Result) {
	if r.gate != nil {
		select {
		case r.gate <- struct{}{}:
			defer func() { <-r.gate }()
		case <-ctx.Done():
			return
		}
	}
	var next atomic.Int64
	var wg conc.WaitGroup
	for range min(r.o.PerNode, len(np.Items)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(np.Items) || ctx.Err() != nil || r.failure() != nil {
					return
				}
				r.item(ctx, np.Node, p.Prefixes[np.Items[i].Prefix], st, only, &out[i])
			}
		})
	}
	wg.Wait()
}

// item settles one item: from the state file, or by asking the engine.
func (r *runner) item(ctx context.Context, node string, p *Prefix, st *state, only bool, res *Result) {
	if proof, ok := st.fresh(node, p.Digest, r.o.Clock.Now(), r.o.Trust); ok && !only {
		res.Proof, res.Skipped = proof, true
		r.settle(node, p, *res)
		return
	}
	proof, err := r.attempt(ctx, node, p, only)
	if err != nil && ctx.Err() != nil {
		return // stopped, not failed
	}
	if err != nil {
		proof.Warm, proof.Why = false, err.Error()
	}
	res.Proof = proof
	r.o.Proven(node, p, proof)
	if err := st.put(node, p.Digest, proof); err != nil {
		r.fail(err)
	}
	r.settle(node, p, *res)
}

// attempt waits for room and asks, again after a failing engine.
func (r *runner) attempt(ctx context.Context, node string, p *Prefix, only bool) (Proof, error) {
	b := r.probes[node]
	wait := r.o.Backoff
	for try := 0; ; try++ {
		proof, err := r.once(ctx, b, p, only)
		if err == nil || ctx.Err() != nil || !retryable(err) || try >= r.o.Retries {
			return proof, err
		}
		r.emit(Event{Kind: EventRetry, Node: node, Prefix: p.Name, Key: p.Fingerprint, Why: err.Error()})
		pause := time.Duration(float64(wait) * (0.5 + r.o.Rand()/2))
		var ref *refusal
		if errors.As(err, &ref) {
			pause = max(pause, ref.after)
		}
		if err := r.o.Clock.Sleep(ctx, pause); err != nil {
			return proof, err
		}
		wait = min(2*wait, 30*time.Second)
	}
}

// once waits for room in the budget and on the node, and asks.
func (r *runner) once(ctx context.Context, b *prober, p *Prefix, only bool) (Proof, error) {
	if err := r.room(ctx, b, p); err != nil {
		return Proof{Cached: -1, Prompt: -1}, err
	}
	if err := r.budget.take(ctx, p.Tokens); err != nil {
		return Proof{Cached: -1, Prompt: -1}, err
	}
	defer r.budget.give(p.Tokens)
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	if only {
		return b.verify(ctx, p)
	}
	r.emit(Event{Kind: EventStart, Node: b.node.Name, Prefix: p.Name, Key: p.Fingerprint, Tokens: p.Tokens})
	return b.warm(ctx, p)
}

// room waits until the node has room for the prefix.
func (r *runner) room(ctx context.Context, b *prober, p *Prefix) error {
	paused := false
	for waited := time.Duration(0); ; waited += r.o.Poll {
		load, err := r.load(ctx, b, p.Tokens)
		if err != nil {
			return err
		}
		if !load.Busy {
			if paused {
				r.emit(Event{Kind: EventResumed, Node: b.node.Name, Prefix: p.Name, Key: p.Fingerprint})
			}
			return nil
		}
		if waited >= r.o.PauseMax {
			return &refusalToWait{fmt.Sprintf("no room for %s: %s", r.o.PauseMax, load.Why)}
		}
		if !paused {
			paused = true
			r.emit(Event{Kind: EventPaused, Node: b.node.Name, Prefix: p.Name, Key: p.Fingerprint, Why: load.Why})
		}
		if err := r.o.Clock.Sleep(ctx, r.o.Poll); err != nil {
			return err
		}
	}
}

func (r *runner) load(ctx context.Context, b *prober, tokens int64) (Load, error) {
	if r.o.Load != nil {
		return r.o.Load(ctx, b.node.Name, tokens)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return b.ownLoad(ctx, tokens)
}

// refusalToWait ends an item without a retry.
type refusalToWait struct{ why string }

func (e *refusalToWait) Error() string { return e.why }

// budget bounds the tokens in prefill.
type budget struct {
	max int64

	mu   sync.Mutex
	used int64
	free chan struct{} // closed and replaced whenever tokens are given back
}

func newBudget(limit int64) *budget { return &budget{max: limit, free: make(chan struct{})} }

// take waits until n tokens fit, or nothing else is in work.
func (b *budget) take(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if b.max <= 0 || b.used == 0 || b.used+n <= b.max {
			b.used += n
			b.mu.Unlock()
			return nil
		}
		free := b.free
		b.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	close(b.free)
	b.free = make(chan struct{})
}
