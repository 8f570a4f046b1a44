package ring

// Query is one pick. The zero value of each field is a sensible query.
type Query struct {
	Key    uint64 // the fingerprint
	Second uint64 // chooses among the owners (the conversation); 0 means the least loaded owner
	K      int    // owners; values below 1 mean 1, values above the pool mean all

	// Next is the key that this one is about to become, 0 = none. Overflow is offered to
	// its first K owners before the rest of the order, so that second copies are made where
	// they will be wanted.
	Next uint64

	// Work is what the request weighs, in work units; 0 means Unit. A node may take
	// the request when there is room for at most one Unit of it: a big request is
	// charged in full once it is in, but its size alone never keeps it out, or it
	// would starve behind small ones on a busy pool.
	Work int64

	Bound *Node // the node a binding names; asked first, within the bound of bindings (Options.Follow)
	// BoundWork is what the request weighs on Bound, where its history need not be
	// computed again; 0 means Work.
	BoundWork int64
	Tried     []*Node // excluded: they were tried already
	Gate      Gate    // nil admits all
	Hard      bool    // use the hard bound
}

// Reason says why a node was picked.
type Reason uint8

// The reasons. None means that no node was picked; Wait is for callers that queued.
const (
	None Reason = iota
	Binding
	Owner
	Overflow
	Wait
	Only
)

// String returns the value of the reason header and label.
func (r Reason) String() string {
	return [...]string{"none", "binding", "owner", "overflow", "wait", "only"}[min(r, Only)]
}

// Refusal says why no node was picked. NotRefused is its zero value.
type Refusal uint8

// The refusals, in rising order of precedence where several apply: AtBound and Gated
// are worth a wait, the others are not.
const (
	NotRefused Refusal = iota
	Empty              // the ring has no members
	AllClosed          // no member's level lets it take this request
	AllTried           // those that could were tried already
	AtBound            // no node has room
	Gated              // the gate vetoed the nodes that had room
)

// String returns a label value.
func (r Refusal) String() string {
	return [...]string{"", "empty", "closed", "tried", "bound", "gated"}[min(r, Gated)]
}

// picker is the state of one pick; it lives on the stack.
type picker struct {
	r        *Ring
	s        *snapshot
	q        *Query
	mean     float64
	need     int64
	work     int64
	warm     WarmGate
	refusal  Refusal
	warmSeen bool
}

// Pick chooses a node and reserves the work on it. It asks, in this order: the bound
// node, the owner that Second chooses, the other owners, then the rest in ring order.
// Owners are the first K nodes of the order that can take general work at all, so a
// closed owner is stood in for by the next in line.
func (r *Ring) Pick(q *Query) (Slot, Reason, Refusal) {
	s := r.snap.Load()
	if len(s.nodes) == 0 {
		return Slot{}, None, Empty
	}
	p := picker{r: r, s: s, q: q, work: min(q.Work, maxWork), refusal: AllClosed}
	if p.work <= 0 {
		p.work = Unit
	}
	p.need = min(p.work, Unit)
	p.mean = s.mean(r) + float64(p.need)*s.perWeight
	if q.Bound != nil && !q.Bound.gone.Load() && q.Bound.ring == r {
		if slot, ok := p.follow(q.Bound); ok {
			return slot, p.reason(Binding), NotRefused
		}
	}
	if q.K <= 1 {
		// Most picks end here, without a look at the order table.
		if slot, ok := p.try(s.nodes[s.table.first[s.table.partition(q.Key)]], NoOverflow, 0); ok {
			return slot, p.reason(Owner), NotRefused
		}
		return p.walk(1)
	}
	return p.walk(0)
}

func (p *picker) reason(r Reason) Reason {
	if p.s.single {
		return Only
	}
	return r
}

// follow asks the node that a binding names.
func (p *picker) follow(n *Node) (Slot, bool) {
	work := p.work
	if p.q.BoundWork > 0 {
		work = min(p.q.BoundWork, maxWork)
	}
	return p.take(n, WarmOnly, -1, work, p.s.followBound(n, p.mean, p.q.Hard, &p.r.opts))
}

