package fingerprint

import "fmt"

// SyntaxError says why and where a body was refused. It never carries body text, so it
// is safe to log and to send back.
type SyntaxError struct {
	Offset int    // byte offset in the body
	Field  string // the known top-level field being read, "" outside of one
	Reason string // one of the reasons below
}

// The reasons for a refusal.
const (
	ReasonEmpty     = "the body is empty"
	ReasonObject    = "the body is not a JSON object"
	ReasonBOM       = "the body begins with a byte order mark"
	ReasonEnd       = "the body ends too early"
	ReasonTrailing  = "bytes follow the JSON object"
	ReasonDuplicate = "a top-level field is given twice"
	ReasonDepth     = "the body is nested too deeply"
	ReasonUTF8      = "a string is not valid UTF-8"
	ReasonEscape    = "a string has an invalid escape"
	ReasonControl   = "a string has an unescaped control character"
	ReasonNumber    = "a number is malformed"
	ReasonLiteral   = "a value is not valid JSON"
	ReasonKey       = "a field name is not a string"
	ReasonColon     = "a field name is not followed by a colon"
	ReasonComma     = "values are not separated by a comma"
)

// Error is one line of plain English with the place.
func (e *SyntaxError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset)
	}
	return fmt.Sprintf("%s at byte %d, in %s", e.Reason, e.Offset, e.Field)
}
