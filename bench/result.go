package bench

import (
	"time"
)

// Quantiles are milliseconds. Mean and Count come along because a percentile without
// its number of samples says little.
type Quantiles struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
	Count int64   `json:"count"`
}

// Result is what one run measured. A nil pointer means that nothing was known: it is
// null in JSON and never zero.
type Result struct {
	Planned      int64            `json:"planned"`
	Sent         int64            `json:"sent"`
	Succeeded    int64            `json:"succeeded"`
	Errors       map[string]int64 `json:"errors"`
	AchievedRate float64          `json:"achieved_rate"` // sent per second of the sending phase
	PlannedRate  float64          `json:"planned_rate"`
	MaxSendLagMS float64          `json:"max_send_lag_ms"`
	SendLagMS    *Quantiles       `json:"send_lag_ms"`
	Valid        bool             `json:"valid"`
	InvalidFor   []string         `json:"invalid_because,omitempty"`

	TTFT      *Quantiles `json:"ttft_ms"`       // first token, from the planned send time
	FirstByte *Quantiles `json:"first_byte_ms"` // first byte of the response, likewise
	TPOT      *Quantiles `json:"tpot_ms"`
	E2E       *Quantiles `json:"e2e_ms"`
	ITL       *Quantiles `json:"itl_ms"`
	TTFTSent  *Quantiles `json:"ttft_from_send_ms"`
	TTFTChunk *Quantiles `json:"ttft_first_chunk_ms"`
	E2ESent   *Quantiles `json:"e2e_from_send_ms"`
	MeanToken *Quantiles `json:"e2e_per_token_ms"`

	OutputTokens int64    `json:"output_tokens"`
	OutputBasis  string   `json:"output_tokens_basis"` // usage, or "chunks, not tokens"
	PromptTokens int64    `json:"prompt_tokens"`
	CachedTokens *int64   `json:"cached_tokens"`
	HitRate      *float64 `json:"hit_rate"` // cached / prompt tokens over requests that told both
	UnknownCache int64    `json:"cache_unknown"`
	TokenRate    float64  `json:"output_tokens_per_second"`
	PeakTokens   float64  `json:"peak_output_tokens_per_second"`
	Goodput      *Goodput `json:"goodput,omitempty"`

	Mode        string            `json:"mode"` // open-loop, or closed-loop with its warning
	Seed        uint64            `json:"seed"`
	Nonce       string            `json:"nonce"`
	Duration    float64           `json:"duration_seconds"`
	OwnCPU      float64           `json:"own_cpu_cores"` // mean cores this process used
	Settings    Settings          `json:"settings"`
	Definitions map[string]string `json:"definitions"`
	Curves      map[string]Curve  `json:"curves,omitempty"` // ttft_ms, e2e_ms, tpot_ms
	Prefixes    []Group           `json:"prefixes,omitempty"`
	Nodes       []Group           `json:"nodes,omitempty"`
	Heat        []Cell            `json:"heat,omitempty"`
	Series      []Bucket          `json:"series,omitempty"`
	Engines     []EngineCounters  `json:"engines,omitempty"` // what they counted during the run
}

// Curve is a distribution: values in milliseconds at CurvePercentiles.
type Curve []float64

// CurvePercentiles are the places at which a Curve is read.
var CurvePercentiles = []float64{0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100}

// Goodput counts the successes that met every limit of the SLO.
type Goodput struct {
	SLO    SLO     `json:"slo"`
	Good   int64   `json:"good"`
	Share  float64 `json:"share"` // of the requests sent
	PerSec float64 `json:"per_second"`
}

// Settings repeat what was asked for, so that a result explains itself.
type Settings struct {
	URLs     []string      `json:"urls"`
	Model    string        `json:"model"`
	Protocol string        `json:"protocol"`
	Stream   bool          `json:"stream"`
	Arrivals Arrivals      `json:"arrivals"`
	Workload Workload      `json:"workload"`
	Closed   int           `json:"closed,omitempty"`
	Timeout  time.Duration `json:"timeout"`
}

// Group is the breakdown of one prefix or one node.
type Group struct {
	Name     string     `json:"name"`
	Requests int64      `json:"requests"`
	Errors   int64      `json:"errors"`
	Prompt   int64      `json:"prompt_tokens"`
	Cached   int64      `json:"cached_tokens"`
	HitRate  *float64   `json:"hit_rate"`
	TTFT     *Quantiles `json:"ttft_ms"`
}

// Cell is one square of the prefix x node heat map.
type Cell struct {
	Prefix   int    `json:"prefix"`
	Node     string `json:"node"`
	Requests int64  `json:"requests"`
	Cold     int64  `json:"cold"` // answered from less than half of the prompt in cache
}

// Bucket is one step of the time series.
type Bucket struct {
	At        float64  `json:"at"` // seconds from the start
	Width     float64  `json:"width"`
	Sent      int64    `json:"sent"`
	Done      int64    `json:"done"`
	Errors    int64    `json:"errors"`
	Tokens    float64  `json:"tokens"`
	TTFT50    *float64 `json:"ttft_p50_ms"`
	TTFT99    *float64 `json:"ttft_p99_ms"`
	HitRate   *float64 `json:"hit_rate"`
	prompt    int64
	cached    int64
	ttft      []float32
	ttftCount int
}

// definitions names what each figure means, because tools differ.
func definitions() map[string]string {
	return map[string]string{
		"ttft_ms":             "planned send time to the first event with text, reasoning or a tool call",
		"ttft_from_send_ms":   "the same from the actual send, as vLLM's and inference-perf's tools take it",
		"ttft_first_chunk_ms": "planned send time to the first event of any kind, role-only ones included",
		"first_byte_ms":       "planned send time to the first byte of the response",
		"tpot_ms":             "(end - first token) / (output tokens - 1); vLLM, inference-perf, genai-bench",
		"e2e_per_token_ms":    "(end - planned) / output tokens, first token included; guidellm's TPOT",
		"itl_ms":              "gap between two events that carry tokens; an event may hold several tokens",
		"e2e_ms":              "planned send time to the end of the body",
		"hit_rate":            "sum of cached tokens / sum of prompt tokens, over requests whose usage tells both",
		"percentiles":         "over successes only; errors give no sample",
	}
}

// Progress is a look at a run that is going on.
type Progress struct {
	Elapsed  time.Duration
	Total    time.Duration // length of the schedule; 0 when only a count is known
	Planned  int64
	Sent     int64
	Done     int64
	Errors   int64
	InFlight int64
	Rate     float64 // sent per second since the last look
	TTFT50   float64 // ms, of everything so far; NaN before the first token
	TTFT99   float64
	HitRate  float64 // NaN while unknown
	Final    bool
}
