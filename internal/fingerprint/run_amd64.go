//go:build !purego

package fingerprint

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT
	hasAVX512 = hasAVX2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW
)

//go:noescape
func textRunAVX2(p *byte, n int) (run, escapes int, high uint32)

//go:noescape
func textRunAVX512(p *byte, n int) (run, escapes int, high uint32)

// textRun returns the length of the canonical text at the head of b: how far a string
// can be hashed as it is. It ends at an unescaped quote, at a control character, at a
// backslash that does not begin a canonical escape, or at the end of b. escapes counts
// the escapes in the run. high is false only if the run is ASCII.
func textRun(b []byte) (run, escapes int, high bool) {
	var h uint32
	switch {
	case len(b) < 64:
	case hasAVX512:
		run, escapes, h = textRunAVX512(unsafe.SliceData(b), len(b))
	case hasAVX2:
		run, escapes, h = textRunAVX2(unsafe.SliceData(b), len(b))
	}
	if len(b)-run >= 64 && hasAVX2 {
		return run, escapes, h != 0
	}
	n, e, rest := textRunGeneric(b[run:])
	return run + n, escapes + e, h != 0 || rest
}
