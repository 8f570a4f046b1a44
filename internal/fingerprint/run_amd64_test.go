//go:build !purego

package fingerprint

func init() {
	if !hasAVX2 || !hasAVX512 {
		return
	}
	// The one that textRun would not choose here.
	runs["AVX2"] = func(b []byte) (int, int, bool) {
		var n, e int
		var h uint32
		if len(b) > 0 {
			n, e, h = textRunAVX2(&b[0], len(b))
		}
		if len(b)-n >= 64 {
			return n, e, h != 0
		}
		m, f, rest := textRunGeneric(b[n:])
		return n + m, e + f, h != 0 || rest
	}
}
