package prewarm

import (
	"context"
	"errors"
	"time"

	"github.com/prefixring/prefixring/health"
)

// Load is what a node can take now.
type Load struct {
	Busy bool
	Why  string
}

// Options tune Run and Verify. The zero value works.
type Options struct {
	Events  func(Event) // receives each step, one at a time; nil = none
	PerNode int         // prefills at a time on one node; default 1: more only slows each down
	Total   int         // nodes at work at a time; 0 = all
	// MaxTokens bounds the prompt tokens in prefill over the whole fleet; 0 = no bound. A
	// single prefix above it runs alone.
	MaxTokens int64
	// Load says whether a node has room for tokens more. nil = its own metrics page: busy
	// while requests wait, while its KV room is smaller than the prefix, or asleep.
	Load     func(ctx context.Context, node string, tokens int64) (Load, error)
	PauseMax time.Duration // longest wait for room per item; default 30 min
	Poll     time.Duration // between two looks at a busy node; default 1 s
	Timeout  time.Duration // of one request; default 15 min
	Retries  int           // of one item after a failing engine; default 5, negative = none
	Backoff  time.Duration // before the first retry, doubled up to 30 s, jittered; default 500 ms
	// State is the file that lets a stopped run resume; "" = none. It holds digests, node
	// names and times.
	State string
	// Trust is how long a proof in the state file is believed without asking; default 1 min.
	// Older ones are proven again, which costs milliseconds while the prefix is warm.
	Trust time.Duration
	// Proven receives each proof, warm or not, for the router's own books.
	Proven func(node string, p *Prefix, proof Proof)
	Clock  Clock          // default SystemClock
	Rand   func() float64 // uniform in [0, 1), for jitter and turns; default math/rand/v2
}

func (o *Options) fill() {
	if o.Events == nil {
		o.Events = func(Event) {}
	}
	if o.Proven == nil {
		o.Proven = func(string, *Prefix, Proof) {}
	}
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	if o.Rand == nil {
		o.Rand = randFloat
	}
	if o.PerNode <= 0 {
		o.PerNode = 1
	}
	if o.Retries == 0 {
		o.Retries = 5
	}
	orDuration(&o.PauseMax, 30*time.Minute)
	orDuration(&o.Poll, time.Second)
	orDuration(&o.Timeout, 15*time.Minute)
	orDuration(&o.Backoff, 500*time.Millisecond)
	orDuration(&o.Trust, time.Minute)
}

func orDuration(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

// ownLoad is Options.Load from the node's own page.
func (b *prober) ownLoad(ctx context.Context, tokens int64) (Load, error) {
	s, err := b.metrics(ctx)
	if err != nil {
		var r *refusal
		if errors.As(err, &r) && !retryable(err) {
			return Load{}, nil // no metrics here (SGLang without --enable-metrics): nothing to say
		}
		return Load{}, err
	}
	return loadOf(s, b.node.KVTokens, tokens), nil
}

// loadOf judges a page. NaN compares false: what is unknown does not make busy.
func loadOf(s *health.Signals, capacity, tokens int64) Load {
	if s.KVTokens > 0 {
		capacity = s.KVTokens
	}
	switch {
	case s.Sleep == health.Sleeping:
		return Load{true, "the engine is asleep"}
	case s.WaitingCapacity >= 1:
		return Load{true, "requests wait for room"}
	case capacity > 0 && (1-s.KVUsage)*float64(capacity) < float64(tokens) && s.Running >= 1:
		return Load{true, "running requests leave too little KV memory"}
	}
	return Load{}
}
