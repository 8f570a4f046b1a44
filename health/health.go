package health

import (
	"crypto/tls"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// Target is a node that should be watched.
type Target struct {
	// Name is the stable name of the node: unique within a manager, and the key under
	// which operators' settings and restart counts survive a change of address.
	Name string
	// URL is the base URL of the engine, for example "http://10.0.0.7:8000" or
	// "https://[fd00::7]:8000/base". A bare "host:port" means http. Nodes with the same
	// URL, key and TLS settings are polled once for all.
	URL string
	// Pool groups nodes that stand in for each other. The ejection share, the latency
	// comparison and the panic rule are counted within a pool.
	Pool string
	// Engine is the dialect that decides paths, names and rates of probes.
	Engine dialect.Engine
	// Models are the names that the node is meant to serve. The node is ready when the
	// engine lists at least one of them; empty means that any model will do.
	Models []string
	// Rank is the data-parallel rank as it appears in the metric labels ("0", "1"), or
	// empty when the node is the whole engine.
	Rank string
	// APIKey returns the engine's key; nil or an empty result means that none is sent.
	// It is asked before each probe, so that a rotated key needs no reload.
	APIKey func() string
	// TLS is used for https URLs; nil means the system's defaults.
	TLS *tls.Config
	// Terminating is discovery's word that the node is about to go: no new work, what
	// runs may finish (field case B38).
	Terminating bool
	// Unready is discovery's word that the node should get no work yet, or not at the
	// moment (a Kubernetes readiness gate).
	Unready bool
}

// State is the condition of a node.
type State uint8

// The states. docs/health.md explains each to an operator.
const (
	Unknown   State = iota // nothing observed yet
	Starting               // reachable or awaited, but not ready for the first time since it (re)started
	Ready                  // serves its model and has room
	Saturated              // serves its model, but its own numbers say that it is full
	Draining               // an operator or discovery wants no new work on it
	Asleep                 // the engine sleeps; its cache is lost
	Unhealthy              // probes fail, or the engine makes no progress
	Ejected                // traffic fails on it; re-entry by one trial request
	Gone                   // no longer a target
)

var stateNames = [...]string{
	"unknown", "starting", "ready", "saturated", "draining", "asleep", "unhealthy", "ejected", "gone",
}

// String returns the name used in status, metrics and logs.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Serving says that the node is in service: ready, or saturated and merely full.
func (s State) Serving() bool { return s == Ready || s == Saturated }

// Status is what is known of a node at one moment. It is a copy: the caller may keep
// it, but must not change the slices.
type Status struct {
	Name   string
	Pool   string
	URL    string
	Engine dialect.Engine
	Rank   string

	State  State
	Reason string    // why the node is in this state, in plain English; never empty once observed
	Since  time.Time // when the state was entered
	Level  ring.Level

	// Suspect says that /health is slow or failing while other evidence speaks for the
	// engine. The node keeps serving.
	Suspect bool
	// Panicking says that every node of the pool looks full and that this one, the
	// least bad, has been opened all the same.
	Panicking bool
	// AuthFailing says that the engine refuses the configured key (field case B19).
	AuthFailing bool
	// Missing lists the signals that the engine does not report, or reports out of
	// range: "kv_usage", "waiting", "running", or "metrics" for the whole page.
	Missing []string
	// NoHits says that prefix-cache queries have grown for a minute without one hit
	// (field case B56).
	NoHits bool
	// AffinityLimited says that several data-parallel ranks answer behind this one node,
	// so that affinity ends at the engine's own balancer (field case B55).
	AffinityLimited bool

	Signals Signals
	// Voice is the influence of Signals in 0..1: 1 while fresh, falling to 0 as the
	// last good page gets old, 0 without any.
	Voice float64
	// QueueTime is the mean wait of the requests that began lately, PreemptRate the
	// preemptions per second, DrainRate the requests finished per second. NaN = unknown.
	QueueTime   time.Duration // negative = unknown
	PreemptRate float64
	DrainRate   float64

	Models   []string // base models that the engine lists, in its order
	Adapters []string // LoRA adapters that the engine lists, in its order
	Version  string   // "" until known

	// Epoch counts the times that the engine's cache is known to have been lost: a
	// restart, a sleep, a new address. A change means that nothing is warm there.
	Epoch int
	// Weight is the operator's weight (1 unless set). Ramp in 0..1 is the slow start
	// after (re-)entry; below 1 the node takes nobody's overflow.
	Weight   float64
	Ramp     float64
	Cordoned bool
}

// Kind is what happened to one request on a node.
type Kind uint8

// The kinds of outcome. Success resets every count of consecutive failures.
const (
	Success       Kind = iota // whole answer, or first event and then the client left
	ConnectFailed             // refused, unreachable or timed out before a connection stood
	Reset                     // connection lost before the first event
	HeaderTimeout             // connected, but no first event within the limit
	Truncated                 // stream ended without terminal evidence, engine's side
	ServerError               // 5xx other than 503, or an error event with such a code
	Busy                      // 429, 503, or a full-queue error event: back-pressure, not sickness
	ClientError               // 4xx: never counts (field case B52)
	Cancelled                 // client left before the first event: proves nothing
	numKinds
)

var kindNames = [...]string{
	"success", "connect failed", "reset before first event", "no first event in time", "stream cut",
	"server error", "busy", "client error", "cancelled",
}

// String names the kind for reasons and logs.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// PassiveOutcome is one request's outcome as traffic saw it.
type PassiveOutcome struct {
	Kind Kind
	// FirstByte is the time to the first event, 0 = not measured. Only outcomes with
	// Warm set are compared with the rest of the pool: cold prefills differ by design.
	FirstByte time.Duration
	Warm      bool
	// RetryAfter is what a Busy engine asked for; 0 = not said.
	RetryAfter time.Duration
}