// walk asks owners, then overflow. The first nodes of the order, asked in number, have
// refused already.
func (p *picker) walk(asked int) (Slot, Reason, Refusal) {
	k := max(p.q.K, 1)
	owners, end := 0, asked // owners met, and the place after them
	w := p.s.walk(p.q.Key)
	if k > 1 {
		var first int
		if first, end = p.chooseOwner(k); first >= 0 {
			if slot, ok := p.try(w.at(first), NoOverflow, first); ok {
				return slot, p.reason(Owner), NotRefused
			}
			if slot, ok := p.otherOwners(first, end); ok {
				return slot, p.reason(Owner), NotRefused
			}
			owners = k
		}
	} else if asked > 0 && p.stands(w.at(0)) {
		owners = 1
	}
	w.seek(end)
	next := p.q.Next
	for rank := end; ; rank++ {
		if owners >= k && next != 0 {
			if slot, ok := p.tryOwnersOf(next, k); ok {
				return slot, p.reason(Overflow), NotRefused
			}
			next = 0
		}
		n := w.next()
		if n == nil {
			return Slot{}, None, p.refusal
		}
		limit, reason := Open, Overflow
		if owners < k {
			limit, reason = NoOverflow, Owner
			if p.stands(n) {
				owners++
			}
		}
		if slot, ok := p.try(n, limit, rank); ok {
			return slot, p.reason(reason), NotRefused
		}
	}
}

// tryOwnersOf asks the owners of another key, as overflow.
func (p *picker) tryOwnersOf(key uint64, k int) (Slot, bool) {
	w := p.s.walk(key)
	for range k {
		n := w.next()
		if n == nil {
			break
		}
		if slot, ok := p.try(n, Open, -1); ok {
			return slot, true
		}
	}
	return Slot{}, false
}

// stands says whether n counts as an owner: a node that can't take general work has
// the next in line stand in for it.
func (p *picker) stands(n *Node) bool { return n.Level().counted() || p.isWarm(n) }

func (p *picker) isWarm(n *Node) bool {
	if n.Level() != WarmOnly {
		return false
	}
	if !p.warmSeen {
		p.warm, _ = p.q.Gate.(WarmGate)
		p.warmSeen = true
	}
	return p.warm != nil && p.warm.Warm(n)
}

// chooseOwner finds the place of the owner to ask first, and the place after the
// last of the k owners. first is -1 if there is no owner.
func (p *picker) chooseOwner(k int) (first, end int) {
	w := p.s.walk(p.q.Key)
	first = -1
	var bestScore uint64
	var bestLoad float64
	for rank, found := 0, 0; found < k; rank++ {
		n := w.next()
		if n == nil {
			break
		}
		if !p.stands(n) {
			continue
		}
		found++
		end = rank + 1
		if p.q.Second != 0 {
			if score := mix(p.q.Second ^ n.hash); first < 0 || score > bestScore {
				first, bestScore = rank, score
			}
			continue
		}
		if load := float64(n.full()) / n.Weight(); first < 0 || load < bestLoad {
			first, bestLoad = rank, load
		}
	}
	return first, end
}

// otherOwners asks the owners other than first, starting at a place that depends on
// the conversation, so that a full owner's chats spread over all the others.
func (p *picker) otherOwners(first, end int) (Slot, bool) {
	w := p.s.walk(p.q.Key)
	start := int(reduce(mix(p.q.Second+1), end))
	for i := 0; i < end; i++ {
		place := start + i
		if place >= end {
			place -= end
		}
		if place == first {
			continue
		}
		if slot, ok := p.try(w.at(place), NoOverflow, place); ok {
			return slot, true
		}
	}
	return Slot{}, false
}

// try reserves the work on n if its level, bound and gate allow it.
func (p *picker) try(n *Node, limit Level, rank int) (Slot, bool) {
	return p.take(n, limit, rank, p.work, p.s.bound(n, p.mean, p.q.Hard, &p.r.opts))
}

func (p *picker) take(n *Node, limit Level, rank int, work, bound int64) (Slot, bool) {
	if l := n.Level(); l > limit && !(l == WarmOnly && p.isWarm(n)) {
		return Slot{}, false
	}
	for _, t := range p.q.Tried {
		if t == n {
			p.refusal = max(p.refusal, AllTried)
			return Slot{}, false
		}
	}
	if !n.reserve(p.need, work, bound) {
		p.refusal = max(p.refusal, AtBound)
		return Slot{}, false
	}
	if p.q.Gate != nil {
		extra, ok := p.q.Gate.Admit(n)
		if !ok {
			n.undo(work)
			p.refusal = max(p.refusal, Gated)
			return Slot{}, false
		}
		extra = min(max(extra, 0), maxWork-work)
		n.charge(extra)
		work += extra
	}
	return newSlot(n, work, rank), true
}
