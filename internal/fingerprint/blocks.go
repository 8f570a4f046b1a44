package fingerprint

// Block is the digest of a static prefix up to a position: two requests with the same
// Hash have the same template arguments, salt, tools and text up to there. The digests of
// one request are nested, so what two requests share is found by comparing from the end.
type Block struct {
	Hash    uint64
	Pos     int // canonical bytes of system text up to here, over all messages
	Message int // which leading message it is in, or ends with
	Offset  int // canonical bytes inside that message
}

// Blocks appends the blocks of the last Scan to dst: one before the first message, one
// at each of the fixed lengths (256 bytes, 1 KiB, then every 4 KiB to 256 KiB, then every
// 16 KiB to 1 MiB) inside each leading message, and one at the end of each.
// The last one's Hash is Prefix. For a raw completion they run through the prompt, whose
// end is the user's and gets none. Without a static prefix there is only the first.
//
// They are assembled here and not in Scan, because only new prefixes need them.
func (r *Result) Blocks(dst []Block) []Block {
	p := r.p
	if p == nil {
		return dst
	}
	chain := p.base()
	first := len(dst)
	dst = append(dst, Block{Hash: fold('p', chain, 0)})
	if p.hasPrompt {
		return p.blocks(dst, chain, 0, 0, &p.prompt)
	}
	pos := 0
	for i := range p.fixed {
		m := &p.fixed[i]
		dst = p.blocks(dst, chain, pos, i, m)
		chain = fold('s', chain, m.hash())
		pos += m.stream
		dst = append(dst, Block{Hash: fold('p', chain, 0), Pos: pos, Message: i, Offset: m.stream})
	}
	if p.fixedRest != 0 {
		dst = append(dst, Block{Hash: r.Prefix, Pos: pos, Message: len(p.fixed)})
	}
	if len(dst) == first+1 {
		dst[first].Hash = r.Prefix
	}
	return dst
}

// blocks appends those inside one message.
func (p *parser) blocks(dst []Block, chain uint64, pos, message int, m *message) []Block {
	context := namedContext(chain, m)
	for i := range m.sumsN {
		if c := p.cuts[i]; c.block && c.length < m.stream {
			sum := p.content.sums[m.sumsAt+i]
			dst = append(dst, Block{Hash: fold('B', context, sum), Pos: pos + c.length, Message: message, Offset: c.length})
		}
	}
	return dst
}

// Group is the digest of what comes before the first message for one model: template
// arguments, salt and tools. Prefixes of one group differ in text only.
func (r *Result) Group(model string) uint64 {
	if r.p == nil {
		return 0
	}
	return Fingerprint(r.p.base(), model, "", "")
}
