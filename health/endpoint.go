package health

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// endpoint is one engine address, polled once for all nodes that stand behind it.
type endpoint struct {
	id    endpointID
	nodes []*node // guarded by the manager's mu
	stop  context.CancelFunc
	kick  chan struct{} // asks the check loop to look now
	first Target        // the node it was made for: address and TLS; never changed
	key   atomic.Pointer[func() string]
	rest  rest // shared by both loops

	clock  atomic.Pointer[Settings] // whose probes are those of the endpoint; see retime
	sooner chan struct{}            // tells the metrics loop that its period has become shorter

	// looked is closed after the first look at the metrics page, had it one or not. A node
	// becomes ready only then: what counters and start time were before it took its first
	// work is what tells a restart from then on.
	looked chan struct{}
	once   sync.Once // closes looked
}

// setKey takes the key of the latest configuration; a running loop uses it at once.
func (ep *endpoint) setKey(key func() string) {
	if key == nil {
		key = func() string { return "" }
	}
	ep.key.Store(&key)
}

// client returns a connection-less client for one loop.
func (m *Manager) client(ep *endpoint) *client {
	c, err := newClient(&m.opt, &ep.first)
	if err != nil {
		panic("BUG: target was not checked: " + err.Error())
	}
	c.key = func() string { return (*ep.key.Load())() }
	c.rest = &ep.rest
	return c
}

// endpointID tells engine addresses apart. Keys are functions and cannot be compared;
// nodes of one address are meant to share theirs.
type endpointID struct {
	url    string
	engine dialect.Engine
	tls    *tls.Config
}

func idOf(t *Target) endpointID { return endpointID{t.URL, t.Engine, t.TLS} }

// wake asks the check loop to look at once. It never blocks.
func (ep *endpoint) wake() {
	select {
	case ep.kick <- struct{}{}:
	default:
	}
}

// scraper is the loop of an endpoint that reads the metrics page.
type scraper struct {
	m    *Manager
	ep   *endpoint
	c    *client
	p    parser
	page Signals
}

// scrape reads the metrics page on its own clock until ctx ends.
func (m *Manager) scrape(ctx context.Context, ep *endpoint) {
	s := &scraper{m: m, ep: ep, c: m.client(ep)}
	defer s.c.close()
	// The first round is spread over a fifth of a second.
	t := time.NewTimer(time.Duration(m.opt.Rand() * float64(200*time.Millisecond)))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-ep.sooner:
		}
		start := time.Now()
		r := s.round(ctx)
		if ctx.Err() != nil {
			return
		}
		ep.once.Do(func() { close(ep.looked) })
		mean := ep.clock.Load().Metrics.Period
		period := m.jitter(mean)
		if r.blames() {
			period *= 10 // switched off, or the key is wrong: no use asking each second
		}
		t.Reset(m.untilBeat(start.Add(period), mean))
	}
}

// round reads the page once and hands it to the nodes.
func (s *scraper) round(ctx context.Context) result {
	s.p.reset(s.ep.id.engine, &s.page)
	r := s.c.get(ctx, "/metrics", s.ep.clock.Load().Metrics.Timeout, s.p.write)
	if r.ok() {
		if err := s.p.end(); err != nil {
			r = result{answer: unclean, status: r.status, err: err}
		}
	}
	switch {
	case ctx.Err() != nil:
	case r.ok():
		s.page.At = time.Now()
		s.m.onPage(s.ep, &s.page)
	default:
		s.m.observe(s.ep, observation{kind: obsNoPage, result: r})
	}
	return r
}

// checker is the other loop of an endpoint: health, models, sleep, version.
type checker struct {
	m   *Manager
	ep  *endpoint
	c   *client
	buf []byte

	models, version time.Time // when due
	noSleep         bool      // the engine has no /is_sleeping
	infoPath        string
}

// minGap is the least time between two rounds, however often traffic asks for one.
const minGap = 500 * time.Millisecond

// check asks for everything but metrics until ctx ends.
func (m *Manager) check(ctx context.Context, ep *endpoint) {
	c := m.client(ep)
	defer c.close()
	k := &checker{m: m, ep: ep, c: c, infoPath: "/version"}
	if ep.id.engine == dialect.SGLang {
		k.infoPath = "/server_info"
	}
	select {
	case <-ctx.Done():
		return
	case <-ep.looked:
	}
	t := time.NewTimer(0)
	defer t.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-ep.kick:
			if wait := minGap - time.Since(last); wait > 0 {
				t.Reset(wait)
				continue
			}
		}
		next := k.round(ctx)
		last = time.Now()
		if ctx.Err() != nil {
			return
		}
		t.Reset(next)
	}
}

