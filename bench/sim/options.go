package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// ErrUsage says that the options make no sense.
var ErrUsage = errors.New("wrong simulation options")

// Action is what happens to an engine.
type Action uint8

// The actions. Kill loses the requests in flight and the cache; a killed engine takes
// nothing until Start. Drain takes nothing new.
const (
	Kill Action = iota
	Start
	Drain
)

// Change is one event of the fleet.
type Change struct {
	At     time.Duration
	Node   int
	Action Action
}

// Options describe a simulation. Policy, Engines, Engine and Source are needed.
type Options struct {
	Policy  string // see Policies
	Engines int
	Engine  core.Config
	// Source must be fresh for each run: it is read to its end.
	Source Source
	Seed   uint64

	Prefixes []Prefix // what Prewarm warms, and the expected shares
	Prewarm  bool     // warm the prefixes on their owners first and prove them

	Routers int           // router processes that do not talk to each other; 0 means 1
	Poll    time.Duration // how old the engines' own load is that routers see; 0 means 1 s
	Changes []Change      // in order of time
	Until   time.Duration // stop here even if requests are open; 0: run to the end

	// The limits of a router's queue: see internal/proxy.
	QueueWait time.Duration // 0 means 2 s
	GateWait  time.Duration // 0 means 30 s
	Retries   int           // after a node's death; 0 means 2

	// Progress, if set, is called now and then with the simulated time.
	Progress func(now time.Duration, done int64)
}

// Result is what one policy did. Times are simulated.
type Result struct {
	Policy   string `json:"policy"`
	Stage    string `json:"stage,omitempty"`
	Requests int64  `json:"requests"`
	Finished int64  `json:"finished"`
	Errors   int64  `json:"errors"`
	Refused  int64  `json:"refused"` // of the errors: shed by the router
	Cut      int64  `json:"cut"`     // of the errors: the engine died in the middle of the answer
	Retried  int64  `json:"retried"` // after an engine's death

	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	HitRate      float64 `json:"hit_rate"`
	ColdPrefills int64   `json:"cold_prefills"`
	OutputTokens int64   `json:"output_tokens"`
	TokenRate    float64 `json:"output_tokens_per_second"`

	TTFT *bench.Quantiles `json:"ttft_ms"`
	TPOT *bench.Quantiles `json:"tpot_ms"`
	E2E  *bench.Quantiles `json:"e2e_ms"`

	Duration    float64          `json:"duration_seconds"` // last answer
	BusyMean    float64          `json:"busy_mean"`        // share of the time that engines worked
	BusyMax     float64          `json:"busy_max"`
	Evicted     int64            `json:"evicted_blocks"`
	Preemptions int64            `json:"preemptions"`
	Reasons     map[string]int64 `json:"reasons,omitempty"`

	// The load of each node at each pick, as a share of the bound up to which bindings to
	// it are followed. Ring policies only.
	LoadP99 float64 `json:"load_p99_of_bound,omitempty"`
	LoadMax float64 `json:"load_max_of_bound,omitempty"`

	PrewarmSeconds  float64 `json:"prewarm_seconds,omitempty"`
	PrewarmPrefills int64   `json:"prewarm_prefills,omitempty"`

	Minutes []Minute `json:"minutes,omitempty"`
	Wall    float64  `json:"wall_seconds"` // not simulated; the only field that varies
}

// Minute is one step of the time series, by the time at which requests came.
type Minute struct {
	At       float64 `json:"at"`
	Width    float64 `json:"width"`
	Requests int64   `json:"requests"`
	Cold     int64   `json:"cold"`
	Prompt   int64   `json:"prompt_tokens"`
	Cached   int64   `json:"cached_tokens"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTMax  float64 `json:"ttft_max_ms"`
	ttft     time.Duration
	started  int64
}

func (o *Options) fill() error {
	switch {
	case o.Engines < 1 || o.Engines > 60000:
		return fmt.Errorf("%w: %d engines are not 1..60,000", ErrUsage, o.Engines)
	case o.Source == nil:
		return fmt.Errorf("%w: no source of requests", ErrUsage)
	case o.Engine.Noise != 0 && o.Engine.Seed == 0 && o.Seed == 0:
		return fmt.Errorf("%w: noise needs a seed", ErrUsage)
	case o.Engine.TokenEvents:
		return fmt.Errorf("%w: token events are not read here and would cost much", ErrUsage)
	}
	if o.Engine.Cost.FrontFixed <= 0 {
		return fmt.Errorf("%w: engines need a front end time above 0: it is the simulation's window", ErrUsage)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Poll, time.Second)
	def(&o.QueueWait, 2*time.Second)
	def(&o.GateWait, 30*time.Second)
	o.Routers = max(o.Routers, 1)
	if o.Retries == 0 {
		o.Retries = 2
	}
	for i, c := range o.Changes {
		if c.Node < 0 || c.Node >= o.Engines || c.At < 0 || (i > 0 && c.At < o.Changes[i-1].At) {
			return fmt.Errorf("%w: change %d names no engine or is out of order", ErrUsage, i)
		}
	}
	return nil
}
