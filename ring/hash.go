package ring

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// hasher is what the consistent library hashes with. All placement depends on it:
// a change moves every key and fails the golden test.
type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

// mix is a bijective 64-bit finaliser (the constants are those of splitmix64). Keys
// and scores go through it, so that weak keys spread as well as strong ones.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// reduce maps a well-mixed hash to 0..n-1 without a division.
func reduce(h uint64, n int) uint64 {
	hi, _ := bits.Mul64(h, uint64(n))
	return hi
}
