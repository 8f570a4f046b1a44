package fingerprint

import (
	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Version is the first byte of every digest. It changes when, and only when, equal
// bodies begin to give other fingerprints; two routers with different versions
// disagree about owners. testdata/golden.json pins it.
const Version = 1

// Span is a half-open range of body bytes holding one raw JSON value, the quotes of a
// string included. The zero Span means absent; a member whose value is null is absent
// as well, as it is for the engines.
type Span struct{ Start, End int }

// Present reports whether the span holds anything.
func (s Span) Present() bool { return s.End > s.Start }

// Tri is a boolean that may be unset.
type Tri uint8

// The states of a Tri.
const (
	Unset Tri = iota
	False
	True
)

// Kind says what a request is keyed by (field case B29: the choice is never silent).
type Kind uint8

// The key kinds, from nothing to most precise.
const (
	KindNone    Kind = iota // nothing to key on: place by load
	KindSession             // no static prefix: an explicit conversation field, else the first message
	KindLead                // completions: the first bytes of the prompt
	KindPrefix              // the whole static prefix
	KindNamed               // a registered prefix
)

// String returns the label value used in metrics and explain.
func (k Kind) String() string {
	switch k {
	case KindSession:
		return "session"
	case KindLead:
		return "lead"
	case KindPrefix:
		return "prefix"
	case KindNamed:
		return "named"
	default:
		return "none"
	}
}

// Role is who speaks in a message. Odd roles are RoleOther; they still hash by their
// exact spelling.
type Role uint8

// The roles. RolePrompt is the text of a raw completion.
const (
	RoleOther Role = iota
	RoleSystem
	RoleDeveloper
	RoleUser
	RoleAssistant
	RoleTool
	RolePrompt
)

// String returns the role's name on the wire.
func (r Role) String() string {
	switch r {
	case RoleSystem:
		return "system"
	case RoleDeveloper:
		return "developer"
	case RoleUser:
		return "user"
	case RoleAssistant:
		return "assistant"
	case RoleTool:
		return "tool"
	case RolePrompt:
		return "prompt"
	default:
		return "other"
	}
}

// Boundary is the end of one message behind the static prefix.
type Boundary struct {
	Hash uint64 // of the messages from the first one behind the static prefix to this one
	End  int    // body offset just behind the message
	Role Role
}

// Result is what one Scan found. The zero value is ready for use; every Scan resets it
// and reuses its storage.
type Result struct {
	Protocol dialect.Protocol

	// Spans of top-level fields. Conversation and SessionID are the id strings even
	// where the wire wraps them in an object; User is `user` or Anthropic's
	// metadata.user_id; MaxTokens is max_completion_tokens, max_output_tokens or
	// max_tokens, in this order of preference.
	Model, CacheSalt, Adapter                                         Span
	User, PromptCacheKey, PreviousResponseID, Conversation, SessionID Span
	Stream, StreamOptions, MaxTokens, Priority, N                     Span
	Tools, System, Messages                                           Span

	StreamOn     bool
	IncludeUsage Tri // stream_options.include_usage

	JSON        bool   // the body is a JSON object; false only for Opaque bodies of another kind
	Prefix      uint64 // template arguments, salt, tools, all leading system/developer messages; never user text
	Key         uint64 // what Kind says; Fingerprint mixes it with the model
	Kind        Kind
	Named       int    // index into Options.Named, -1 for none
	StaticBytes int    // decoded bytes that Key covers and other requests share; 0 = none
	SystemBytes int    // decoded bytes of the leading system/developer messages
	PromptBytes int    // decoded bytes of the whole prompt, for a token estimate; a picture counts pictureBytes, a token id 4
	Media       bool   // the prompt holds an image, audio, video or file
	Turns       int    // messages behind the static prefix, all of them
	Root        uint64 // hash of the first message behind the static prefix, the same in every turn; 0 = none

	// Boundaries are the last Options.MaxBoundaries message ends behind the static
	// prefix, oldest first. A moving clock in the system message does not change them:
	// mix Key in where a conversation must not cross prefixes.
	Boundaries []Boundary

	// Strip are the ranges to cut from the body so that an engine which renders
	// Anthropic's x-anthropic-billing-header block does not see it. The rest stays
	// valid JSON. The block is outside Prefix and StaticBytes in any case.
	Strip []Span

	p *parser
}

// Fingerprint is the ring key: Key for one model (after alias resolution), adapter and
// deployment salt. Empty strings are valid and distinct from any text.
func (r *Result) Fingerprint(model, adapter, salt string) uint64 {
	return Fingerprint(r.Key, model, adapter, salt)
}

// Fingerprint is the ring key of a digest such as Result.Prefix or a learned key.
func Fingerprint(key uint64, model, adapter, salt string) uint64 {
	var d xxhash.Digest
	d.Reset()
	var b [9]byte
	b[0] = Version
	putUint64(b[1:], key)
	_, _ = d.Write(b[:])
	writeSized(&d, model)
	writeSized(&d, adapter)
	writeSized(&d, salt)
	return d.Sum64()
}

func writeSized(d *xxhash.Digest, s string) {
	var b [8]byte
	putUint64(b[:], uint64(len(s)))
	_, _ = d.Write(b[:])
	_, _ = d.WriteString(s)
}

// Last is the hash at the end of the request: what a session is bound under when the
// answer has come. ok is false when there is no message behind the static prefix.
func (r *Result) Last() (hash uint64, ok bool) {
	if len(r.Boundaries) == 0 {
		return 0, false
	}
	return r.Boundaries[len(r.Boundaries)-1].Hash, true
}

// Answered is the hash at the last boundary that has been answered: the end of the
// message before the last run of assistant messages. It equals Last of the request that
// drew this answer, because what the client sends back as the answer is not in it. ok is
// false on a first turn.
func (r *Result) Answered() (hash uint64, ok bool) {
	i := r.answered()
	if i < 0 {
		return 0, false
	}
	return r.Boundaries[i].Hash, true
}

// Fresh is the length in octets of the messages behind the last answered boundary: what
// an engine that answered the earlier turns has yet to compute. It counts the answer in,
// which an engine may hold or not. ok is false on a first turn.
func (r *Result) Fresh() (octets int, ok bool) {
	i := r.answered()
	if i < 0 {
		return 0, false
	}
	return r.Boundaries[len(r.Boundaries)-1].End - r.Boundaries[i].End, true
}

// answered is the place of the last boundary that has been answered, -1 for none.
func (r *Result) answered() int {
	i := len(r.Boundaries) - 1
	for i >= 0 && r.Boundaries[i].Role != RoleAssistant {
		i--
	}
	for i >= 0 && r.Boundaries[i].Role == RoleAssistant {
		i--
	}
	return i
}
