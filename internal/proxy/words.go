package proxy

import (
	"strconv"
	"unsafe"
)

// b2s views octets as a string without a copy. The octets must not change while the
// string is in use.
func b2s(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func itoa(n int) string { return strconv.Itoa(n) }
