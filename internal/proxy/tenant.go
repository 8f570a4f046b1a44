package proxy

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Admission says who a client is.
type Admission interface {
	// Identify returns the tenant that the credential belongs to, or nil when it
	// belongs to nobody. An empty credential is asked for like any other. It may be
	// called more than once per request and must not keep the slice.
	Identify(credential []byte) Tenant
}

// Tenant is a client's identity and limits. Its methods are called from many
// goroutines.
type Tenant interface {
	// Scope is an opaque stable number: the scope of bindings, salts and fairness.
	Scope() uint64
	// Class orders waiting requests: higher goes first. It is also sent to engines
	// as priority, in the sign of their dialect, unless it is 0.
	Class() int
	// Allows says if the tenant may ask for a model, by the name that clients use.
	Allows(model string) bool
	// Admit reserves room for one request of about that many prompt tokens. After a
	// nil answer Settle is owed exactly once.
	Admit(now time.Time, promptTokens int64) *Refusal
	// Settle ends the request. estimate is what Admit was told, used is what the
	// engine counted, or dialect.Unknown.
	Settle(now time.Time, estimate, used int64)
	// Limits says what is left, for x-ratelimit headers.
	Limits(now time.Time) []LimitState
}

// Refusal says which limit of a tenant was met.
type Refusal struct {
	Limit      Limit
	Cap        int64         // what the limit is
	RetryAfter time.Duration // until it is worth asking again
}

// Limit names a tenant limit.
type Limit uint8

// The limits.
const (
	LimitRate Limit = iota
	LimitConcurrency
	LimitTokens
)

// LimitState is one limit and what is left of it.
type LimitState struct {
	Limit     Limit
	Cap, Left int64
	Reset     time.Duration // until all of it is there again
}

// failure is the answer to a refusal.
func (r *Refusal) failure() *failure {
	n := strconv.FormatInt(r.Cap, 10)
	f := *failRate.with("more than the limit of " + n + " requests in one minute")
	switch r.Limit {
	case LimitConcurrency:
		f = *failParallel.with("more than the limit of " + n + " requests at the same time")
	case LimitTokens:
		f = *failTokens.with("more than the limit of " + n + " tokens in one minute")
	}
	if r.RetryAfter > 0 {
		f.retry = r.RetryAfter
	}
	return &f
}

// limitHeaders adds the fields that official clients read.
func limitHeaders(h *fasthttp.ResponseHeader, states []LimitState) {
	for _, s := range states {
		kind := ""
		switch s.Limit {
		case LimitRate:
			kind = "Requests"
		case LimitTokens:
			kind = "Tokens"
		default:
			continue // the convention has no name for it
		}
		h.Set("X-Ratelimit-Limit-"+kind, strconv.FormatInt(s.Cap, 10))
		h.Set("X-Ratelimit-Remaining-"+kind, strconv.FormatInt(max(s.Left, 0), 10))
		h.Set("X-Ratelimit-Reset-"+kind, s.Reset.Round(time.Millisecond).String())
	}
}
