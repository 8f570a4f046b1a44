package proxy

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/prefixring/prefixring/internal/telemetry"
)

// Options configures the data plane. The zero value of every field is usable and
// means the default that its comment states.
type Options struct {
	MaxBody   int // request body limit in octets, default 64 MiB; larger gets 413
	MaxHeader int // request head limit in octets, default 64 KiB; larger gets 431

	Timeouts Timeouts
	Retry    Retry
	Queue    Queue

	// QuantumTokens is how many uncached prompt tokens weigh as much as one request
	// in flight. Default 8192, the prefill chunk of an H100 class engine
	// (engine_contracts 5).
	QuantumTokens int
	// BytesPerToken estimates tokens from prompt octets. Default 4.
	BytesPerToken int
	// FatTokens is the estimated static prefix length from which the warm gate
	// guards cold nodes. Default 4096; negative switches the gate off.
	FatTokens int

	// Heartbeat is the interval of comment lines (": keep-alive") that a streaming
	// client gets while no engine byte has come. Default 0: none, and the response
	// head waits for the first event. With heartbeats the head is committed as 200
	// when the first one is due.
	Heartbeat time.Duration
	// Hedge sends a second copy of a request to another node when the first event
	// has not come for this long; the first to answer wins and the other is closed.
	// Default 0: never. It may make two engines work.
	Hedge time.Duration

	// Explain adds X-Prefixring-* headers to every response. A request can ask for
	// them with X-Prefixring-Explain: 1 unless HideExplain is set.
	Explain     bool
	HideExplain bool
	// InjectUsage asks engines for the usage of streams whose client did not ask,
	// and takes the extra chunk out of the stream again.
	InjectUsage bool
	// SaltTenants gives each tenant its own cache_salt on requests that bring none,
	// so that tenants cannot time each other's cache. It needs a SaltSecret.
	SaltTenants bool
	SaltSecret  []byte
	// PassClientKey forwards the client's own credentials to engines that have no
	// key configured. Default: a client's key goes no further than here.
	PassClientKey bool
	// KeepHalfClosed serves clients that closed only their sending side to the end.
	// Default: they have left, as engines see it too.
	KeepHalfClosed bool

	TLS       *tls.Config // nil = plain HTTP; certificates rotate through GetCertificate
	Admission Admission   // nil = everyone may, no limits
	Sink      telemetry.Sink
	Report    func(node string, o Outcome) // passive evidence for health; nil = none
	Log       *slog.Logger                 // nil = discard
	Now       func() time.Time             // nil = time.Now
}

// Timeouts are limits on one phase of a request each, and each has its own error
// code. Zero means the default, negative means none.
type Timeouts struct {
	ReadRequest time.Duration // head and body of a request, plus 1 s per 64 KiB announced; 30 s
	ClientIdle  time.Duration // a client's keep-alive connection without a request; 75 s
	ClientStall time.Duration // one write to a client that does not read; 2 min
	Connect     time.Duration // to an engine, TLS included; 2 s
	FirstByte   time.Duration // from sending the request to the first event; 30 min
	// Announce is how long the announcements of a Responses or Messages stream are held
	// back while nothing of the answer has come, so that another engine can still take
	// over; 15 s, none = they pass at once. With a Heartbeat there is no limit.
	Announce      time.Duration
	BetweenEvents time.Duration // silence of an engine in mid-body; 15 min
	Total         time.Duration // one request; none
	EngineIdle    time.Duration // a pooled engine connection; 3 s, below uvicorn's keep-alive of 5 s
	EngineMaxAge  time.Duration // of an engine connection; 10 min, so that moved addresses are found
}

// Retry bounds further attempts. Connect failures are only bounded by Max: the
// engine never saw the request. All other retries also draw on a budget over the
// whole fleet, so that they can not double an overload.
type Retry struct {
	Max       int     // attempts after the first; default 2, negative = none
	Ratio     float64 // budget earned per request; default 0.08
	Burst     float64 // budget at rest; default 10
	OnTimeout bool    // also after a first-byte timeout, when an engine may still be working on it
}

// Queue bounds waiting for a node.
type Queue struct {
	Wait  time.Duration // for a node under its bound; default 2 s, negative = never wait
	Depth int           // waiting requests per pool; default 1024
	Gate  time.Duration // for the first prefill of a cold fat prefix; default 30 s
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// withDefaults fills in what was left zero.
func (o Options) withDefaults() Options {
	def(&o.MaxBody, 64*mib)
	def(&o.MaxHeader, 64*kib)
	def(&o.QuantumTokens, 8192)
	def(&o.BytesPerToken, 4)
	def(&o.FatTokens, 4096)
	t := &o.Timeouts
	limit(&t.ReadRequest, 30*time.Second)
	limit(&t.ClientIdle, 75*time.Second)
	limit(&t.ClientStall, 2*time.Minute)
	limit(&t.Connect, 2*time.Second)
	limit(&t.FirstByte, 30*time.Minute)
	limit(&t.Announce, 15*time.Second)
	limit(&t.BetweenEvents, 15*time.Minute)
	limit(&t.Total, 0)
	limit(&t.EngineIdle, 3*time.Second)
	limit(&t.EngineMaxAge, 10*time.Minute)
	def(&o.Retry.Max, 2)
	o.Retry.Max = max(o.Retry.Max, 0)
	if o.Retry.Ratio == 0 {
		o.Retry.Ratio = 0.08
	}
	if o.Retry.Burst == 0 {
		o.Retry.Burst = 10
	}
	limit(&o.Queue.Wait, 2*time.Second)
	def(&o.Queue.Depth, 1024)
	limit(&o.Queue.Gate, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// validate names the first setting that cannot work.
func (o *Options) validate() error {
	switch {
	case o.MaxBody < 0:
		return fmt.Errorf("cannot use a body limit of %d", o.MaxBody)
	case o.MaxHeader < 4*kib:
		return fmt.Errorf("cannot use a header limit of %d: the smallest is 4096", o.MaxHeader)
	case o.QuantumTokens < 1 || o.BytesPerToken < 1:
		return fmt.Errorf("cannot count work with %d tokens per unit and %d octets per token", o.QuantumTokens, o.BytesPerToken)
	case o.Heartbeat < 0 || o.Hedge < 0:
		return fmt.Errorf("cannot use a negative heartbeat or hedge delay")
	case o.Heartbeat > 0 && o.Hedge > 0:
		return fmt.Errorf("cannot use heartbeats and hedging together")
	case o.SaltTenants && len(o.SaltSecret) < 16:
		return fmt.Errorf("cannot salt tenants: the secret is shorter than 16 octets")
	case o.Retry.Ratio < 0 || o.Retry.Ratio > 1:
		return fmt.Errorf("cannot use a retry budget of %g per request", o.Retry.Ratio)
	}
	return nil
}

func def(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

// limit fills in a default and maps "none" to zero, which is how it is kept.
func limit(v *time.Duration, d time.Duration) {
	switch {
	case *v == 0:
		*v = d
	case *v < 0:
		*v = 0
	}
}
