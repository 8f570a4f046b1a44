package health

import "fmt"

// Operation is what operators have set for a node.
type Operation struct {
	Drained, Cordoned bool
	Weight            float64 // 1 = nothing set
}

// Operated tells what operators have set for a name that is or was a node.
func (m *Manager) Operated(name string) (Operation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op, known := m.operators[name]
	for _, n := range m.nodes {
		known = known || n.target.Name == name
	}
	if !known {
		return Operation{}, fmt.Errorf("cannot show node %q: there is no such node", name)
	}
	set := Operation{Drained: op.drained, Cordoned: op.cordoned, Weight: 1}
	if op.weight > 0 {
		set.Weight = op.weight
	}
	return set, nil
}
