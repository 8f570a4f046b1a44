package proxy

import "github.com/prefixring/prefixring/ring"

// Outcome is passive evidence about a node from one attempt.
type Outcome uint8

// The outcomes. A client's own mistake (4xx) is OutcomeOK: it says nothing against
// the engine (field case B52).
const (
	OutcomeOK            Outcome = iota
	OutcomeConnectFailed         // no connection; the engine never saw the request
	OutcomeClosed                // the connection ended before the answer did
	OutcomeTimeout               // nothing came within the first-byte limit
	OutcomeStalled               // silence in mid-answer for longer than the limit
	OutcomeBusy                  // 503 or a queue-full event
	OutcomeError                 // another 5xx
	OutcomeAuth                  // 401 or 403: the router's own key is refused
)

// String returns the label used in metrics and logs.
func (o Outcome) String() string {
	switch o {
	case OutcomeConnectFailed:
		return "connect_failed"
	case OutcomeClosed:
		return "closed"
	case OutcomeTimeout:
		return "timeout"
	case OutcomeStalled:
		return "stalled"
	case OutcomeBusy:
		return "busy"
	case OutcomeError:
		return "error"
	case OutcomeAuth:
		return "auth"
	default:
		return "ok"
	}
}

func outcomeOf(status int) Outcome {
	switch {
	case status == 401 || status == 403:
		return OutcomeAuth
	case status >= 500:
		return OutcomeError
	default:
		return OutcomeOK
	}
}

// report tells health what an attempt found out.
func (p *Proxy) report(n *ring.Node, o Outcome) {
	if up, _ := n.Value().(*Upstream); up != nil && up.account != nil {
		return // an account's health is its own to keep
	}
	if p.opts.Report != nil {
		p.opts.Report(n.Name(), o)
	}
}
