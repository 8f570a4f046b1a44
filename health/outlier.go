package health

import (
	"fmt"
	"time"
)

// busyFor is how long a refusal for lack of room closes a node when the engine names
// no time. The next metrics page is at most a second away.
const busyFor = time.Second

// limit is the number of failures of a kind in a row that ejects, 0 = never.
func (o *Outliers) limit(k Kind) int {
	n := 0
	switch k {
	case ConnectFailed:
		n = o.ConnectFailures
	case Reset:
		n = o.Resets
	case HeaderTimeout:
		n = o.HeaderTimeouts
	case Truncated:
		n = o.Truncated
	case ServerError:
		n = o.ServerErrors
	}
	return max(n, 0)
}

// counts says that the kind is evidence against the engine.
func (k Kind) counts() bool {
	return k == ConnectFailed || k == Reset || k == HeaderTimeout || k == Truncated || k == ServerError
}

// onOutcome takes what traffic saw. Kinds are counted apart: three refusals in a row
// say more than a refusal, a cut stream and a 500 together.
func (c *core) onOutcome(o PassiveOutcome, now time.Time) {
	switch {
	case o.Kind == Success:
		c.clearTraffic()
	case o.Kind == Busy:
		c.streak[ConnectFailed], c.streak[HeaderTimeout] = 0, 0 // it answers
		d := o.RetryAfter
		if d <= 0 {
			d = busyFor
		}
		c.full.busyUntil = now.Add(min(d, time.Minute))
	case o.Kind.counts():
		c.streak[o.Kind]++
		if n := c.opt.Outliers.limit(o.Kind); n > 0 && c.streak[o.Kind] >= n && !c.ejected {
			c.wantEject = fmt.Sprintf("%d times in a row: %s", c.streak[o.Kind], o.Kind)
		}
	}
}

func (c *core) clearTraffic() {
	c.streak = [numKinds]int{}
	c.wantEject = ""
}

// eject takes the node out until a trial succeeds.
func (c *core) eject(reason string, now time.Time) {
	if c.ejected {
		return
	}
	o := &c.opt.Outliers
	if now.Sub(c.returned) > o.CooldownMax {
		c.ejections = 0
	}
	c.ejected = true
	c.ejectedBy = reason
	c.ejections++
	c.trialAt = now.Add(c.cooldown())
	c.clearTraffic()
}

func (c *core) cooldown() time.Duration {
	o := &c.opt.Outliers
	d := o.Cooldown
	for i := 1; i < c.ejections && d < o.CooldownMax; i++ {
		d *= 2
	}
	return min(d, o.CooldownMax)
}

// trialDue says that the one request that may readmit the node should be sent now.
func (c *core) trialDue(now time.Time) bool {
	return (c.ejected || c.progress.hung) && c.healthy && c.served && !c.gone &&
		!c.trialAt.IsZero() && !now.Before(c.trialAt)
}

// onTrial judges the trial. A hung engine must produce a token; for any other an
// answer that blames the request is an answer (an embedding model has no completions).
func (c *core) onTrial(r result, now time.Time) {
	if r.ok() || r.blames() && !c.progress.hung {
		c.progress.hung, c.progress.moved = false, now
		c.returned = now
		c.ejected = false
		c.sawDown = true // returns through the slow start
		c.trialAt = time.Time{}
		c.clearTraffic()
		return
	}
	c.ejections++
	c.trialAt = now.Add(c.cooldown())
}

// mayEject says whether one more of a pool's nodes may be ejected.
func mayEject(total, ejected, serving int, share float64) bool {
	if serving <= 1 {
		return false // the last one stays, bad as it may be
	}
	return ejected+1 <= max(1, int(share*float64(total)))
}
