package prewarm

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with a manifest.
type Fault struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // 0 = unknown
	Field   string `json:"field"`          // such as prefixes[2].deadline
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
}

// String is the fault on one line, in the form that editors can jump to.
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		b.WriteByte(':')
	}
	if f.Line > 0 {
		fmt.Fprintf(&b, "%d:", f.Line)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if f.Field != "" {
		b.WriteString(f.Field + ": ")
	}
	b.WriteString(f.Problem)
	if f.Remedy != "" {
		b.WriteString("; " + f.Remedy)
	}
	return b.String()
}

// ManifestError lists every fault of a manifest. Nothing of a faulty manifest is used.
type ManifestError struct{ Faults []Fault }

// Error names all faults, one on each line.
func (e *ManifestError) Error() string {
	if len(e.Faults) == 1 {
		return "cannot use manifest: " + e.Faults[0].String()
	}
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return fmt.Sprintf("cannot use manifest: %d faults\n%s", len(lines), strings.Join(lines, "\n"))
}
