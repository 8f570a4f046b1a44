package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/dialect"
)

// chaosLoad is one stream of traffic with its own way of losing: a streaming client has
// its answer once the first event is there, a plain one only at the end.
type chaosLoad struct {
	options bench.Options
	sent    int64
	again   int // the load was begun anew: this machine stood still for longer than the tool accepts
	err     error
}

// run sends the load until the end.
func (l *chaosLoad) run(end time.Time) {
	o := l.options
	for left := time.Until(end); left > time.Second; left = time.Until(end) {
		o.Arrivals.Duration = left
		r, err := bench.Run(context.Background(), o)
		if l.sent += r.Sent; err != nil {
			l.err = err
			return
		}
		l.again++
		o.Seed += 2
	}
	l.again--
}

// traffic is two loads at once: conversations over prefixes of the manifest, and plain
// single questions over prefixes that nobody has declared.
func (c *chaos) traffic() []*chaosLoad {
	chats := bench.Options{
		Protocol: dialect.Chat,
		Arrivals: bench.Arrivals{Kind: "poisson", Rate: 20},
		Workload: bench.Workload{
			Name: "conversations", Prefixes: 12, Prefix: bench.Exactly(6000), Zipf: 0.8, User: bench.Exactly(60),
			Output: bench.Length{Mean: 150, CV: 0.8, Min: 8, Max: 600}, Turns: bench.Exactly(3), Think: 400 * time.Millisecond,
		},
	}
	plain := bench.Options{
		Protocol: dialect.Messages, NoStream: true,
		Arrivals: bench.Arrivals{Kind: "poisson", Rate: 16},
		Workload: bench.Workload{
			Name: "questions", Prefixes: 6, Prefix: bench.Exactly(5000), Zipf: 0.8, User: bench.Exactly(60), Output: bench.Exactly(80),
		},
	}
	if !c.full() { // leaves room for the race detector
		chats.Arrivals.Rate, plain.Arrivals.Rate = 6, 5
	}
	var loads []*chaosLoad
	for i, o := range []bench.Options{chats, plain} {
		o.Model, o.Seed, o.Nonce, o.IgnoreEOS, o.Explain = chaosModel, c.seed+uint64(i), fmt.Sprint("chaos", i), true, true
		o.Timeout, o.SkipPreflight = time.Minute, true
		loads = append(loads, &chaosLoad{options: o})
	}
	return loads
}

// run sends the load, and breaks engines meanwhile.
func (c *chaos) run() {
	c.start = time.Now()
	var load, beside sync.WaitGroup
	over, end := context.WithCancel(context.Background())
	beside.Go(func() { c.watch.run(over, c.server.fleet) })
	for i, l := range c.loads {
		l.options.URL = "http://" + c.server.data.Addr().String()
		l.options.OnRecord = func(r *bench.Record) { c.ledger.settle(i, r) }
		load.Go(func() { l.run(c.start.Add(c.length)) })
	}
	c.script()
	load.Wait()
	c.wg.Wait()
	end()
	beside.Wait()
}

// chaosEntry is one settled request of a client.
type chaosEntry struct {
	load      int
	sent, end time.Time
	record    bench.Record
}

// chaosLedger keeps every request of every client.
type chaosLedger struct {
	mu      sync.Mutex
	entries []chaosEntry
}

func (l *chaosLedger) settle(load int, r *bench.Record) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, chaosEntry{load: load, sent: now.Add(r.Sent - r.End), end: now, record: *r})
}

// hitRate is the share of prompt tokens that came from cache, over requests sent within
// a time. All engines here report: what SGLang leaves out is a zero.
func (l *chaosLedger) hitRate(from, to time.Time) (rate float64, requests int) {
	var prompt, cached int64
	for i := range l.entries {
		e := &l.entries[i]
		if e.sent.Before(from) || !e.sent.Before(to) || e.record.Error != "" || e.record.Prompt <= 0 {
			continue
		}
		prompt, cached, requests = prompt+e.record.Prompt, cached+max(e.record.Cached, 0), requests+1
	}
	if prompt == 0 {
		return 0, 0
	}
	return float64(cached) / float64(prompt), requests
}

// delivered says whether a client had got something of its answer when it failed: such
// a request cannot be saved.
func (e *chaosEntry) delivered() bool { return e.record.FirstChunk >= 0 }

func (e *chaosEntry) String() string {
	return fmt.Sprintf("%s after %.3f s (sent at %v), status %d, engine %q, reason %q", e.record.Error, e.end.Sub(e.sent).Seconds(),
		e.record.Sent.Round(time.Millisecond), e.record.Status, e.record.Node, e.record.Reason)
}
