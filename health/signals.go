package health

import (
	"math"
	"time"
)

// Sleep is what an engine says of its own sleep.
type Sleep uint8

// The sleep states. SleepUnknown is the zero value.
const (
	SleepUnknown Sleep = iota
	Awake
	Sleeping
)

// Tri is a yes-or-no that may be unknown.
type Tri uint8

// The three answers. TriUnknown is the zero value.
const (
	TriUnknown Tri = iota
	No
	Yes
)

// Signals are the numbers of one metrics page. Counts and tokens are summed over the
// page's data-parallel ranks, KVUsage is the fullest rank's. NaN means that the page
// did not carry the number or carried nonsense; it never means zero.
type Signals struct {
	At time.Time // when the page was read; zero = never

	Running         float64 // requests being computed
	Waiting         float64 // requests queued, whatever for
	WaitingCapacity float64 // requests queued for lack of room; equals Waiting where no reason is given
	KVUsage         float64 // share in 0..1 of the KV cache held by live requests (idle cached prefixes do not count)

	Preemptions      float64 // counter: preemptions (vLLM) or retractions (SGLang)
	PrefixQueries    float64 // counter, tokens looked up in the prefix cache
	PrefixHits       float64 // counter, tokens found there
	PromptTokens     float64 // counter
	GenerationTokens float64 // counter; SGLang adds a request's tokens when it finishes
	Finished         float64 // counter: requests ended, for any reason
	Steps            float64 // counter: engine steps (vLLM) or tokens processed live (SGLang)
	QueueSeconds     float64 // counter: sum of the time that requests waited, seconds
	QueueCount       float64 // counter: requests that QueueSeconds sums over
	UsedTokens       float64 // gauge: KV tokens held by live requests
	EvictableTokens  float64 // gauge: KV tokens of idle cached prefixes (SGLang only)
	Throughput       float64 // gauge: generated tokens per second, as SGLang says
	StartTime        float64 // process start, seconds since 1970

	KVTokens      int64 // KV cache capacity in tokens over all ranks; 0 = unknown
	BlockSize     int64 // tokens per block or page; 0 = unknown
	PrefixCaching Tri
	Sleep         Sleep

	// LoRARunning and LoRAWaiting are comma lists of adapter names at work, from the
	// newest sample; LoRAMax is the number of adapter slots, 0 = unknown.
	LoRARunning, LoRAWaiting string
	LoRAMax                  int64

	// Samples counts the lines that were understood; 0 means that this is no engine's
	// page.
	Samples int

	// Ranks are the data-parallel ranks seen on the page, in page order; one for an
	// engine without data parallelism. Parsing reuses the slice.
	Ranks []Rank
}

// Rank holds the numbers of one data-parallel rank. NaN means unknown, as in Signals.
type Rank struct {
	Label                                      string // value of the engine or dp_rank label; "" without one
	Running, Waiting, WaitingCapacity, KVUsage float64
	GenerationTokens, Steps, Preemptions       float64
	PrefixQueries, PrefixHits                  float64
	KVTokens                                   int64 // 0 = unknown
}

// Load is the number of requests that the engine holds, NaN if it does not say.
func (s *Signals) Load() float64 { return s.Running + s.Waiting }

// Reset makes every number unknown. Storage is kept for the next page.
func (s *Signals) Reset() {
	nan := math.NaN()
	*s = Signals{
		Running: nan, Waiting: nan, WaitingCapacity: nan, KVUsage: nan,
		Preemptions: nan, PrefixQueries: nan, PrefixHits: nan,
		PromptTokens: nan, GenerationTokens: nan, Finished: nan, Steps: nan,
		QueueSeconds: nan, QueueCount: nan,
		UsedTokens: nan, EvictableTokens: nan, Throughput: nan, StartTime: nan,
		LoRARunning: s.LoRARunning, LoRAWaiting: s.LoRAWaiting,
		Ranks: s.Ranks[:0],
	}
}

// clone returns a copy that shares nothing with s.
func (s *Signals) clone() Signals {
	c := *s
	c.Ranks = append([]Rank(nil), s.Ranks...)
	return c
}

// ofRank returns the signals of one data-parallel rank. Numbers that the page carries
// only for the whole engine stay as they are where they describe all ranks alike, and
// become unknown where a sum would be mistaken for the rank's own.
// A page without that rank says nothing of it.
func (s *Signals) ofRank(label string) Signals {
	for i := range s.Ranks {
		r := &s.Ranks[i]
		if r.Label != label {
			continue
		}
		c := *s
		c.Ranks = []Rank{*r}
		c.Running, c.Waiting, c.WaitingCapacity, c.KVUsage = r.Running, r.Waiting, r.WaitingCapacity, r.KVUsage
		c.GenerationTokens, c.Steps, c.Preemptions = r.GenerationTokens, r.Steps, r.Preemptions
		c.PrefixQueries, c.PrefixHits = r.PrefixQueries, r.PrefixHits
		c.KVTokens = r.KVTokens
		if len(s.Ranks) > 1 {
			nan := math.NaN()
			c.UsedTokens, c.EvictableTokens, c.Throughput = nan, nan, nan
			c.QueueSeconds, c.QueueCount = nan, nan
			c.PromptTokens, c.Finished = nan, nan
		}
		return c
	}
	var none Signals
	none.Reset()
	none.At = s.At
	return none
}
