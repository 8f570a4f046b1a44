package core

import (
	"encoding/binary"
	"math/bits"
)

// Chain is an immutable run of block hashes from the start of a prompt, shared by
// every request that begins with it. Comparing a request with what an engine
// cached for the same Chain costs O(1), not O(blocks).
type Chain struct{ h []uint64 }

// NewChain makes a chain of hashes that are already chained (each covers all that
// precedes it). It keeps the slice.
func NewChain(hashes []uint64) *Chain { return &Chain{h: hashes} }

// SeedChain makes a chain of n blocks that depends on the seed only.
func SeedChain(seed uint64, n int) *Chain {
	return &Chain{h: AppendSeed(make([]uint64, 0, n), mix(seed, 0x9e3779b97f4a7c15), seed, n)}
}

// Blocks returns the number of blocks in the chain; nil has none.
func (c *Chain) Blocks() int {
	if c == nil {
		return 0
	}
	return len(c.h)
}

// End returns the hash of the last block, the parent of whatever follows; 0 when empty.
func (c *Chain) End() uint64 {
	if c.Blocks() == 0 {
		return 0
	}
	return c.h[len(c.h)-1]
}

// AppendSeed appends n chained block hashes after parent, drawn from the seed.
func AppendSeed(dst []uint64, parent, seed uint64, n int) []uint64 {
	for i := range n {
		parent = mix(parent^0xd6e8feb86659fd93, seed+uint64(i))
		dst = append(dst, parent)
	}
	return dst
}

// AppendHashes appends the chained hash of every whole block of data. blockBytes
// must be positive. root stands for what precedes data: 0, Root, or the hash of
// the block before. A rest shorter than a block has no hash and is never cached.
func AppendHashes(dst []uint64, root uint64, data []byte, blockBytes int) []uint64 {
	for len(data) >= blockBytes {
		root = hashBlock(root, data[:blockBytes])
		dst = append(dst, root)
		data = data[blockBytes:]
	}
	return dst
}

// Root returns the parent of the first block for an adapter and a cache salt, so
// that neither shares blocks with another (engines put both in the block hash).
// Both empty give 0.
func Root(adapter, salt string) uint64 {
	if adapter == "" && salt == "" {
		return 0
	}
	h := hashBlock(uint64(len(adapter))+1, []byte(adapter))
	return hashBlock(h^uint64(len(salt)), []byte(salt))
}

func hashBlock(h uint64, b []byte) uint64 {
	h ^= 0xa0761d6478bd642f
	for len(b) >= 16 {
		h = mix(binary.LittleEndian.Uint64(b)^0xe7037ed1a0b428db, binary.LittleEndian.Uint64(b[8:])^h)
		b = b[16:]
	}
	if len(b) > 0 {
		var rest [16]byte
		copy(rest[:], b)
		h = mix(binary.LittleEndian.Uint64(rest[:])^0x8ebc6af09c88c6e3, binary.LittleEndian.Uint64(rest[8:])^h+uint64(len(b)))
	}
	return mix(h, 0x589965cc75374cc3)
}

// mix is a folded multiply. The xor with both inputs keeps a zero factor from
// swallowing the other one.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a|1, b|1)
	return hi ^ lo ^ bits.RotateLeft64(a, 31) ^ b
}

// Prompt is the content of a request as the cache sees it. The zero hash list is
// legal: such a prompt never hits and leaves nothing behind.
type Prompt struct {
	Tokens int      // prompt tokens, at least 1
	Static int      // tokens of the static head; decides what counts as a cold prefill, 0 = no static head
	Head   *Chain   // hashes of the first blocks, or nil
	Tail   []uint64 // hashes of the blocks after Head; may go on into the blocks that the answer fills
}

func (p *Prompt) blocks() int { return p.Head.Blocks() + len(p.Tail) }

func (p *Prompt) hash(i int) uint64 {
	if n := p.Head.Blocks(); i >= n {
		return p.Tail[i-n]
	}
	return p.Head.h[i]
}

// Hashes returns the chain's hashes, which must not be changed.
func (c *Chain) Hashes() []uint64 {
	if c == nil {
		return nil
	}
	return c.h
}
