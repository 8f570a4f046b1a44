package fingerprint

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// sink is a digest over one stream of canonical bytes. Small pieces are gathered in
// stage, because a digest write costs more than the copy of a short token; long runs
// are hashed where they lie in the body.
//
// A sink with cuts records the digest of the stream so far at each of the registered
// lengths it passes: a digest can be read without ending it, so any number of nested
// prefixes costs one pass.
type sink struct {
	d     xxhash.Digest
	pos   int // bytes of the stream so far
	next  int // the next cut
	n     int // bytes in stage
	cuts  []cut
	at    int // index of next in cuts
	sums  []uint64
	first []byte // a first run that is still alone: most streams are one run of the body
	stage [stageSize]byte
}

const (
	stageSize = 1024
	direct    = 256 // runs from here on are hashed in place
	token     = 16
)

// cut is a registered length of a stream.
type cut struct {
	length int
	block  bool // one of the fixed lengths that the Learner and Churn compare
	named  bool // some Named ends here
}

func (s *sink) reset(cuts []cut) {
	s.pos, s.n, s.at, s.cuts, s.next, s.first = 0, 0, 0, cuts, math.MaxInt, nil
	if len(cuts) > 0 {
		s.next = cuts[0].length
	}
}

// raw adds a run of the body, which stays as it is until the stream is summed.
func (s *sink) raw(b []byte) {
	if s.pos == 0 && len(b) < s.next {
		s.first, s.pos = b, len(b)
		return
	}
	if len(b) <= token && cap(b) >= token && s.n > 0 && s.n <= stageSize-token && s.pos+len(b) < s.next {
		// A token of spaced-out JSON: two words are copied, whatever follows it in the
		// body, and the next piece is written over the surplus.
		binary.LittleEndian.PutUint64(s.stage[s.n:], binary.LittleEndian.Uint64(b[:token]))
		binary.LittleEndian.PutUint64(s.stage[s.n+8:], binary.LittleEndian.Uint64(b[8:token]))
		s.n += len(b)
		s.pos += len(b)
		return
	}
	s.write(b)
}

// start opens the digest with the first run, if there is one.
func (s *sink) start() {
	s.d.Reset()
	if s.first != nil {
		_, _ = s.d.Write(s.first)
		s.first = nil
	}
}

func (s *sink) write(b []byte) {
	if s.pos == 0 || s.first != nil {
		s.start()
	}
	if s.pos+len(b) >= s.next {
		b = s.cross(b)
	}
	s.pos += len(b)
	if len(b) >= direct || len(b) > stageSize-s.n {
		s.flush()
		if len(b) >= direct {
			_, _ = s.d.Write(b)
			return
		}
	}
	s.n += copy(s.stage[s.n:], b)
}

// cross writes up to the last cut inside b, records a sum at each, and returns the rest.
func (s *sink) cross(b []byte) []byte {
	s.flush()
	for s.pos+len(b) >= s.next {
		k := s.next - s.pos
		_, _ = s.d.Write(b[:k])
		s.pos, b = s.next, b[k:]
		s.sums = append(s.sums, s.d.Sum64())
		s.at++
		s.next = math.MaxInt
		if s.at < len(s.cuts) {
			s.next = s.cuts[s.at].length
		}
	}
	return b
}

func (s *sink) flush() {
	if s.n > 0 {
		_, _ = s.d.Write(s.stage[:s.n])
		s.n = 0
	}
}

func (s *sink) sum() uint64 {
	if s.pos == 0 || s.first != nil {
		return xxhash.Sum64(s.first)
	}
	s.flush()
	return s.d.Sum64()
}

// fold combines two hashes in order; tag keeps its uses apart. Its inputs are xxhash
// sums or folds of them, so one multiplication to 128 bits and a finish spread them.
func fold(tag byte, a, b uint64) uint64 {
	const k1, k2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	hi, lo := bits.Mul64(a^k1, b^k2^uint64(tag)<<56)
	h := hi ^ lo ^ bits.RotateLeft64(a, 29) ^ (b + k1)
	h ^= h >> 32
	h *= k2
	return h ^ h>>29
}
