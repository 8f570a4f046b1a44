package fingerprint

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

// referenceRun is textRun one byte at a time.
func referenceRun(b []byte) (run, escapes int) {
	for run < len(b) {
		switch {
		case b[run] == '"' || b[run] < 0x20:
			return run, escapes
		case b[run] == '\\':
			if run+1 == len(b) || bytes.IndexByte([]byte(`"\bfnrt`), b[run+1]) < 0 {
				return run, escapes
			}
			run, escapes = run+2, escapes+1
		default:
			run++
		}
	}
	return run, escapes
}

// runs are all ways to do it that this machine has.
var runs = map[string]func([]byte) (int, int, bool){"textRun": textRun, "generic": textRunGeneric}

func checkRun(t *testing.T, b []byte) {
	t.Helper()
	wantRun, wantEsc := referenceRun(b)
	wantHigh := !ascii(b[:wantRun])
	for name, f := range runs {
		run, esc, high := f(b)
		if run != wantRun || esc != wantEsc || wantHigh && !high {
			t.Fatalf("%s(%q) = %d, %d, %v, want %d, %d, %v", name, b, run, esc, high, wantRun, wantEsc, wantHigh)
		}
	}
}

func ascii(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func TestTextRunStopsWhereTheReferenceStops(t *testing.T) {
	alphabet := []byte("abcdefghijklmnopqrstuvwxyz \\\\\\\\\"\n\x1f\x7f\x80\xffnrtbfu/")
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60_000 {
		b := make([]byte, rng.IntN(300))
		rare := rng.IntN(40) + 1
		for i := range b {
			b[i] = 'a' + byte(rng.IntN(26))
			if rng.IntN(rare) == 0 {
				b[i] = alphabet[rng.IntN(len(alphabet))]
			}
		}
		checkRun(t, b)
	}
}

func TestTextRunAtEveryOffsetOfEveryByte(t *testing.T) {
	for at := range 200 {
		for c := range 256 {
			for _, prefix := range []string{"", `\`, `\\`, `\\\`} {
				b := bytes.Repeat([]byte{'x'}, 210)
				copy(b[at:], prefix)
				if at+len(prefix) < len(b) {
					b[at+len(prefix)] = byte(c)
				}
				checkRun(t, b)
			}
		}
	}
}

func FuzzTextRun(f *testing.F) {
	f.Add([]byte(`abc\n\\\"`), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, repeat uint8) {
		checkRun(t, bytes.Repeat(b, int(repeat%32)+1))
	})
}
