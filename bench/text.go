package bench

import (
	"encoding/binary"
	"math/rand/v2"
)

// BytesPerToken is the length of one generated word. Every word is three letters
// and a space: one token in the vocabularies of the common models, and one token by
// the four-bytes rule of the simulated engine. Usage has the truth.
const BytesPerToken = 4

// words are short common words, so that a real tokenizer keeps each whole.
const words = "" +
	"the and for you not are all new was can has but our one out now use get may how " +
	"her his any who two way day own see man did its let say she too old men try ask " +
	"end why big few put set run top off far yet add air arm art bad bag bar bed bit " +
	"box boy bus buy car cat cup cut dog dry due eat egg eye fan fat fee fit fix fly " +
	"fun gas god gun guy hat hit hot ice ill job joy key kid kit law lay led leg lie "

const wordCount = len(words) / BytesPerToken

// appendText appends exactly tokens words to dst. Equal seeds give equal bytes; the
// bytes need no JSON escape.
func appendText(dst []byte, seed uint64, tokens int) []byte {
	var bits [8]byte
	state := seed
	for tokens > 0 {
		state, bits = splitmix(state)
		for i := 0; i < len(bits) && tokens > 0; i++ {
			w := int(bits[i]) % wordCount * BytesPerToken
			dst = append(dst, words[w:w+BytesPerToken]...)
			tokens--
		}
	}
	return dst
}

// newRand is a generator for one small stream of choices.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6e6577)) }

// splitmix is SplitMix64: one add and three mixes per eight words, so that a 240 KB
// prefix costs less to make than to send.
func splitmix(state uint64) (next uint64, bits [8]byte) {
	next = state + 0x9e3779b97f4a7c15
	binary.LittleEndian.PutUint64(bits[:], mix(next))
	return next, bits
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// seedOf mixes several numbers into one seed; order matters.
func seedOf(parts ...uint64) uint64 {
	h := uint64(0x243f6a8885a308d3)
	for _, p := range parts {
		h = mix(h ^ mix(p+0x9e3779b97f4a7c15))
	}
	return h
}

// seedOfString is FNV-1a, for nonces and names.
func seedOfString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
