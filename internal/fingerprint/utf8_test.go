package fingerprint

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

func TestValidUTF8AgreesWithTheLibrary(t *testing.T) {
	pieces := []string{"a", "plain text of some length ", "é", "跨", "🚀", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff",
		"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xe8\xb7", "\xf0\x80\x80\x80",
		"\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "\xf0\x9f\x9a", "\xf0\x9f"}
	rng := rand.New(rand.NewPCG(1, 9))
	valid := 0
	for i := range 90_000 {
		var b []byte
		good := i%3 == 0
		for range rng.IntN(80) {
			n := len(pieces)
			if good || rng.IntN(60) > 0 {
				n = 12
			}
			b = append(b, pieces[rng.IntN(n)]...)
		}
		if i%3 == 1 && len(b) > 0 {
			b = b[:rng.IntN(len(b))]
		}
		want := utf8.Valid(b)
		if got := validUTF8(b); got != want {
			t.Fatalf("validUTF8(%x) = %v", b, got)
		}
		if want {
			valid++
		}
	}
	if valid < 30_000 || valid > 84_000 {
		t.Fatalf("%d valid texts of 90,000 test little", valid)
	}
}

func TestValidUTF8SeesEveryPairAtEveryBoundary(t *testing.T) {
	for _, at := range []int{28, 29, 30, 31, 32, 61, 62, 63, 64, 95} {
		b := bytes.Repeat([]byte{'x'}, 100)
		for i := range 256 {
			for j := range 256 {
				b[at], b[at+1] = byte(i), byte(j)
				if got, want := validUTF8(b), utf8.Valid(b); got != want {
					t.Fatalf("bytes %02x %02x at %d: %v", i, j, at, got)
				}
			}
		}
	}
}

func FuzzValidUTF8(f *testing.F) {
	f.Add([]byte("跨境电商 plain \xed\xa0\x80"), uint8(9))
	f.Fuzz(func(t *testing.T, b []byte, repeat uint8) {
		b = bytes.Repeat(b, int(repeat%16)+1)
		if got, want := validUTF8(b), utf8.Valid(b); got != want {
			t.Fatalf("validUTF8(%x) = %v", b, got)
		}
	})
}
