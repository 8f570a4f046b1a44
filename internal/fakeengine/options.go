package fakeengine

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// Options describes one simulated engine. The zero value is a vLLM engine that
// serves the model "sim" at the speed of an 8B model on one H100.
type Options struct {
	Name    string // for the oracle only
	Model   string // served model name; "sim"
	Dialect dialect.Engine
	Version string // reported version; 0.32.0 or 0.5.13.post1

	// Preset is a name of core.FindPreset; Cost overrides its coefficients. "instant" takes no time.
	Preset string
	Cost   *core.Cost
	// Speed divides all simulated time; 1 = real time.
	Speed float64
	// Noise is core.Config.Noise.
	Noise float64
	Seed  uint64

	// KVTokens, BlockSize, MaxSeqs and Budget override the preset; blocks are 16 tokens.
	KVTokens, BlockSize, MaxSeqs, Budget int
	// QueueLimit is --max-num-queued-reqs (running ones count) or
	// --max-queued-requests; 0 = no limit, as both engines default to.
	QueueLimit int
	// MaxModelLen limits prompt plus answer; 131,072 or the KV capacity if that is less.
	MaxModelLen int
	// Ranks is the number of data-parallel ranks behind the one port; 1.
	Ranks int
	// Priority turns priority scheduling on (lower first on vLLM, higher first on SGLang).
	Priority bool
	// NoPrefixCache switches the prefix cache off.
	NoPrefixCache bool

	// ReportCached is --enable-prompt-tokens-details or --enable-cache-report.
	ReportCached bool
	// AnswerTokens is the length of an answer that nothing cuts short; 64.
	// ignore_eos runs to the limit, min_tokens raises it.
	AnswerTokens int
	// TokensPerEvent puts that many tokens into one stream event, as speculative decoding does; 1.
	TokensPerEvent int
	Template       Template

	// APIKey guards the paths that the dialect guards; GuardAll guards every path but the fault and oracle ones.
	APIKey   string
	GuardAll bool

	Adapters    []string // LoRA adapters loaded at start
	RuntimeLoRA bool     // VLLM_ALLOW_RUNTIME_LORA_UPDATING; SGLang always allows it
	DevMode     bool     // VLLM_SERVER_DEV_MODE: sleep, wake_up, reset_prefix_cache, server_info

	StoreResponses   bool // VLLM_ENABLE_RESPONSES_API_STORE; SGLang always stores
	RequestIDHeaders bool // --enable-request-id-headers
	LoadTracking     bool // --enable-server-load-tracking; without it /load is always 0
	NoMetrics        bool // SGLang without --enable-metrics: /metrics is 404; vLLM with --disable-log-stats: no vllm series
	// ShutdownTimeout is vLLM's --shutdown-timeout for Shutdown; 0 aborts at once.
	ShutdownTimeout time.Duration
	// HealthDelay is how long /health takes; SGLang: 1 s divided by Speed, negative for none.
	HealthDelay time.Duration
	// KeepAlive is the idle limit of a connection; 5 s, as in uvicorn under both engines.
	KeepAlive time.Duration
	// DecodeInterval is SGLang's --decode-log-interval: decode steps between gauge updates; 40.
	DecodeInterval int

	// TLS serves HTTPS with it.
	TLS *tls.Config
	// OnRequest sees every request after its body was read, before it is answered.
	// It runs on the request's goroutine and must not keep Body.
	OnRequest func(Received)
}

// Received is a request as it arrived.
type Received struct {
	Method, Path, RemoteAddr string
	Header                   http.Header
	Body                     []byte
}

// Template says how the toy chat template renders a request. The zero value puts
// the tools before the system text and has no volatile text.
type Template struct {
	// ToolsLast renders tools before the last user turn, as Mistral's template does.
	ToolsLast bool
	// DateLine renders today's date into the head, as Llama 3's template does.
	DateLine bool
	// ThinkingLast puts the enable_thinking marker at the end instead of the start.
	ThinkingLast bool
	// Now is the clock of the date line; time.Now.
	Now func() time.Time
}

func (o *Options) fill() error {
	if o.Model == "" {
		o.Model = "sim"
	}
	if o.Version == "" {
		o.Version = "0.32.0"
		if o.Dialect == dialect.SGLang {
			o.Version = "0.5.13.post1"
		}
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Speed < 0 || o.Speed != o.Speed {
		return fmt.Errorf("cannot use speed %v: it must be above 0", o.Speed)
	}
	for _, f := range []struct {
		name string
		v    *int
		def  int
	}{
		{"Ranks", &o.Ranks, 1}, {"AnswerTokens", &o.AnswerTokens, 64}, {"TokensPerEvent", &o.TokensPerEvent, 1},
		{"DecodeInterval", &o.DecodeInterval, 40}, {"MaxModelLen", &o.MaxModelLen, 131_072}, {"BlockSize", &o.BlockSize, 16},
	} {
		if *f.v < 0 {
			return fmt.Errorf("cannot use %s %d: it must not be negative", f.name, *f.v)
		}
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 5 * time.Second
	}
	if o.HealthDelay == 0 && o.Dialect == dialect.SGLang {
		o.HealthDelay = time.Duration(float64(time.Second) / o.Speed)
	}
	if o.Template.Now == nil {
		o.Template.Now = time.Now
	}
	return nil
}

// coreConfig is the scheduler configuration of one rank.
func (o *Options) coreConfig() (core.Config, error) {
	p, err := core.FindPreset(o.Preset)
	if err != nil {
		return core.Config{}, err
	}
	c := core.Config{
		Cost: p.Cost, KVTokens: p.KVTokens, BlockSize: o.BlockSize, MaxSeqs: p.MaxSeqs, Budget: p.Budget,
		QueueLimit: o.QueueLimit, QueueRunning: o.Dialect == dialect.VLLM, Priority: o.Priority,
		NoCache: o.NoPrefixCache, TokenEvents: true, Noise: o.Noise, Seed: o.Seed,
	}
	if o.Cost != nil {
		c.Cost = *o.Cost
	}
	for _, f := range []struct {
		v   int
		dst *int
	}{{o.KVTokens, &c.KVTokens}, {o.MaxSeqs, &c.MaxSeqs}, {o.Budget, &c.Budget}} {
		if f.v != 0 {
			*f.dst = f.v
		}
	}
	if o.Budget == 0 {
		c.Budget = max(c.Budget, c.MaxSeqs)
	}
	if o.MaxSeqs == 0 {
		c.MaxSeqs = min(c.MaxSeqs, c.Budget)
	}
	return c, nil
}
