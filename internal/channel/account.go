// Package channel keeps what is known of hosted accounts: what is left of their rates,
// how long they rest, whether their key is refused, and which models cool down on them.
//
// An Account is one key at one host. It learns from configuration and from the headers
// that OpenAI- and Anthropic-compatible hosts send with every answer. All of it is
// belief: the host decides, and a 429 overrules any count.
//
// # Concurrency
//
// All methods may be called from any goroutine; a call holds one mutex for some tens of
// nanoseconds. The package is pure: no I/O, no goroutines, time is handed in. No key is
// kept here.
package channel

import (
	"sync"
	"time"
)

// Options describe an account. Zero fields mean what their comments say.
type Options struct {
	RPM, TPM int64         // requests and tokens per minute, as bought; 0 = learned from headers only
	Low      float64       // share of a limit below which no binding leads here; default 0.05
	Cooldown time.Duration // of a model that fails; default 30 s
}

const (
	defaultLow      = 0.05
	defaultCooldown = 30 * time.Second
	restUnasked     = 10 * time.Second // after a 429 that names no time
	longestRest     = time.Hour        // what a host may ask for at most
	failuresToCool  = 3                // in a row, of one model
)

// Account is one key at one host.
type Account struct {
	low      float64
	cooldown time.Duration

	mu       sync.Mutex // guards what follows
	requests budget
	tokens   budget
	taken    struct{ requests, tokens int64 } // ever: says what was sent after a request
	rest     time.Time                        // until when the host wants no request
	refused  bool                             // its key is not accepted
	models   map[string]*cooling              // by configured name
}

// cooling is one model on an account.
type cooling struct {
	failures int
	until    time.Time
}

// New returns an account that may be asked.
func New(o Options, now time.Time) *Account {
	a := &Account{low: o.Low, cooldown: o.Cooldown, models: map[string]*cooling{}}
	if a.low == 0 {
		a.low = defaultLow
	}
	if a.cooldown == 0 {
		a.cooldown = defaultCooldown
	}
	a.requests.configure(o.RPM, now)
	a.tokens.configure(o.TPM, now)
	return a
}

// State says what keeps an account from being asked.
type State uint8

// The states. Fit is the zero value; Short means that work is taken and bindings are not.
const (
	Fit     State = iota
	Short         // of rate
	Cooling       // this model fails there
	Spent         // no rate is left for this request
	Resting       // the host asked for it
	Refused       // the key is not accepted
)

// String returns the label value.
func (s State) String() string {
	return [...]string{"ready", "short", "cooling", "spent", "resting", "refused"}[min(s, Refused)]
}

// Takes says whether a request may be sent in this state.
func (s State) Takes() bool { return s <= Short }

// State is what a request of about that many tokens would meet.
func (a *Account) State(now time.Time, model string, tokens int64) State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state(now, model, tokens)
}

func (a *Account) state(now time.Time, model string, tokens int64) State {
	switch {
	case a.refused:
		return Refused
	case now.Before(a.rest):
		return Resting
	case !a.requests.has(now, 1), !a.tokens.has(now, tokens):
		return Spent
	}
	if m := a.models[model]; m != nil && now.Before(m.until) {
		return Cooling
	}
	if a.requests.share(now) < a.low || a.tokens.share(now) < a.low {
		return Short
	}
	return Fit
}

// Mark names a request that was taken.
type Mark struct{ requests, tokens int64 }

// Take reserves rate for one request, if the account may be asked.
func (a *Account) Take(now time.Time, model string, tokens int64) (m Mark, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.state(now, model, tokens).Takes() {
		return m, false
	}
	a.requests.take(now, 1)
	a.tokens.take(now, tokens)
	a.taken.requests++
	a.taken.tokens += tokens
	return Mark{a.taken.requests, a.taken.tokens}, true
}

// Undo gives a reservation back whose request was not sent.
func (a *Account) Undo(now time.Time, tokens int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests.take(now, -1)
	a.tokens.take(now, -tokens)
}

// Settle corrects the estimate by what the host counted.
func (a *Account) Settle(now time.Time, estimate, used int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens.take(now, used-estimate)
}

// Answer is the head of a host's answer.
type Answer struct {
	Status int
	Field  func(name string) string // a header field in lower case, empty when absent
	Model  string
	Mark   Mark // of the request that it answers
}

// Heard learns from an answer. refused is true when it made the account unusable: that is
// worth an alarm.
func (a *Account) Heard(now time.Time, x Answer) (refused bool) {
	l := readLimits(now, x.Field)
	a.mu.Lock()
	defer a.mu.Unlock()
	// What was sent after this request is not in the host's count yet.
	a.requests.learn(now, l.requests, a.taken.requests-x.Mark.requests)
	a.tokens.learn(now, l.tokens, a.taken.tokens-x.Mark.tokens)
	switch s := x.Status; {
	case s == 401 || s == 403:
		refused = !a.refused
		a.refused = true
	case s == 429:
		a.rest = now.Add(a.restAfter(now, l))
	case s == 503 || s == 529:
		// The host is full, whoever asks: the model cools at once.
		m := a.model(x.Model)
		m.until = now.Add(max(min(l.retryAfter, longestRest), a.cooldown))
	case s == 404:
		a.model(x.Model).until = now.Add(a.cooldown)
	case s >= 500:
		a.fail(now, x.Model)
	case s < 400:
		if m := a.models[x.Model]; m != nil {
			m.failures = 0
		}
	}
	return refused
}

// Failed counts a request that got no answer.
func (a *Account) Failed(now time.Time, model string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail(now, model)
}

// Renew says that the key was replaced: it may be asked again.
func (a *Account) Renew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused, a.rest = false, time.Time{}
}

func (a *Account) fail(now time.Time, model string) {
	m := a.model(model)
	if m.failures++; m.failures >= failuresToCool {
		m.failures, m.until = 0, now.Add(a.cooldown)
	}
}

// model is the state of a model; names come from configuration, so there are few.
func (a *Account) model(name string) *cooling {
	m := a.models[name]
	if m == nil {
		m = &cooling{}
		a.models[name] = m
	}
	return m
}

// restAfter is how long a 429 makes the account rest.
func (a *Account) restAfter(now time.Time, l limits) time.Duration {
	d := l.retryAfter
	if d == 0 {
		d = max(a.requests.wait(now, 1), a.tokens.wait(now, 1))
	}
	if d == 0 {
		d = restUnasked
	}
	return min(d, longestRest)
}

// Rates are what is believed of an account's limits; -1 = not known.
type Rates struct {
	RequestsLeft, RequestsLimit int64
	TokensLeft, TokensLimit     int64
	RestSeconds                 float64 // still to rest, 0 = not resting
}

// Rates tells them, for people.
func (a *Account) Rates(now time.Time) Rates {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := Rates{RestSeconds: max(a.rest.Sub(now).Seconds(), 0)}
	r.RequestsLeft, r.RequestsLimit = a.requests.tell(now)
	r.TokensLeft, r.TokensLimit = a.tokens.tell(now)
	return r
}
