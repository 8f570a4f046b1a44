// Package dialect is the one room that knows what differs between vLLM and
// SGLang, and between the wire protocols that clients speak to them.
//
// It is pure: no I/O, no goroutines. Sources for the non-obvious facts are named
// beside the code that relies on them: engine_contracts is the project's reading
// of both engines' sources, the captures are real answers under testdata.
//
// # Guarantees
//
// What is believed of an answer is believed on evidence only ([Tap], [Outcome]):
// no terminal evidence is [Unproven], never [Success]; a count that was not
// reported is [Unknown], never zero. What may pass the data port is a list
// ([RouteOf]), never a pattern. Observers have fixed memory, give the same result
// for every split of the bytes, and allocate nothing per event.
//
// # Concurrency
//
// [Tap] and [UsageStripper] belong to one goroutine at a time. All functions are
// safe for concurrent use; the exported tables must not be changed.
package dialect

// Engine names the server software behind an engine's base URL.
type Engine uint8

// The engine dialects. The zero value is VLLM, the default of the configuration.
const (
	VLLM Engine = iota
	SGLang
)

// String returns the name used in configuration, metrics and logs.
func (e Engine) String() string {
	if e == SGLang {
		return "sglang"
	}
	return "vllm"
}

// Protocol names a wire protocol spoken on the data port.
type Protocol uint8

// The protocols. Opaque is every other path under /v1/ that engines serve: it is
// forwarded, it counts as load, and its body is scanned only for model and salt.
const (
	Opaque Protocol = iota
	Chat
	Completions
	Responses
	Messages
)

// String returns the label value used in metrics and logs.
func (p Protocol) String() string {
	switch p {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Responses:
		return "responses"
	case Messages:
		return "messages"
	default:
		return "other"
	}
}
