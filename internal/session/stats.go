package session

// Reason says why a binding was evicted.
type Reason uint8

// The reasons.
const (
	Failed      Reason = iota // the engine answered with an error, or not at all
	Incomplete                // the answer stopped early
	Interrupted               // the answer ended without terminal evidence
	Cancelled                 // the client left
	ClientError               // the client's own 4xx (preset strict only)
	Capacity                  // the least recently used made room
	Replaced                  // a later success on another target
	Gone                      // the target left for good
	reasons
)

// String returns the label value.
func (r Reason) String() string {
	return [...]string{"failed", "incomplete", "interrupted", "cancelled", "client_error", "capacity", "replaced", "gone", "other"}[min(r, reasons)]
}

// Refusal says why a binding was found but not followed, or not made.
type Refusal uint8

// The refusals. Health comes before cache: all but Spent are the target's state.
const (
	Saturated Refusal = iota
	Draining
	ShortOfRate
	Resting
	Ejected
	NotEligible
	AtBound
	refusals
)

// String returns the label value.
func (r Refusal) String() string {
	return [...]string{"saturated", "draining", "rate", "resting", "ejected", "not_eligible", "bound", "other"}[min(r, refusals)]
}

// Refused counts a binding that was not followed, or not made.
func (s *Store) Refused(why Refusal) {
	if s != nil {
		s.stats.refused[min(why, refusals-1)].Add(1)
	}
}

// Stats are counts since New.
type Stats struct {
	Entries  int               `json:"entries"`
	Bound    uint64            `json:"bound"`
	Followed uint64            `json:"followed"`
	Expired  uint64            `json:"expired"`
	Spent    uint64            `json:"spent"` // left at the use limit
	Evicted  map[string]uint64 `json:"evicted"`
	Refused  map[string]uint64 `json:"refused"`
}

// Stats returns the counts. The maps have every reason, also those at zero.
func (s *Store) Stats() Stats {
	st := Stats{Evicted: map[string]uint64{}, Refused: map[string]uint64{}}
	if s == nil {
		return st
	}
	st.Entries = s.Len()
	st.Bound, st.Followed = s.stats.bound.Load(), s.stats.followed.Load()
	st.Expired, st.Spent = s.stats.expired.Load(), s.stats.spent.Load()
	for r := range reasons {
		st.Evicted[r.String()] = s.stats.evicted[r].Load()
	}
	for r := range refusals {
		st.Refused[r.String()] = s.stats.refused[r].Load()
	}
	return st
}
