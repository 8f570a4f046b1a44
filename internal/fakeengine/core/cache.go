package core

// cache is the prefix cache: a radix tree over chained block hashes. A node is a
// run of blocks with the same users; because hashes are chained, one map from a
// node's first hash finds it without walking from the root.
//
// Invariants: a node's ancestors have at least its references; a node with none is
// in the idle list, after all of its descendants, so that the front of the list is
// always a leaf and its last block the next to go (tail first, as in vLLM's free
// queue); pinned+private+idle <= total.
type cache struct {
	index                        map[uint64]*node
	total, pinned, private, idle int // blocks
	lru                          node
	spare                        []*node
	evicted                      int64
}

type node struct {
	h      []uint64
	src    *Chain // h is src.h[off:off+len(h)], else nil
	off    int
	parent *node
	refs   int
	kids   int // child nodes; a node with children must not grow
	owner  ID  // the running request that may still append to it
	prev   *node
	next   *node
}

func (c *cache) init(total int) {
	c.index = map[uint64]*node{}
	c.total = total
	c.lru.prev, c.lru.next = &c.lru, &c.lru
}

// available counts the blocks that an allocation may take, idle ones included.
func (c *cache) available() int { return c.total - c.pinned - c.private }

// alloc takes n blocks as private, evicting idle ones if it must.
func (c *cache) alloc(n int) bool {
	if n > c.available() {
		return false
	}
	if free := c.available() - c.idle; n > free {
		c.evict(n - free)
	}
	c.private += n
	return true
}

func (c *cache) evict(n int) {
	c.evicted += int64(n)
	for n > 0 {
		v := c.lru.next
		if v == &c.lru {
			panic("BUG: evicting more blocks than are idle")
		}
		k := min(n, len(v.h))
		n -= k
		c.idle -= k
		if k < len(v.h) {
			v.h = v.h[:len(v.h)-k]
			continue
		}
		delete(c.index, v.h[0])
		if v.parent != nil {
			v.parent.kids--
		}
		v.unlink()
		c.recycle(v)
	}
}

// same counts how many blocks of v equal those of p from block i on, at most limit.
func (v *node) same(p *Prompt, i, limit int) int {
	n := min(len(v.h), limit)
	k := 0
	if h := p.Head.Blocks(); i < h && v.src == p.Head && v.off == i {
		k = min(n, h-i)
	}
	for k < n && v.h[k] == p.hash(i+k) {
		k++
	}
	return k
}

// match finds the longest cached run of p's first blocks, at most limit of them,
// and returns its last node. It splits a node that is matched in part.
func (c *cache) match(p *Prompt, limit int) (leaf *node, blocks int) {
	limit = min(limit, p.blocks())
	for blocks < limit {
		v := c.index[p.hash(blocks)]
		if v == nil || v.parent != leaf {
			break
		}
		k := v.same(p, blocks, limit-blocks)
		if k == 0 {
			break
		}
		if k < len(v.h) {
			v = c.split(v, k)
		}
		leaf, blocks = v, blocks+k
	}
	return leaf, blocks
}

// peek is match without a change.
func (c *cache) peek(p *Prompt, limit int) (blocks int) {
	limit = min(limit, p.blocks())
	var leaf *node
	for blocks < limit {
		v := c.index[p.hash(blocks)]
		if v == nil || v.parent != leaf {
			break
		}
		k := v.same(p, blocks, limit-blocks)
		blocks += k
		if k < len(v.h) {
			break
		}
		leaf = v
	}
	return blocks
}

// split cuts v after k blocks and returns the new upper part. v stays the lower
// part, so that children and holders keep the depth they know.
func (c *cache) split(v *node, k int) *node {
	u := c.fresh()
	u.h, u.src, u.off = v.h[:k:k], v.src, v.off
	v.h, v.off = v.h[k:], v.off+k
	u.parent, v.parent = v.parent, u
	u.refs, u.kids = v.refs, 1
	c.index[u.h[0]], c.index[v.h[0]] = u, v
	if u.refs == 0 {
		u.linkAfter(v)
	}
	return u
}

