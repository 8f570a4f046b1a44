package main

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/telemetry"
)

// learning is what a pool learns of prefixes that nobody has registered.
type learning struct {
	learner *fingerprint.Learner
	churn   *fingerprint.Churn
}

func newLearning() learning {
	return learning{
		learner: fingerprint.NewLearner(fingerprint.LearnerOptions{Now: time.Now}),
		// The seed is drawn anew in each process: sketches say nothing outside of it.
		churn: fingerprint.NewChurn(fingerprint.ChurnOptions{Now: time.Now, Seed: rand.Uint64()}),
	}
}

// learn gives the data plane's pool what it learns with. An operator may want keys that are
// never learned; the hints stay.
func (p *pool) learn(to *proxy.Pool, m *telemetry.Metrics, log *slog.Logger) {
	to.Churn = p.churn
	to.Churned = func(d *fingerprint.Diagnosis) {
		m.Churn(p.name, d.Change.String())
		log.Debug("new static prefix", "pool", p.name, "hint", d.String())
	}
	if on := p.conf.Placement.LearnDepth; on != nil && !*on {
		return
	}
	to.Learner = p.learner
	to.Moved = func(from, next uint64) {
		p.sizer.Inherit(from, next)
		if n, ok := p.planned.Load(from); ok {
			p.planned.LoadOrStore(next, n)
		}
		m.KeyMoved(p.name)
		log.Info("learned key changed", "pool", p.name, "from", fmt.Sprintf("%016x", from), "to", fmt.Sprintf("%016x", next))
	}
}

// newScanner makes the one scanner that all pools read bodies with: which pool a body is for
// shows only when it has been read.
func newScanner(n *named, pools []*config.Pool) (*fingerprint.Scanner, error) {
	var o fingerprint.Options
	if n != nil {
		o.Named = n.list
	}
	for _, p := range pools {
		if lead := int(p.Placement.CompletionLead); lead > 0 {
			o.OtherLeads = append(o.OtherLeads, lead)
		}
	}
	return fingerprint.NewScanner(o)
}
