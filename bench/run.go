package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/tidwall/gjson"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Run sends the load and returns what it measured. It returns an error only if the
// load could not begin (ErrUsage, ErrUnreachable, ErrRefused); once it has begun, a
// cancelled context ends it early and the partial result comes back, marked invalid.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	if o.Nonce == "" {
		var b [4]byte
		rand.Read(b[:]) // never fails
		o.Nonce = hex.EncodeToString(b[:])
	}
	r, err := newRunner(&o)
	if err != nil {
		return Result{}, err
	}
	defer r.closeAll()
	if !o.SkipPreflight {
		if err := r.preflight(ctx); err != nil {
			return Result{}, err
		}
	}
	before, err := r.counters(ctx)
	if err != nil {
		return Result{}, err
	}
	r.drive(ctx)
	res := r.result()
	// The engines are read even after Ctrl-C: partial results are results.
	after, err := r.counters(context.WithoutCancel(ctx))
	if err != nil {
		res.InvalidFor = append(res.InvalidFor, err.Error())
		res.Valid = false
	}
	res.Engines = subtract(after, before)
	return res, nil
}

type runner struct {
	o       *Options
	clients []*client
	compose *composer
	shots   []Shot
	groups  [][]int // replay: the requests of each session
	stats   *collector
	start   time.Time
	length  time.Duration
	next    atomic.Int64 // closed loop: next request
	hard    context.Context
	stop    context.CancelFunc // ends open requests
	soft    atomic.Bool        // no new requests
	calls   sync.Pool
	cpu     time.Duration
	spent   time.Duration // own CPU, sending phase to last answer
	ended   []string      // why the run ended early; written by the dispatcher only
}

func newRunner(o *Options) (*runner, error) {
	r := &runner{o: o, calls: sync.Pool{New: func() any { return new(call) }}}
	urls := o.Targets
	if len(urls) == 0 {
		urls = []string{o.URL}
	}
	for _, u := range urls {
		c, err := newClient(u, o)
		if err != nil {
			return nil, err
		}
		r.clients = append(r.clients, c)
	}
	if o.trace != nil {
		r.groups = o.trace.Sessions()
	}
	times := o.times(r.groups)
	if len(times) == 0 {
		return nil, fmt.Errorf("%w: rate and duration give no request at all", ErrUsage)
	}
	r.shots = o.Workload.plan(times, o.Seed)
	r.length = o.Arrivals.Duration
	if r.length <= 0 {
		r.length = times[len(times)-1]
	}
	r.compose = newComposer(o)
	r.stats = newCollector(o, r.length)
	r.hard, r.stop = context.WithCancel(context.Background())
	return r, nil
}

// times is the schedule: the lines' own times, or the arrivals.
func (o *Options) times(groups [][]int) []time.Duration {
	var t []time.Duration
	switch {
	case o.trace != nil:
		for _, g := range groups {
			t = append(t, o.trace.Requests[g[0]].At)
		}
		return t
	case o.Closed > 0:
		n := o.Requests
		if n == 0 {
			n = 1 << 16 // a closed loop by duration goes round this plan
		}
		return make([]time.Duration, n)
	case len(o.Workload.Lines) > 0 && o.Workload.Lines[0].At >= 0:
		for _, l := range o.Workload.Lines {
			t = append(t, l.At)
		}
	default:
		t = o.Arrivals.Schedule(o.Seed)
	}
	if o.Requests > 0 && len(t) > o.Requests {
		t = t[:o.Requests]
	}
	return t
}

func (r *runner) closeAll() {
	r.stop()
	for _, c := range r.clients {
		c.close()
	}
}

// preflight finds a dead endpoint, a refused key or a wrong model before the load
// does. It asks for the list of models only: it must not touch a prefix cache (B72).
func (r *runner) preflight(ctx context.Context) error {
	for _, c := range r.clients {
		var k call
		rep := c.do(ctx, &k, "GET", "/v1/models", parts{}, 10*time.Second)
		switch {
		case rep.err != nil:
			return fmt.Errorf("%w: %s: %w", ErrUnreachable, c.addr, rep.err)
		case rep.status == 401 || rep.status == 403:
			return fmt.Errorf("%w: %s answers %d to this API key", ErrRefused, c.addr, rep.status)
		case rep.status != 200 || r.o.Model == "":
			continue // not every endpoint lists its models
		}
		models := gjson.GetBytes(k.whole, "data.#.id").Array()
		known := len(models) == 0
		for _, m := range models {
			known = known || m.Str == r.o.Model
		}
		if !known {
			return fmt.Errorf("%w: %s does not serve model %q, it serves %v", ErrRefused, c.addr, r.o.Model, models)
		}
	}
	return nil
}

func (r *runner) counters(ctx context.Context) ([]EngineCounters, error) {
	if r.o.Counters == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := r.o.Counters(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read the engines' counters: %w", err)
	}
	return c, nil
}

