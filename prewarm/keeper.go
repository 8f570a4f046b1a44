package prewarm

import (
	"math"
	"time"
)

// keeper learns how long a node keeps an idle prefix, from what touches find. Prefixes of
// one node share its LRU, so one interval serves them all.
type keeper struct {
	least, most time.Duration
	interval    time.Duration
	// evicted is the shortest gap after which a prefix was gone; 0 = never seen. It doubles
	// with each forget, because the load that evicted may be over.
	evicted time.Duration
}

// forget is how long a seen eviction takes to count half. A prefix lost costs a cold
// prefill of seconds, a touch too many costs milliseconds: probing is rare.
const forget = time.Hour

// firstInterval is the touch interval of a node of which nothing is known.
const firstInterval = 60 * time.Second

func newKeeper(least, most time.Duration) *keeper {
	return &keeper{least: least, most: most, interval: min(max(firstInterval, least), most)}
}

// held notes a touch that found the prefix after a gap.
func (k *keeper) held(gap time.Duration) {
	if gap < k.interval/2 {
		return // proves nothing that was not known
	}
	grown := k.interval + k.interval/4
	if k.evicted > 0 {
		k.evicted = time.Duration(float64(k.evicted) * math.Exp2(float64(gap)/float64(forget)))
		grown = min(grown, k.evicted*3/4)
	}
	k.interval = min(max(grown, k.interval, k.least), k.most)
}

// lost notes that a prefix was gone after a gap.
func (k *keeper) lost(gap time.Duration) {
	if gap <= 0 {
		return
	}
	if k.evicted == 0 || gap < k.evicted {
		k.evicted = gap
	}
	k.interval = min(max(min(k.interval, gap)/2, k.least), k.most)
}

// due is how long after its last use a prefix is touched, given an estimate of how long
// the node keeps it (0 = none).
func (k *keeper) due(horizon time.Duration) time.Duration {
	if horizon > 0 {
		return min(max(min(k.interval, horizon/2), k.least), k.most)
	}
	return k.interval
}
