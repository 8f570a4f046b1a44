package fingerprint

import "encoding/binary"

func putUint64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

// Classes of bytes inside a string.
const (
	plain = iota
	stop  // quote or control character
	backslash
)

var stringClass, canonicalEscape = func() (c, e [256]uint8) {
	for i := range 0x20 {
		c[i] = stop
	}
	c['"'], c['\\'] = stop, backslash
	for _, b := range []byte(`"\bfnrt`) {
		e[b] = 1
	}
	return c, e
}()

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// textRunGeneric is textRun in portable Go: eight bytes at a time until one of them is
// a quote, a backslash or a control character.
func textRunGeneric(b []byte) (run, escapes int, high bool) {
	i := 0
	var all uint64
	for i < len(b) {
		for ; i+8 <= len(b); i += 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			all |= w
			q := w ^ ('"' * ones)
			s := w ^ ('\\' * ones)
			// A borrow can only raise a false alarm above a true one, and the byte
			// loop below looks again.
			if ((q-ones)&^q|(s-ones)&^s|(w-0x20*ones)&^w)&highs != 0 {
				break
			}
		}
		end := min(i+8, len(b))
		for i < end {
			c := b[i]
			all |= uint64(c)
			if stringClass[c] == plain {
				i++
				continue
			}
			if stringClass[c] == stop || i+1 >= len(b) || canonicalEscape[b[i+1]] == 0 {
				return i, escapes, all&highs != 0
			}
			escapes++
			i += 2
		}
	}
	return i, escapes, all&highs != 0
}