// drive runs the load to its end.
func (r *runner) drive(ctx context.Context) {
	var wg, watch conc.WaitGroup
	r.start = time.Now()
	r.cpu = ownCPU()
	finished := make(chan struct{})
	watch.Go(func() { r.report(finished) })
	watch.Go(func() { r.guard(ctx, finished) })
	if r.o.Closed > 0 {
		r.closedLoop(ctx, &wg)
	} else {
		r.openLoop(ctx, &wg)
	}
	wg.Wait()
	r.spent = ownCPU() - r.cpu
	close(finished)
	watch.Wait()
}

// guard gives a cancelled run its grace and then closes what is still open.
func (r *runner) guard(ctx context.Context, finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-ctx.Done():
		r.soft.Store(true)
	}
	t := time.NewTimer(orDefault(r.o.Grace, DefaultGrace))
	defer t.Stop()
	select {
	case <-finished:
	case <-t.C:
		r.closeAll()
	}
}

// openLoop sends each request at its planned time, whatever became of the others.
func (r *runner) openLoop(ctx context.Context, wg *conc.WaitGroup) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for i := range r.shots {
		s := &r.shots[i]
		if wait := s.Due - time.Since(r.start); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		} else if -wait > giveUpLag {
			r.ended = append(r.ended, fmt.Sprintf("given up %v behind schedule: this machine cannot send that rate", giveUpLag))
			return
		}
		if ctx.Err() != nil {
			r.ended = append(r.ended, fmt.Sprintf("interrupted after %.1f s", time.Since(r.start).Seconds()))
			return
		}
		if r.o.trace != nil {
			wg.Go(func() { r.replaySession(i) })
			continue
		}
		wg.Go(func() { r.conversation(s, i, s.Due) })
	}
}

// closedLoop lets each user send when its last answer is there.
func (r *runner) closedLoop(ctx context.Context, wg *conc.WaitGroup) {
	for range r.o.Closed {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(r.next.Add(1) - 1)
				now := time.Since(r.start)
				if (r.o.Requests > 0 && i >= r.o.Requests) || (r.o.Requests == 0 && now >= r.length) {
					return
				}
				r.conversation(&r.shots[i%len(r.shots)], i, now)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		r.ended = append(r.ended, fmt.Sprintf("interrupted after %.1f s", time.Since(r.start).Seconds()))
	}
}

// conversation sends one request, and its later turns if it has any.
func (r *runner) conversation(s *Shot, n int, due time.Duration) {
	k := r.calls.Get().(*call)
	defer r.calls.Put(k)
	var history []message
	for turn := range int(s.Turns) {
		rec := Record{Index: n, Session: n, Turn: turn, Prefix: int(s.Prefix), Planned: due}
		r.shoot(k, s, &rec, history, turn+1 < int(s.Turns))
		if rec.Error != "" || turn+1 >= int(s.Turns) || r.soft.Load() {
			return
		}
		history = append(history, message{
			user:   r.compose.user(nil, s, n, turn),
			answer: append([]byte(nil), k.answer.text...),
		})
		due = rec.End + r.o.Workload.Think
		if !r.pause(due) {
			return
		}
	}
}

// pause waits until the time is due; false means that the run is over.
func (r *runner) pause(due time.Duration) bool {
	t := time.NewTimer(due - time.Since(r.start))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return !r.soft.Load()
		case <-r.hard.Done():
			return false
		}
	}
}

// shoot sends one request and settles it.
func (r *runner) shoot(k *call, s *Shot, rec *Record, history []message, keep bool) {
	c := r.clients[rec.Index%len(r.clients)]
	path, proto := pathOf(r.compose.proto), r.compose.proto
	var p parts
	if t := r.o.trace; t != nil {
		p = r.compose.traceBody(t, &t.Requests[rec.Index], k.rest)
		k.rest = p.rest
	} else if n := len(r.o.Workload.Lines); n > 0 {
		l := &r.o.Workload.Lines[rec.Index%n]
		p.rest = l.Body
		if l.Path != "" {
			path, proto = l.Path, protocolOf(l.Path)
		}
	} else {
		p = r.compose.body(s, rec.Index, rec.Turn, history, k.rest)
		k.rest = p.rest
	}
	k.answer.reset(proto, keep)
	rec.Sent = time.Since(r.start)
	r.stats.starts(rec.Planned, rec.Sent)
	rep := c.do(r.hard, k, "POST", path, p, orDefault(r.o.Timeout, DefaultTimeout))
	a := &k.answer
	rec.Error = outcomeOf(&rep, a, r.hard.Err() != nil)
	rec.Status, rec.Node, rec.Reason, rec.BytesSent = rep.status, rep.node, rep.reason, rep.sent
	if rec.Node == "" && len(r.clients) > 1 {
		rec.Node = c.name
	}
	rec.FirstByte, rec.FirstChunk = r.since(rep.firstByte), r.since(a.firstEvent)
	rec.FirstToken, rec.End = r.since(a.firstToken), r.since(rep.end)
	rec.Events, rec.Prompt, rec.Cached, rec.Output = a.tokens, a.usage.Prompt, a.usage.Cached, a.usage.Output
	r.stats.settle(rec, r.start, a.ticks)
}

