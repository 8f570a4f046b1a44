package fingerprint

import (
	"math"

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
	stage [stageSize]byte
}

const (
	stageSize = 1024
	direct    = 256 // runs from here on are hashed in place
)

// cut is a registered length of a stream.
type cut struct {
	length int
	block  bool // one of the fixed lengths that the Learner and Churn compare
	named  bool // some Named ends here
}

func (s *sink) reset(cuts []cut) {
	s.d.Reset()
	s.pos, s.n, s.at, s.cuts, s.next = 0, 0, 0, cuts, math.MaxInt
	if len(cuts) > 0 {
		s.next = cuts[0].length
	}
}

func (s *sink) write(b []byte) {
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
	s.flush()
	return s.d.Sum64()
}

// fold combines hashes in order. tag keeps uses apart.
func fold(tag byte, a, b uint64) uint64 {
	var w [18]byte
	w[0], w[1] = Version, tag
	putUint64(w[2:], a)
	putUint64(w[10:], b)
	return xxhash.Sum64(w[:])
}
