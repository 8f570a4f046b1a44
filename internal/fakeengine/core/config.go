package core

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config describes one engine. Zero values take the defaults named beside them.
type Config struct {
	Cost      Cost
	KVTokens  int // KV capacity in tokens, rounded down to blocks; 430,000
	BlockSize int // tokens per block; 16
	MaxSeqs   int // running sequences; 1,024
	Budget    int // tokens per step, at least MaxSeqs; 8,192
	// QueueLimit refuses a request when that many wait already; 0 = no limit.
	// With QueueRunning the running ones count too, as in vLLM 0.29.
	QueueLimit   int
	QueueRunning bool
	// Priority orders admission by Request.Priority, lowest first, and preempts
	// the highest. Without it admission is first come, first served.
	Priority bool
	// NoCache makes every lookup miss and stores nothing.
	NoCache bool
	// TokenEvents reports every generated token. Without it a step costs O(1) in
	// the batch and only Admitted, First, Preempted and Finished are reported.
	TokenEvents bool
	// Noise is the sigma of a lognormal factor on each step's duration (its mean
	// is 1); 0 = none, sensible up to 0.1.
	Noise float64
	Seed  uint64
}

// Errors of Submit.
var (
	ErrQueueFull = errors.New("the queue is full")
	ErrTooLong   = errors.New("the request does not fit the KV memory")
	ErrEmpty     = errors.New("a request needs at least one prompt token and one output token")
)

// ID names one submitted request within its Core; 0 is none.
type ID uint64

// Request is what Submit takes. The Core keeps Prompt.Head and Prompt.Tail until
// the request has ended; they must not change meanwhile.
type Request struct {
	Prompt   Prompt
	Output   int   // tokens to generate, at least 1
	Priority int64 // lower is earlier; used with Config.Priority only
	Tag      uint64
}

// Kind says what happened.
type Kind uint8

// The kinds of events. Every request gets Admitted, First and Finished once, in
// this order, unless it is aborted; a single-token request gets both of the last.
const (
	Admitted  Kind = iota + 1 // the prefix was looked up; Cached is set; At is the start of the step
	First                     // the first token is out
	Token                     // a further token; only with Config.TokenEvents
	Preempted                 // its KV was taken away; it is queued again and will recompute
	Finished                  // the last token is out and the KV is released
)

// Event is one thing that happened to one request.
type Event struct {
	ID     ID
	Tag    uint64
	Kind   Kind
	At     time.Duration
	Cached int // prompt tokens served from the cache (Admitted)
}

// Never is a time that does not come.
const Never = time.Duration(math.MaxInt64)

func (c *Config) fill() error {
	for _, f := range []struct {
		name string
		v    *int
		def  int
	}{
		{"KVTokens", &c.KVTokens, 430_000}, {"BlockSize", &c.BlockSize, 16},
		{"MaxSeqs", &c.MaxSeqs, 1024}, {"Budget", &c.Budget, 8192}, {"QueueLimit", &c.QueueLimit, 0},
	} {
		if *f.v < 0 {
			return fmt.Errorf("cannot use %s %d: it must not be negative", f.name, *f.v)
		}
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if c.Budget < c.MaxSeqs {
		return fmt.Errorf("cannot use Budget %d: it must be at least MaxSeqs %d", c.Budget, c.MaxSeqs)
	}
	if c.KVTokens < 2*c.BlockSize {
		return fmt.Errorf("cannot use KVTokens %d: it must hold at least two blocks of %d", c.KVTokens, c.BlockSize)
	}
	if c.Noise < 0 || c.Noise > 1 || math.IsNaN(c.Noise) {
		return fmt.Errorf("cannot use Noise %v: it must be from 0 to 1", c.Noise)
	}
	return nil
}
