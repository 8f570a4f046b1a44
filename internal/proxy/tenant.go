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
	// Admit reserves room for one request of about that many prompt tokens. After a
	// nil answer Settle is owed exactly once.
	Admit(now time.Time, promptTokens int64) *Refusal
	// Settle ends the request. tokens is what was really used, or
	// dialect.Unknown.
	Settle(now time.Time, tokens int64)
}

// Refusal says which limit of a tenant was met.
type Refusal struct {
	Limit      Limit
	Cap        int64         // the limit's value, for x-ratelimit-limit headers
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

// failure is the answer to a refusal.
func (r *Refusal) failure() *failure {
	f := failRate
	switch r.Limit {
	case LimitConcurrency:
		f = failParallel
	case LimitTokens:
		f = failTokens
	}
	if r.RetryAfter > 0 {
		f.retry = r.RetryAfter
	}
	return &f
}

// headers adds the fields that official clients read.
func (r *Refusal) headers(h *fasthttp.ResponseHeader) {
	kind := "requests"
	if r.Limit == LimitTokens {
		kind = "tokens"
	}
	h.Set("X-Ratelimit-Limit-"+kind, strconv.FormatInt(r.Cap, 10))
	h.Set("X-Ratelimit-Remaining-"+kind, "0")
	h.Set("X-Ratelimit-Reset-"+kind, r.RetryAfter.Round(time.Millisecond).String())
}