// pin adds a reference to leaf and all that it depends on.
func (c *cache) pin(leaf *node) {
	for v := leaf; v != nil; v = v.parent {
		c.pinOne(v)
	}
}

func (c *cache) pinOne(v *node) {
	if v.refs == 0 {
		v.unlink()
		c.idle -= len(v.h)
		c.pinned += len(v.h)
	}
	v.refs++
}

// idleIn counts the blocks of the path that pin would take out of the idle list.
func (c *cache) idleIn(leaf *node) (n int) {
	for v := leaf; v != nil && v.refs == 0; v = v.parent {
		n += len(v.h)
	}
	return n
}

// release drops a reference from leaf up, deepest first: the tail is evicted first.
func (c *cache) release(leaf *node) {
	for v := leaf; v != nil; v = v.parent {
		v.refs--
		v.owner = 0
		if v.refs == 0 {
			c.pinned -= len(v.h)
			c.idle += len(v.h)
			v.linkAfter(c.lru.prev)
		}
	}
}

// insert turns the private blocks [from,to) of a request into cached ones below
// leaf and returns the new leaf. Blocks that somebody cached meanwhile are shared
// and the request's own copy is freed.
func (c *cache) insert(id ID, p *Prompt, leaf *node, from, to int) *node {
	for from < to {
		v := c.index[p.hash(from)]
		if v == nil {
			n := to - from
			if h := p.Head.Blocks(); from < h {
				n = min(n, h-from) // a node never spans Head and Tail, so that Heads stay shared whole
			}
			leaf = c.grow(id, p, leaf, from, n)
			from += n
			continue
		}
		k := 0
		if v.parent == leaf {
			k = v.same(p, from, to-from)
		}
		if k == 0 {
			return leaf // two chains with one hash: what follows stays private
		}
		if k < len(v.h) {
			v = c.split(v, k)
		}
		c.pinOne(v)
		c.private -= k
		leaf, from = v, from+k
	}
	return leaf
}

// grow appends n new blocks to the request's own last node, or adds a node.
func (c *cache) grow(id ID, p *Prompt, leaf *node, from, n int) *node {
	c.private -= n
	c.pinned += n
	head := p.Head.Blocks()
	if leaf != nil && leaf.owner == id && leaf.refs == 1 && leaf.kids == 0 && (leaf.src != nil) == (from < head) {
		if leaf.src != nil {
			end := leaf.off + len(leaf.h) + n
			leaf.h = leaf.src.h[leaf.off:end:end]
		} else {
			leaf.h = append(leaf.h, p.Tail[from-head:from-head+n]...)
		}
		return leaf
	}
	v := c.fresh()
	v.parent, v.owner, v.refs = leaf, id, 1
	if leaf != nil {
		leaf.kids++
	}
	if from < head {
		v.src, v.off, v.h = p.Head, from, p.Head.h[from:from+n:from+n]
	} else {
		v.h = append(v.h, p.Tail[from-head:from-head+n]...)
	}
	c.index[v.h[0]] = v
	return v
}

// clear forgets every idle block and reports whether none is left in use.
func (c *cache) clear() bool {
	c.evict(c.idle)
	return c.pinned == 0 && c.private == 0
}

func (c *cache) fresh() *node {
	if n := len(c.spare); n > 0 {
		v := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return v
	}
	return &node{}
}

func (c *cache) recycle(v *node) {
	if len(c.spare) < 4096 {
		*v = node{}
		c.spare = append(c.spare, v)
	}
}

func (v *node) linkAfter(at *node) {
	v.prev, v.next = at, at.next
	at.next.prev = v
	at.next = v
}

func (v *node) unlink() {
	v.prev.next, v.next.prev = v.next, v.prev
	v.prev, v.next = nil, nil
}
