package ring

// Candidate is one node as a pick would see it.
type Candidate struct {
	Name     string `json:"name"`
	Rank     int    `json:"rank"` // place in the key's order, 0 = first owner
	Owner    bool   `json:"owner"`
	Bound    bool   `json:"binding,omitempty"`
	Next     bool   `json:"next,omitempty"` // owns the key that this one is about to become
	Level    string `json:"level"`
	Load     int64  `json:"load"`     // work units, this router's
	External int64  `json:"external"` // work units, the others'
	Limit    int64  `json:"limit"`    // the bound, work units
	Verdict  string `json:"verdict"`  // "picked", "may", or why not: "closed", "warm-only", "no-overflow", "tried", "bound"
}

// Explanation says what Pick would do with a query, and why.
type Explanation struct {
	Partition  int         `json:"partition"`
	K          int         `json:"k"`
	Usable     int         `json:"usable"`
	Mean       int64       `json:"mean"` // load per usable node of average weight, work units
	Candidates []Candidate `json:"candidates"`
	Node       string      `json:"node,omitempty"`
	Reason     string      `json:"reason"`
	Refusal    string      `json:"refusal,omitempty"`
}

// Explain answers what Pick would do now, without reserving anything. The gate's
// Admit is not asked, because a true answer of it takes a token: what it would veto
// shows as "may". Explain allocates; it is for people.
func (r *Ring) Explain(q *Query) Explanation {
	s := r.snap.Load()
	e := Explanation{K: max(q.K, 1), Usable: s.usable, Reason: None.String()}
	if len(s.nodes) == 0 {
		e.Refusal = Empty.String()
		return e
	}
	e.Partition = s.table.partition(q.Key)
	p := picker{r: r, s: s, q: &Query{Key: q.Key, Second: q.Second, K: q.K, Next: q.Next, Work: q.Work, Tried: q.Tried, Gate: q.Gate, Hard: q.Hard}}
	p.need = Unit
	if q.Work > 0 {
		p.need = min(q.Work, Unit)
	}
	p.mean = s.mean(r) + float64(p.need)*s.perWeight
	if s.rel > 0 {
		e.Mean = int64(s.mean(r) / s.rel)
	}
	ask := p.explainOrder(&e)
	p.explainPick(&e, q, ask)
	return e
}

// explainOrder lists the candidates in ring order and returns the indexes of them in
// the order in which a pick asks.
func (p *picker) explainOrder(e *Explanation) []int {
	first, end := -1, 0
	if e.K > 1 {
		first, end = p.chooseOwner(e.K)
	}
	w := p.s.walk(p.q.Key)
	owners := 0
	for rank := 0; ; rank++ {
		n := w.next()
		if n == nil {
			break
		}
		c := Candidate{
			Name: n.name, Rank: rank, Level: n.Level().String(),
			Load: n.Load(), External: n.External(), Limit: p.s.bound(n, p.mean, p.q.Hard, &p.r.opts),
		}
		limit := Open
		if owners < e.K {
			limit = NoOverflow
			if p.stands(n) {
				owners++
				c.Owner = true
			}
		}
		c.Verdict = p.verdict(n, limit, c.Limit)
		e.Candidates = append(e.Candidates, c)
	}
	var ask []int
	if first >= 0 {
		ask = append(ask, first)
		start := int(reduce(mix(p.q.Second+1), end))
		for i := range end {
			if place := (start + i) % end; place != first {
				ask = append(ask, place)
			}
		}
	}
	lastOwner := end
	for i := end; i < len(e.Candidates); i++ {
		if e.Candidates[i].Owner {
			lastOwner = i + 1
		}
	}
	for i := end; i < lastOwner; i++ {
		ask = append(ask, i)
	}
	ask = append(ask, p.nextOwners(e)...)
	for i := lastOwner; i < len(e.Candidates); i++ {
		ask = append(ask, i)
	}
	return ask
}

// nextOwners are the candidates that own Query.Next.
func (p *picker) nextOwners(e *Explanation) (ask []int) {
	if p.q.Next == 0 {
		return nil
	}
	w := p.s.walk(p.q.Next)
	for range e.K {
		n := w.next()
		if n == nil {
			break
		}
		for i := range e.Candidates {
			if c := &e.Candidates[i]; c.Name == n.name {
				c.Next = true
				ask = append(ask, i)
			}
		}
	}
	return ask
}

func (p *picker) verdict(n *Node, limit Level, bound int64) string {
	if l := n.Level(); l > limit && !(l == WarmOnly && p.isWarm(n)) {
		return l.String()
	}
	for _, t := range p.q.Tried {
		if t == n {
			return "tried"
		}
	}
	if n.full()+p.need > bound {
		return "bound"
	}
	return "may"
}

// explainPick marks the candidate that a pick would take.
func (p *picker) explainPick(e *Explanation, q *Query, ask []int) {
	take := func(c *Candidate, r Reason) {
		c.Verdict = "picked"
		e.Node, e.Reason = c.Name, p.reason(r).String()
	}
	seen := map[string]bool{}
	if b := q.Bound; b != nil && b.ring == p.r && !b.Gone() {
		for i := range e.Candidates {
			c := &e.Candidates[i]
			if c.Name != b.name {
				continue
			}
			c.Bound = true
			c.Limit = p.s.followBound(b, p.mean, q.Hard, &p.r.opts)
			v := p.verdict(b, WarmOnly, c.Limit)
			if v == "may" {
				take(c, Binding)
				return
			}
			seen[v] = true
		}
	}
	for _, i := range ask {
		c := &e.Candidates[i]
		if c.Verdict != "may" {
			seen[c.Verdict] = true
			continue
		}
		if c.Owner {
			take(c, Owner)
		} else {
			take(c, Overflow)
		}
		return
	}
	switch {
	case seen["bound"]:
		e.Refusal = AtBound.String()
	case seen["tried"]:
		e.Refusal = AllTried.String()
	default:
		e.Refusal = AllClosed.String()
	}
}
