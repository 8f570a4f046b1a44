package health

import (
	"fmt"
	"math"
	"time"
)

// Drain stops all new work for a node; what runs there finishes. It lasts until
// Resume, over reloads and over the node's absence.
func (m *Manager) Drain(name string) error {
	return m.operate("drain", name, func(o *operator) { o.drained = true })
}

// Cordon keeps new prefixes away from a node: conversations that are bound to it and
// prefixes that are warm on it are still served there. It lasts like Drain.
func (m *Manager) Cordon(name string) error {
	return m.operate("cordon", name, func(o *operator) { o.cordoned = true })
}

// Resume undoes Drain and Cordon.
func (m *Manager) Resume(name string) error {
	return m.operate("resume", name, func(o *operator) { o.drained, o.cordoned = false, false })
}

// SetWeight sets a node's share relative to the others, in (0, 1000]. 1 is normal. It
// lasts over reloads.
func (m *Manager) SetWeight(name string, weight float64) error {
	if !(weight > 0 && weight <= 1000) || math.IsNaN(weight) {
		return fmt.Errorf("cannot set weight %v of node %q: it must be above 0 and at most 1000", weight, name)
	}
	return m.operate("set the weight of", name, func(o *operator) { o.weight = weight })
}

// operate changes what is set for a name that is or was a node.
func (m *Manager) operate(verb, name string, change func(*operator)) error {
	m.mu.Lock()
	op, known := m.operators[name]
	var n *node
	for _, o := range m.nodes {
		if o.target.Name == name {
			n = o
		}
	}
	if n == nil && !known {
		m.mu.Unlock()
		return fmt.Errorf("cannot %s node %q: there is no such node", verb, name)
	}
	change(&op)
	m.operators[name] = op
	if op == (operator{}) {
		delete(m.operators, name)
	}
	if n != nil && n.ep != nil {
		m.setOperator(n, time.Now())
	}
	m.mu.Unlock()
	m.deliver()
	return nil
}

// Report takes the outcome of one request on a node. Requests that no engine core has
// worked on (listing models, counting tokens) must not be reported: their success
// would vouch for a core that may be frozen. A success takes no lock and allocates
// nothing; unknown names are ignored.
func (m *Manager) Report(name string, o PassiveOutcome) {
	n := (*m.byName.Load())[name]
	if n == nil {
		return
	}
	switch o.Kind {
	case Success:
		n.success(&o, time.Now())
		if !n.failing.Load() {
			return
		}
		n.failing.Store(false)
	case ClientError:
		return // says nothing, whoever is to blame (field case B52)
	case Cancelled:
		return
	default:
		n.failing.Store(true)
	}
	now := time.Now()
	m.mu.Lock()
	if n.ep != nil {
		m.step(n, observation{kind: obsPassive, outcome: o}, now)
		m.panicRule(n.target.Pool, now) // a busy node is no candidate, whatever its level was
		if o.Kind == ConnectFailed {
			n.ep.wake() // let the probes see for themselves
		}
	}
	m.mu.Unlock()
	m.deliver()
}