// round asks what is due and returns the time to the next round.
func (k *checker) round(ctx context.Context) time.Duration {
	m, start, clock := k.m, time.Now(), k.ep.clock.Load()
	r := k.c.get(ctx, "/health", clock.Health.Timeout, nil)
	if ctx.Err() != nil {
		return 0
	}
	m.observe(k.ep, observation{kind: obsHealth, result: r})
	period := clock.Health.Period
	if r.answer != answered {
		// Another process may answer next time.
		k.models, k.version, k.noSleep = time.Time{}, time.Time{}, false
	} else {
		k.askModels(ctx, r.ok())
		k.askSleep(ctx)
		k.askVersion(ctx)
	}
	if !m.settled(k.ep) && r.took < 500*time.Millisecond {
		// Something is on its way up or down: look again soon. A slow answer means an
		// SGLang engine that generates a token to prove its health, or a busy one: asking
		// more often would only add to its load (SGLang issue 22511).
		period = min(period, time.Second)
	}
	return max(m.untilBeat(start.Add(m.jitter(period)), clock.Metrics.Period), 10*time.Millisecond)
}

func (k *checker) askModels(ctx context.Context, healthy bool) {
	now := time.Now()
	if now.Before(k.models) && !(healthy && !k.m.allServed(k.ep)) {
		return
	}
	o := observation{kind: obsModels}
	o.result = k.fetch(ctx, "/v1/models", k.ep.clock.Load().Models.Timeout)
	if o.result.ok() {
		if err := parseModels(k.buf, &o.models, &o.adapters); err != nil {
			o.result = result{answer: unclean, status: o.result.status, err: err}
		}
	}
	if ctx.Err() == nil {
		k.m.observe(k.ep, o)
	}
	k.models = now.Add(k.m.jitter(k.ep.clock.Load().Models.Period))
}

// askSleep asks a vLLM engine in development mode, the only one that has the path,
// unless the metrics tell already.
func (k *checker) askSleep(ctx context.Context) {
	if k.noSleep || k.ep.id.engine != dialect.VLLM || !k.m.sleepUntold(k.ep) {
		return
	}
	r := k.fetch(ctx, "/is_sleeping", k.ep.clock.Load().Health.Timeout)
	if r.blames() {
		k.noSleep = true
		return
	}
	if s, ok := parseSleep(k.buf); r.ok() && ok && ctx.Err() == nil {
		k.m.observe(k.ep, observation{kind: obsSleep, sleep: s})
	}
}

func (k *checker) askVersion(ctx context.Context) {
	now := time.Now()
	if now.Before(k.version) {
		return
	}
	clock := k.ep.clock.Load()
	k.version = now.Add(k.m.jitter(clock.Version.Period))
	r := k.fetch(ctx, k.infoPath, clock.Version.Timeout)
	if r.answer == answered && r.status == 404 && k.infoPath == "/server_info" {
		k.infoPath = "/get_server_info" // its name until SGLang PR 13273
		r = k.fetch(ctx, k.infoPath, clock.Version.Timeout)
	}
	if v := parseVersion(k.buf); r.ok() && v != "" && ctx.Err() == nil {
		k.m.observe(k.ep, observation{kind: obsVersion, version: v})
	}
}

// fetch reads a whole small body into k.buf.
func (k *checker) fetch(ctx context.Context, path string, limit time.Duration) result {
	k.buf = k.buf[:0]
	return k.c.get(ctx, path, limit, func(b []byte) error {
		if len(k.buf)+len(b) > 4<<20 {
			return errTooLong
		}
		k.buf = append(k.buf, b...)
		return nil
	})
}

// trial sends the one request that may readmit a node: one generated token, the only
// proof that the core behind the front end works.
func (m *Manager) trial(ctx context.Context, ep *endpoint, model, rank string, limit time.Duration) result {
	c := m.client(ep)
	c.rest = new(rest) // a connection of its own: what is on trial should not hold up probes
	defer c.close()
	if rank != "" {
		c.extra = dialect.RankHeader(ep.id.engine) + ": " + rank + "\r\n"
	}
	return c.do(ctx, "POST", "/v1/completions", trialBody(model), limit,
		func([]byte) error { return nil })
}

var errNoList = errors.New("answer lists no models")
