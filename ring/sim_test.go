package ring

import "time"

// ending is a request that will end.
type ending struct {
	at   float64
	slot Slot
}
type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at < e[j].at }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func spread(r *Ring) (highest, mean float64) {
	for _, n := range r.Nodes() {
		highest = max(highest, float64(n.InFlight()))
		mean += float64(n.InFlight())
	}
	return highest, mean / float64(len(r.Nodes()))
}

func simClock(sec *float64) func() time.Time {
	base := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	return func() time.Time { return base.Add(time.Duration(*sec * float64(time.Second))) }
}
