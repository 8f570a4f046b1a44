package dialect

// Unknown marks a token count that the engine did not report. It is never zero:
// zero is a count that was reported (see field case B67).
const Unknown int64 = -1

// Usage is what an engine says it counted for one request, in tokens. Every field
// is Unknown until the engine has reported it.
type Usage struct {
	Prompt     int64 // all prompt tokens, cached ones included, whatever the wire shape says
	Cached     int64 // prompt tokens served from the prefix cache
	CacheWrite int64 // prompt tokens newly written to the cache (hosted APIs; vLLM created_cache_tokens)
	Write1h    int64 // part of CacheWrite that is kept for an hour, where the host tells (the rest: 5 minutes)
	Output     int64 // generated tokens, reasoning included
	Reasoning  int64 // part of Output, where the engine tells
}

// NoUsage is the usage of a request about which the engine said nothing.
var NoUsage = Usage{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown}

// Verdict is what the evidence in a finished response proves.
type Verdict uint8

// The verdicts. Unproven is the zero value: nothing is believed without evidence.
const (
	Unproven   Verdict = iota // the body ended without terminal evidence either way
	Success                   // terminal evidence of a whole answer
	Incomplete                // the engine says that it stopped early (length, content filter, abort)
	Failed                    // an error object, an error event, an error status
	Cancelled                 // the client left, or the router gave up
)

// String returns the label value used in metrics and logs.
func (v Verdict) String() string {
	switch v {
	case Success:
		return "success"
	case Incomplete:
		return "incomplete"
	case Failed:
		return "failed"
	case Cancelled:
		return "cancelled"
	default:
		return "unknown"
	}
}
