package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// KeeperOptions configures a Keeper. The zero value works.
type KeeperOptions struct {
	// EmptyGrace is how long a source has to go on saying "nothing" before a non-empty
	// set is given up. Default 2 min; negative means at once.
	EmptyGrace time.Duration
	// Limit is the age beyond which Check reports the knowledge as too old. Default 5 min.
	Limit time.Duration
	// RetryMin and RetryMax bound the wait before a source that failed is run again: it
	// doubles, with full jitter. Defaults 500 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// OnSet receives each new set, in order, from the goroutine of Run. The slice must
	// not be changed. It may be nil.
	OnSet func([]Endpoint)

	Logger *slog.Logger     // nil means slog.Default()
	Now    func() time.Time // nil means time.Now
	Rand   func() float64   // uniform in [0, 1); nil means math/rand/v2
}

// Keeper runs a source and keeps the set that may be served from.
type Keeper struct {
	name   string
	source Source
	opt    KeeperOptions

	mu        sync.Mutex // guards the following
	set       []Endpoint
	known     bool      // a set has been taken, be it empty
	confirmed time.Time // when the source last spoke
	emptyFrom time.Time // since when it has said "nothing" against a non-empty set
	lastErr   error
}

// NewKeeper returns a keeper of a source; name stands in logs and errors.
func NewKeeper(name string, s Source, o KeeperOptions) *Keeper {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.EmptyGrace, 2*time.Minute)
	def(&o.Limit, 5*time.Minute)
	def(&o.RetryMin, 500*time.Millisecond)
	def(&o.RetryMax, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	return &Keeper{name: name, source: s, opt: o}
}

// Run runs the source until ctx ends, and again when it fails.
func (k *Keeper) Run(ctx context.Context) error {
	out := make(chan []Endpoint)
	wait := k.opt.RetryMin
	for ctx.Err() == nil {
		run, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- k.source.Run(run, out) }()
		spoke, err := k.take(out, done)
		cancel()
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("source ended")
		}
		k.mu.Lock()
		k.lastErr = err
		k.mu.Unlock()
		if spoke {
			wait = k.opt.RetryMin
		}
		pause := time.Duration(k.opt.Rand() * float64(wait))
		k.opt.Logger.Warn("discovery failed and is tried again", "source", k.name, "error", err, "in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(max(pause, 10*time.Millisecond)):
		}
		wait = min(2*wait, k.opt.RetryMax)
	}
	return nil
}

// take receives sets until the source has ended, and says whether it sent any.
func (k *Keeper) take(out <-chan []Endpoint, done <-chan error) (spoke bool, err error) {
	for {
		select {
		case set := <-out:
			spoke = true
			k.offer(set)
		case err := <-done:
			return spoke, err
		}
	}
}

// offer takes a set from the source, or holds on to the old one.
func (k *Keeper) offer(set []Endpoint) {
	if err := check(set); err != nil {
		k.mu.Lock()
		k.lastErr = err
		k.mu.Unlock()
		k.opt.Logger.Warn("discovery sent a set that cannot be used", "source", k.name, "error", err)
		return
	}
	set = order(append([]Endpoint{}, set...))
	if k.accept(set) && k.opt.OnSet != nil {
		k.opt.OnSet(set)
	}
}

func (k *Keeper) accept(set []Endpoint) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.opt.Now()
	k.confirmed, k.lastErr = now, nil
	if len(set) == 0 && len(k.set) > 0 {
		if k.emptyFrom.IsZero() {
			k.emptyFrom = now
			k.opt.Logger.Warn("discovery finds no engine any more; the last set is kept for a while",
				"source", k.name, "engines", len(k.set), "for", k.opt.EmptyGrace)
		}
		if now.Sub(k.emptyFrom) < k.opt.EmptyGrace {
			return false
		}
	}
	k.emptyFrom = time.Time{}
	if k.known && equal(k.set, set) {
		return false
	}
	k.opt.Logger.Info("discovery has a new set", "source", k.name, "engines", len(set), "before", len(k.set))
	k.set, k.known = set, true
	return true
}

// Set returns the set that may be served from, and whether any has been found yet.
func (k *Keeper) Set() ([]Endpoint, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set, k.known
}

// Age is the time since the source last confirmed its set; ok is false before the
// first time.
func (k *Keeper) Age() (age time.Duration, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.confirmed.IsZero() {
		return 0, false
	}
	return k.opt.Now().Sub(k.confirmed), true
}

// Check says why the knowledge should not be relied on, nil if it may be: nothing found
// yet, or nothing heard for longer than the limit.
func (k *Keeper) Check() error {
	age, ok := k.Age()
	k.mu.Lock()
	defer k.mu.Unlock()
	cause := k.lastErr
	switch {
	case !ok && cause != nil:
		return fmt.Errorf("cannot discover engines from %s: %w", k.name, cause)
	case !ok:
		return fmt.Errorf("cannot discover engines from %s yet", k.name)
	case age > k.opt.Limit && cause != nil:
		return fmt.Errorf("cannot rely on %s: last heard %v ago: %w", k.name, age.Round(time.Second), cause)
	case age > k.opt.Limit:
		return fmt.Errorf("cannot rely on %s: last heard %v ago", k.name, age.Round(time.Second))
	}
	return nil
}
