//go:build !amd64 || purego

package fingerprint

// textRun returns the length of the canonical text at the head of b: how far a string
// can be hashed as it is. It ends at an unescaped quote, at a control character, at a
// backslash that does not begin a canonical escape, or at the end of b. escapes counts
// the escapes in the run. high is false only if the run is ASCII.
func textRun(b []byte) (run, escapes int, high bool) { return textRunGeneric(b) }
