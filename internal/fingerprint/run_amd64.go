//go:build !purego

package fingerprint

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var hasAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT

//go:noescape
func textRunAVX2(p *byte, n int) (run, escapes int, high uint32)

// textRun returns the length of the canonical text at the head of b: how far a string
// can be hashed as it is. It ends at an unescaped quote, at a control character, at a
// backslash that does not begin a canonical escape, or at the end of b. escapes counts
// the escapes in the run. high is false only if the run is ASCII.
func textRun(b []byte) (run, escapes int, high bool) {
	if len(b) >= 64 && hasAVX2 {
		n, e, h := textRunAVX2(unsafe.SliceData(b), len(b))
		high = h != 0
		if len(b)-n >= 64 {
			return n, e, high
		}
		run, escapes = n, e
	}
	n, e, h := textRunGeneric(b[run:])
	return run + n, escapes + e, high || h
}
