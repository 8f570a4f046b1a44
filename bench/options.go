package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Errors that callers branch on: each is known before the first request is sent.
var (
	// ErrUsage says that the options contradict themselves or ask for the impossible.
	ErrUsage = errors.New("wrong bench options")
	// ErrUnreachable says that no connection to the endpoint could be made.
	ErrUnreachable = errors.New("endpoint cannot be reached")
	// ErrRefused says that the endpoint answers, but not to this key or for this model.
	ErrRefused = errors.New("endpoint refuses the load")
)

// Defaults that a zero field stands for.
const (
	DefaultTimeout = 10 * time.Minute
	DefaultGrace   = 30 * time.Second
	DefaultMaxLag  = 100 * time.Millisecond
	// giveUpLag ends a run that this machine cannot send: behind by that much, the
	// rest of the schedule would only measure the tool.
	giveUpLag = 5 * time.Second
)

// Options says what to send where. Only URL (or Targets), Model and Arrivals are needed.
type Options struct {
	URL     string   // base URL of the endpoint, http or https, with or without /v1
	Targets []string // more than one base URL: requests rotate over them (the round robin baseline)

	Model    string
	Protocol dialect.Protocol // zero (Opaque) means Chat
	NoStream bool             // ask for whole answers; then there is no time to first token
	APIKey   string           // sent the way the protocol wants it; empty sends none
	Headers  map[string]string
	Explain  bool // ask a prefixring for its explain headers, which gives the per-node breakdown

	Arrivals Arrivals
	Workload Workload
	// Closed makes a closed loop of that many users, each sending when its last answer
	// came. The result is labelled, because a closed loop hides stalls. 0 is open loop.
	Closed   int
	Requests int // end after that many requests; 0 means the whole of Arrivals

	Timeout   time.Duration // for one request, from its sending; 0 means DefaultTimeout
	Grace     time.Duration // how long a cancelled run waits for open answers; 0 means DefaultGrace
	MaxLag    time.Duration // a later send than this makes the run invalid; 0 means DefaultMaxLag
	SLO       SLO
	IgnoreEOS bool // ask vLLM and SGLang to generate the full length whatever the model says

	Seed  uint64 // every random choice comes from it; 0 is a seed like any other
	Nonce string // mixed into every prompt; empty draws a fresh one, which the result names

	// Counters, if set, reads the engines' own counters; it is called before and after.
	Counters func(ctx context.Context) ([]EngineCounters, error)

	Insecure      bool // do not verify the endpoint's certificate
	SkipPreflight bool // do not ask /v1/models first
	Dial          func(ctx context.Context, network, addr string) (net.Conn, error)

	OnProgress func(Progress) // about five times a second, and once at the end
	OnRecord   func(*Record)  // each settled request; must not keep the pointer

	trace *Trace // set by Replay
}

// SLO is the service level that goodput is counted by. A zero field is no limit.
type SLO struct {
	TTFT time.Duration `json:"ttft"`
	TPOT time.Duration `json:"tpot"`
	E2E  time.Duration `json:"e2e"`
}

func (s SLO) set() bool { return s != SLO{} }

// EngineCounters is what one engine has counted by itself since it started, in
// requests and tokens. Negative means that the engine does not tell.
type EngineCounters struct {
	Name             string  `json:"name"`
	Requests         int64   `json:"requests"`
	PromptTokens     int64   `json:"prompt_tokens"`
	CachedTokens     int64   `json:"cached_tokens"`
	GenerationTokens int64   `json:"generation_tokens"`
	ColdPrefills     int64   `json:"cold_prefills"`
	BusySeconds      float64 `json:"busy_seconds"`
	Preemptions      int64   `json:"preemptions"`
}

// Record is one settled request. Times are offsets from the start of the run; a
// negative one never happened.
type Record struct {
	Index   int    `json:"index"`
	Prefix  int    `json:"prefix"` // -1: none
	Session int    `json:"session"`
	Turn    int    `json:"turn"`
	Node    string `json:"node,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Status  int    `json:"status"`
	Error   string `json:"error,omitempty"` // kind of error, empty for a success

	Planned    time.Duration `json:"planned"`
	Sent       time.Duration `json:"sent"`
	FirstByte  time.Duration `json:"first_byte"`
	FirstChunk time.Duration `json:"first_chunk"` // first event of any kind
	FirstToken time.Duration `json:"first_token"`
	End        time.Duration `json:"end"`

	Events    int   `json:"events"` // events that carried tokens
	Prompt    int64 `json:"prompt_tokens"`
	Cached    int64 `json:"cached_tokens"`
	Output    int64 `json:"output_tokens"` // dialect.Unknown without usage
	BytesSent int64 `json:"bytes_sent"`
}

// validate fills nothing; it names the first fault.
func (o *Options) validate() error {
	switch {
	case o.URL == "" && len(o.Targets) == 0:
		return fmt.Errorf("%w: no URL", ErrUsage)
	case o.Model == "" && len(o.Workload.Lines) == 0:
		return fmt.Errorf("%w: no model", ErrUsage)
	case o.Closed < 0 || o.Requests < 0:
		return fmt.Errorf("%w: negative concurrency or request count", ErrUsage)
	case o.Closed > 0 && o.Requests == 0 && o.Arrivals.Duration <= 0:
		return fmt.Errorf("%w: a closed loop needs a duration or a number of requests", ErrUsage)
	}
	if err := o.Workload.validate(); err != nil {
		return err
	}
	if o.Closed > 0 {
		return nil
	}
	return o.Arrivals.validate()
}

func (o *Options) protocol() dialect.Protocol {
	if o.Protocol == dialect.Opaque {
		return dialect.Chat
	}
	return o.Protocol
}

func orInt(v, def int) int {
	if v <= 0 {
		return def
	}
	return v
}

func orFloat(v, def float64) float64 {
	if !(v > 0) {
		return def
	}
	return v
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}
