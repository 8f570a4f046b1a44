package health

import (
	"fmt"
	"time"
)

// answer is what a probe came back with.
type answer uint8

const (
	answered answer = iota // an HTTP response; see result.status
	refused                // nobody listens, or no route: the process is not there
	timedOut
	broken  // connected, but the exchange failed: reset, bad HTTP, TLS
	unclean // answered, but the body makes no sense
)

// result is the outcome of one probe.
type result struct {
	answer answer
	status int           // of the HTTP response
	took   time.Duration // from the start of the probe
	err    error         // for the reason; nil when answered
}

func (r result) ok() bool { return r.answer == answered && r.status >= 200 && r.status < 300 }

// blames says that the response blames the request, which is ours, not the engine.
func (r result) blames() bool { return r.answer == answered && r.status >= 300 && r.status < 500 }

func (r result) unauthorized() bool {
	return r.answer == answered && (r.status == 401 || r.status == 403)
}

// String is the result as part of a reason.
func (r result) String() string {
	switch {
	case r.err != nil:
		return r.err.Error()
	case r.answer == timedOut:
		return "timed out"
	}
	return fmt.Sprintf("status %d", r.status)
}

// observation is one thing that happened to a node. Exactly one kind of fact is set;
// kind says which.
type observation struct {
	kind     obsKind
	result   result         // health, models, metrics (failed), trial
	signals  *Signals       // metrics (accepted)
	models   []string       // models
	adapters []string       // models
	sleep    Sleep          // sleep
	version  string         // version
	outcome  PassiveOutcome // passive
	reason   string         // eject
	// lastSuccess is the time of the last success that traffic reported, for all kinds.
	lastSuccess time.Time
}

type obsKind uint8

const (
	obsTick     obsKind = iota
	obsHealth           // /health was asked
	obsModels           // /v1/models was asked
	obsSleep            // /is_sleeping answered
	obsVersion          // the version is known
	obsMetrics          // a metrics page was accepted
	obsNoPage           // a metrics page could not be had
	obsPassive          // traffic reported an outcome
	obsEject            // the manager allowed or ordered an ejection
	obsTrial            // the trial request came back
	obsOperator         // drain, cordon or weight changed
	obsMoved            // the target's address or key facts changed
	obsGone             // no target any more
)