func (r *runner) since(t time.Time) time.Duration {
	if t.IsZero() {
		return -1
	}
	return t.Sub(r.start)
}

// protocolOf maps a path of the user's own lines.
func protocolOf(path string) dialect.Protocol {
	for _, p := range []dialect.Protocol{dialect.Completions, dialect.Responses, dialect.Messages} {
		if path == pathOf(p) {
			return p
		}
	}
	return dialect.Chat
}

// report calls OnProgress until the run is over.
func (r *runner) report(finished <-chan struct{}) {
	if r.o.OnProgress == nil {
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last Progress
	for {
		final := false
		select {
		case <-tick.C:
		case <-finished:
			final = true
		}
		p := r.stats.progress()
		p.Elapsed, p.Planned, p.Final = time.Since(r.start), r.planned(), final
		if r.o.Requests == 0 || r.o.Closed == 0 {
			p.Total = r.length
		}
		if dt := (p.Elapsed - last.Elapsed).Seconds(); dt > 0 {
			p.Rate = float64(p.Sent-last.Sent) / dt
		}
		last = p
		r.o.OnProgress(p)
		if final {
			return
		}
	}
}

// planned counts the requests that the schedule holds, all turns included.
func (r *runner) planned() int64 {
	if r.o.trace != nil {
		return int64(len(r.o.trace.Requests))
	}
	if r.o.Closed > 0 && r.o.Requests == 0 {
		return 0 // open ended: known only at the end
	}
	var n int64
	for i := range r.shots {
		n += int64(r.shots[i].Turns)
	}
	return n
}

// result closes the books and judges the run.
func (r *runner) result() Result {
	var res Result
	r.stats.fill(&res)
	o := r.o
	res.Planned, res.Mode = r.planned(), "open-loop"
	if o.Closed > 0 {
		res.Mode = fmt.Sprintf("closed-loop, %d users: arrivals wait for answers, so stalls are hidden", o.Closed)
		if o.Requests == 0 {
			res.Planned = res.Sent
		}
	}
	res.Seed, res.Nonce, res.Definitions = o.Seed, o.Nonce, definitions()
	res.Settings = Settings{Model: o.Model, Protocol: r.compose.proto.String(), Stream: !o.NoStream, Arrivals: o.Arrivals,
		Workload: o.Workload, Closed: o.Closed, Timeout: orDefault(o.Timeout, DefaultTimeout)}
	for _, c := range r.clients {
		res.Settings.URLs = append(res.Settings.URLs, c.addr+c.base)
	}
	last := r.stats.lastSend
	span := max(last, r.length)
	if len(r.ended) > 0 || o.Closed > 0 {
		span = last
	}
	if span > 0 {
		res.AchievedRate = float64(res.Sent) / span.Seconds()
	}
	if r.length > 0 {
		res.PlannedRate = float64(res.Planned) / r.length.Seconds()
	}
	if res.Duration > 0 {
		res.OwnCPU = math.Round(r.spent.Seconds()/res.Duration*1000) / 1000
	}
	res.InvalidFor = append(res.InvalidFor, r.ended...)
	r.judge(&res)
	res.Valid = len(res.InvalidFor) == 0
	return res
}

// judge says whether the tool was the bottleneck (B71).
func (r *runner) judge(res *Result) {
	limit := orDefault(r.o.MaxLag, DefaultMaxLag)
	if lag := time.Duration(res.MaxSendLagMS * 1e6); lag > limit && r.o.Closed == 0 {
		res.InvalidFor = append(res.InvalidFor, fmt.Sprintf("a request left %.0f ms late (limit %v)", res.MaxSendLagMS, limit))
	}
	if cores := usableCores(); res.OwnCPU > 0.9*cores {
		res.InvalidFor = append(res.InvalidFor, fmt.Sprintf("this process used %.2f of %.0f cores", res.OwnCPU, cores))
	}
	if res.Sent > 0 && res.Errors["connect"] == res.Sent {
		res.InvalidFor = append(res.InvalidFor, "no request reached the endpoint")
	}
}

// subtract gives what was counted between two readings, engine by engine.
func subtract(after, before []EngineCounters) []EngineCounters {
	old := map[string]EngineCounters{}
	for _, c := range before {
		old[c.Name] = c
	}
	var out []EngineCounters
	for _, c := range after {
		b := old[c.Name]
		diff := func(a, b int64) int64 {
			if a < 0 || b < 0 {
				return -1
			}
			return a - b
		}
		out = append(out, EngineCounters{
			Name: c.Name, Requests: diff(c.Requests, b.Requests), PromptTokens: diff(c.PromptTokens, b.PromptTokens),
			CachedTokens: diff(c.CachedTokens, b.CachedTokens), GenerationTokens: diff(c.GenerationTokens, b.GenerationTokens),
			ColdPrefills: diff(c.ColdPrefills, b.ColdPrefills), Preemptions: diff(c.Preemptions, b.Preemptions),
			BusySeconds: c.BusySeconds - b.BusySeconds,
		})
	}
	return out
}
