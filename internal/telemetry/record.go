// Package telemetry names what prefixring tells the outside about itself: metrics
// and the access log.
package telemetry

import (
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Record is what is known of one settled request. It holds no prompt text, no key
// and no tenant name.
type Record struct {
	// ID is X-Request-Id as it was sent to the engine, without the attempt suffix. Its
	// octets are only valid during Settle: clone it to keep it.
	ID          string
	Protocol    string          // chat, completions, responses, messages, other
	Pool        string          // empty when the request was refused before a pool was known
	Node        string          // the node of the last attempt; empty when there was none
	Reason      string          // why that node: binding, owner, overflow, wait, only
	Kind        string          // what the routing key was made of (field case B29)
	Named       string          // the registered prefix that matched, or empty
	Depth       string          // how a learned key was made: whole, head, none; empty when nothing was learned
	ErrorCode   string          // the router's own error code, or empty
	Fingerprint uint64          // ring key; 0 when there was none
	Rank        int             // position of the node in ring order, 0 = first owner
	Tries       int             // attempts made
	Status      int             // status the client got; 499 when it left before one
	Verdict     dialect.Verdict // what the response proved
	Usage       dialect.Usage   // what the engine counted
	Model       string          // name that the engine knows; from configuration or its own list, empty where the client named none
	Tenant      uint64          // opaque scope of the client, 0 for none; for the ledger only, never in a log or label
	Start       time.Time
	Queue       time.Duration // spent waiting for a node
	FirstByte   time.Duration // from Start; 0 when no byte came
	FirstToken  time.Duration // from Start; 0 when no token came
	Total       time.Duration
	BytesIn     int64 // request body
	BytesOut    int64 // response body octets given to the client
	Stream      bool  // the client asked for a stream
}

// Sink takes settled requests. Settle is called once per request, from many
// goroutines; it must neither block nor keep the pointer.
type Sink interface {
	Settle(*Record)
}
