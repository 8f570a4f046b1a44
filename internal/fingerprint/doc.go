// Package fingerprint reads a request body once and says what it is keyed by.
//
// One pass over the client's bytes yields the spans of the fields the router needs,
// the digest of the static prefix (template arguments, cache salt, tools, leading
// system and developer messages), a match against registered prefixes, and a hash at
// every message boundary. There is no tree and no copy: text is hashed where it lies.
//
// # Equal meaning, equal fingerprint
//
// Every string is hashed in one canonical JSON spelling: the shortest one, in which
// only `"`, `\` and control characters are escaped (`\b \f \n \r \t`, else `\u00xx`)
// and every other character is its UTF-8. Nearly all encoders write that spelling
// already, so a line break or a quote in a prompt costs nothing; the other spellings
// (`\u003c`, `\/`, `\u8de8`, surrogate pairs) are rewritten on their way into the
// digest. White space between tokens is dropped. The order of members is kept where
// templates render it (inside tools) and does not matter elsewhere.
//
// # Strictness
//
// A body is refused with a *SyntaxError when it is not exactly one JSON object: bad
// grammar, trailing bytes, a byte order mark, invalid UTF-8, NaN or Infinity, nesting
// beyond Options.MaxDepth, or two top-level members of the same name. First-wins and
// last-wins readers disagree about the last case, so a check by model could be walked
// around. Lone surrogates are legal JSON and are kept apart from U+FFFD. Members
// repeated below the top level are the engine's business.
//
// # Contracts
//
// The package is pure: no I/O, no goroutine, no clock of its own. A Scanner is
// immutable and safe for concurrent use; a Result belongs to one caller at a time and
// is reused to keep Scan free of allocation. Nothing here keeps prompt text: Result,
// Learner and Churn hold offsets, lengths and hashes only.
//
// Hashes are 64-bit and unkeyed. They choose a place, never a permission: a client that
// forges a collision makes its own request slower and learns nothing.
package fingerprint
