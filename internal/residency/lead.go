package residency

import "slices"

// flight is the leads of one fingerprint that are out.
type flight struct {
	leads   []leadOf
	changed chan struct{} // made when somebody waits, closed at the next change
}

type leadOf struct {
	node uint32
	at   int64 // ms
}

// Lead asks for the one cold prefill of fp that node may do now. A caller that gets
// true must call Done, on success and on failure alike. A lead whose holder does not is
// void after LeadTimeout.
func (t *Table) Lead(node uint32, fp uint64) bool { return t.LeadAmong(node, fp, 0) }

// LeadAmong is Lead, with at most limit leads of fp out on all nodes together; 0 means
// no limit. A node that is warm needs no lead and is given none. It is how a burst of one cold prefix is kept from being prefilled
// everywhere (field case B60).
func (t *Table) LeadAmong(node uint32, fp uint64, limit int) bool {
	s := t.shard(fp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, _ := t.Warmth(node, fp); w == Warm {
		// Another lead ended between the caller's look and this one: it need not lead, and
		// finds the node warm when it looks again.
		return false
	}
	now := t.ms()
	f := s.flights[fp]
	if f != nil {
		f.leads = slices.DeleteFunc(f.leads, func(l leadOf) bool { return now-l.at >= t.leadTimeout })
		for _, l := range f.leads {
			if l.node == node {
				return false
			}
		}
		if limit > 0 && len(f.leads) >= limit {
			return false
		}
	} else {
		f = &flight{}
		s.flights[fp] = f
	}
	f.leads = append(f.leads, leadOf{node, now})
	if e := t.claim(s, node, fp); e != nil {
		e.lead.Store(max(now, 1))
	}
	return true
}

// Done ends a lead. It is no evidence of warmth by itself: a leader whose first byte has
// come calls Observe with Prefill (or its usage) first, so that the followers it wakes
// find the node warm.
func (t *Table) Done(node uint32, fp uint64) {
	s := t.shard(fp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := t.find(node, fp); e != nil {
		e.lead.Store(0)
	}
	f := s.flights[fp]
	if f == nil {
		return
	}
	f.leads = slices.DeleteFunc(f.leads, func(l leadOf) bool { return l.node == node })
	s.wake(fp)
	if len(f.leads) == 0 {
		delete(s.flights, fp)
	}
}

// wake closes the channel that followers wait on. Called with the lock held.
func (s *shard) wake(fp uint64) {
	if f := s.flights[fp]; f != nil && f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Leaders is the number of leads of fp that are out.
func (t *Table) Leaders(fp uint64) int {
	s := t.shard(fp)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[fp]
	if f == nil {
		return 0
	}
	now, n := t.ms(), 0
	for _, l := range f.leads {
		if now-l.at < t.leadTimeout {
			n++
		}
	}
	return n
}

// Changed returns a channel that is closed when a lead of fp ends, or when evidence
// about fp arrives while leads are out. It is nil, which blocks for ever, if no lead is
// out. So ask again after taking the channel, before waiting on it: the change may have
// come in between.
func (t *Table) Changed(fp uint64) <-chan struct{} {
	s := t.shard(fp)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[fp]
	if f == nil {
		return nil
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}
