package prewarm

import (
	"fmt"
	"hash/fnv"
	"slices"
)

// Turn is the place of the router self in the order in which routers look after a node:
// 0 is the first. The order is that of a ring of the routers, so that routers that know
// the same names agree without a store, each looks after about the same number of
// nodes, and a router that leaves hands over its own nodes only.
//
// All work on one node belongs to one router: two that warm the same node at a time
// would prefill side by side. The router in place r takes over what the ones before it
// have left undone for r times a grace.
func Turn(routers []string, self, node string) (int, error) {
	if len(routers) == 0 {
		return 0, nil
	}
	order, err := turnOrder(routers, node)
	if err != nil {
		return 0, err
	}
	place := slices.Index(order, self)
	if place < 0 {
		return 0, fmt.Errorf("cannot divide the work: router %q is not among the %d named", self, len(routers))
	}
	return place, nil
}

func turnOrder(routers []string, node string) ([]string, error) {
	owners, err := ringOrder(routers)
	if err != nil {
		return nil, fmt.Errorf("cannot divide the work: %w", err)
	}
	return owners(turnKey(node), len(routers)), nil
}

func turnKey(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte("prefixring turn\x00" + node))
	return h.Sum64()
}

// turnsOf is Turn for many nodes with one ring.
func turnsOf(routers []string, self string, nodes []Node) (map[string]int, error) {
	out := make(map[string]int, len(nodes))
	if len(routers) == 0 {
		return out, nil
	}
	if !slices.Contains(routers, self) {
		return nil, fmt.Errorf("cannot divide the work: router %q is not among the %d named", self, len(routers))
	}
	owners, err := ringOrder(routers)
	if err != nil {
		return nil, fmt.Errorf("cannot divide the work: %w", err)
	}
	for _, n := range nodes {
		out[n.Name] = slices.Index(owners(turnKey(n.Name), len(routers)), self)
	}
	return out, nil
}
