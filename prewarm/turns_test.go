package prewarm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTwoRoutersDivideTheWork(t *testing.T) {
	c := newFakeClock()
	var toys []*toy
	for i := range 8 {
		toys = append(toys, newToy(t, fmt.Sprint("n", i), c))
	}
	d := newDrive(t, c, manifest(t, threeFiles()), toys...)
	routers := []string{"r1", "r2"}
	one, two := d.scheduler("r1", routers), d.scheduler("r2", []string{"r2", "r1"})
	d.run(5*time.Second, one, two)
	byOne, byTwo := strings.Count(d.states(one), ":warm"), strings.Count(d.states(two), ":warm")
	if byOne+byTwo != 24 || byOne == 0 || byTwo == 0 {
		t.Fatalf("%d and %d of 24 are warm", byOne, byTwo)
	}
	d.run(10*time.Minute, one, two)
	for _, e := range toys {
		if e.colds() != 3 {
			t.Errorf("%s: %d cold prefills", e.name, e.colds())
		}
	}
	if len(d.alarms) > 0 {
		t.Errorf("%v", d.alarms)
	}
}

func TestDeadRoutersNodesAreTakenOver(t *testing.T) {
	c := newFakeClock()
	var toys []*toy
	for i := range 8 {
		toys = append(toys, newToy(t, fmt.Sprint("n", i), c))
	}
	d := newDrive(t, c, manifest(t, oneShop("")), toys...)
	one := d.scheduler("r1", []string{"r1", "r2"}) // r2 never starts
	d.run(20*time.Second, one)
	mine := strings.Count(d.states(one), ":warm")
	if mine == 0 || mine == 8 {
		t.Fatalf("%d of 8 nodes are first for one of two routers", mine)
	}
	d.run(time.Minute, one)
	if got := strings.Count(d.states(one), ":warm"); got != 8 {
		t.Errorf("%d of 8 are warm after the grace", got)
	}
}

func TestTurnIsAPermutation(t *testing.T) {
	routers := []string{"a", "b", "c"}
	var nodes []Node
	for i := range 300 {
		nodes = append(nodes, Node{Name: fmt.Sprint("node", i)})
	}
	count, places := map[string]int{}, map[string]map[int]bool{}
	for _, r := range routers {
		turns, err := turnsOf(routers, r, nodes)
		if err != nil {
			t.Fatal(err)
		}
		for node, turn := range turns {
			if places[node] == nil {
				places[node] = map[int]bool{}
			}
			places[node][turn] = true
			if turn == 0 {
				count[r]++
			}
		}
		if one, err := Turn(routers, r, "node7"); err != nil || one != turns["node7"] {
			t.Errorf("%d, %v", one, err)
		}
	}
	for node, p := range places {
		if len(p) != 3 {
			t.Fatalf("%s: places %v", node, p)
		}
	}
	for r, n := range count {
		if n < 60 || n > 140 {
			t.Errorf("%s is first for %d of 300 nodes", r, n)
		}
	}
	if _, err := Turn(routers, "x", "node1"); err == nil {
		t.Error("a router that is not named has a turn")
	}
}
