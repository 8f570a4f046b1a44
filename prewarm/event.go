package prewarm

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// EventKind says what happened.
type EventKind string

// The kinds of events of a run.
const (
	EventPlan    EventKind = "plan"    // the run begins; the totals are set
	EventStart   EventKind = "start"   // a warm request is sent
	EventPaused  EventKind = "paused"  // the node has no room: waiting
	EventResumed EventKind = "resumed" // it has room again
	EventRetry   EventKind = "retry"   // the engine failed; the request is sent again
	EventWarm    EventKind = "warm"    // proven warm
	EventFailed  EventKind = "failed"  // not proven warm, see Why
	EventDone    EventKind = "done"    // the run is over
)

// Event is one step of a run, for progress bars and logs. It holds names, digests and
// figures only.
type Event struct {
	At     time.Time `json:"at"`
	Kind   EventKind `json:"event"`
	Node   string    `json:"node,omitempty"`
	Prefix string    `json:"prefix,omitempty"`
	Key    string    `json:"fingerprint,omitempty"` // a digest

	Done      int     `json:"done"` // items settled, warm or failed, over all nodes
	Total     int     `json:"total"`
	NodeDone  int     `json:"node_done,omitempty"`
	NodeTotal int     `json:"node_total,omitempty"`
	Tokens    int64   `json:"tokens,omitempty"`      // of this item
	SumDone   int64   `json:"tokens_done,omitempty"` // of all settled items
	SumTotal  int64   `json:"tokens_total,omitempty"`
	Seconds   float64 `json:"seconds,omitempty"` // the item's first request
	ETA       float64 `json:"eta_seconds,omitempty"`

	Proof *Proof `json:"proof,omitempty"`
	Why   string `json:"why,omitempty"`
}

// JSONEvents returns a receiver that writes each event as one line of JSON. Write errors
// are ignored: a run must not die with the pipe that watches it.
func JSONEvents(w io.Writer) func(Event) {
	var mu sync.Mutex
	enc := json.NewEncoder(w)
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(e)
	}
}
