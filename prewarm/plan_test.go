package prewarm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
)

// offline is a fleet of given figures only.
func offline(n int) Fleet {
	f := Fleet{}
	for i := range n {
		f.Nodes = append(f.Nodes, Node{Name: "n" + string(rune('0'+i)), Models: []string{"m"}, KVTokens: 460_000, BlockSize: 16, PrefillRate: 10_000})
	}
	return f
}

func parse(t *testing.T, y string) *Manifest {
	t.Helper()
	m, err := ParseManifest([]byte(y), "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func refused(t *testing.T, m *Manifest, f Fleet, o PlanOptions, want string) *Plan {
	t.Helper()
	if o.Now.IsZero() {
		o.Now = t0
	}
	p, err := NewPlan(m, f, o)
	var pe *PlanError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want %q", err, want)
	}
	return p
}

func TestPlanTellsTimeOrderAndPlace(t *testing.T) {
	m := parse(t, `
zone: Asia/Shanghai
prefixes:
  - {name: late, model: m, text: a, tokens: 60000, where: broadcast}
  - {name: soon, model: m, text: b, tokens: 40000, where: broadcast, deadline: 2026-11-11 20:00, priority: 1}
  - {name: first, model: m, text: c, tokens: 20000, where: "2", deadline: 2026-11-11 20:00, priority: 9}
`)
	p, err := NewPlan(m, offline(4), PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	if p.Items != 10 || p.Tokens != 4*60000+4*40000+2*20000 {
		t.Errorf("%d items, %d tokens", p.Items, p.Tokens)
	}
	for _, n := range p.Nodes {
		var names []string
		seconds := 0.0
		for _, it := range n.Items {
			names = append(names, it.Name)
			seconds += it.Seconds + proofTime.Seconds()
		}
		if got := strings.Join(names, " "); got != "soon late" && got != "first soon late" {
			t.Errorf("%s: %s", n.Node, got)
		}
		if d := n.Seconds - seconds; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s: %v s, the items take %v", n.Node, n.Seconds, seconds)
		}
		if end := n.Items[len(n.Items)-1].End.Sub(t0).Seconds(); end != n.Seconds {
			t.Errorf("%s ends after %v s", n.Node, end)
		}
	}
	if p.Seconds < 12.8 || p.Seconds > 13 {
		t.Errorf("%v s, want 2+4+6 s and three proofs", p.Seconds)
	}
	for _, x := range p.Prefixes {
		if len(x.Nodes) != x.K {
			t.Errorf("%s: %v for K %d", x.Name, x.Nodes, x.K)
		}
	}
	if _, err := json.Marshal(p); err != nil {
		t.Error(err)
	}
}

func TestPlanNodesAreTheRingsOwners(t *testing.T) {
	m := parse(t, "prefixes:\n  - {name: a, model: m, text: rules, tokens: 60000, where: \"3\"}\n")
	f := offline(8)
	p, err := NewPlan(m, f, PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	// The key of a customer's request, by the router's scanner with the same prefixes.
	named, err := m.Named(nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fingerprint.NewScanner(fingerprint.Options{Named: named})
	if err != nil {
		t.Fatal(err)
	}
	var r fingerprint.Result
	if err := s.Scan(dialect.Chat, []byte(request("rules", "where is my parcel")), &r); err != nil {
		t.Fatal(err)
	}
	key := r.Fingerprint("m", "", "")
	if p.Prefixes[0].Key != key {
		t.Fatalf("key %x, traffic's is %x", p.Prefixes[0].Key, key)
	}
	names := []string{}
	for _, n := range f.Nodes {
		names = append(names, n.Name)
	}
	owners, err := ringOrder(names)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(p.Prefixes[0].Nodes, " "), strings.Join(owners(key, 3), " "); got != want {
		t.Errorf("nodes %s, owners %s", got, want)
	}
}

func TestPlanOwnersFollowTheShare(t *testing.T) {
	m := parse(t, `
prefixes:
  - {name: hot, model: m, text: a, tokens: 1000, rate: 900}
  - {name: cool, model: m, text: b, tokens: 1000, rate: 100}
  - {name: said, model: m, text: c, tokens: 1000, share: 0.5}
`)
	p, err := NewPlan(m, offline(8), PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	// said has half of all; the others divide the rest by their rates.
	for i, want := range []int{3, 1, 4} { // ceil(0.45*8*0.8), ceil(0.05*8*0.8), ceil(0.5*8*0.8)
		if x := p.Prefixes[i]; x.K != want || x.Spare < 1 || len(x.Nodes) != min(x.K+x.Spare, 8) {
			t.Errorf("%s: %d owners and %d spares on %v, want %d owners", x.Name, x.K, x.Spare, x.Nodes, want)
		}
	}
}

// Nodes that own two hot prefixes pass requests on; the plan warms where they go.
func TestPlanWarmsWhereTheBoundOverflows(t *testing.T) {
	order := [][]int{{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 0, 1, 2}}
	flow, load := spread(order, []int{1, 1, 1}, []float64{1, 1, 0.1}, []float64{0.6, 0.6, 0.6, 0.6})
	for n, l := range load {
		if l > 0.6*1.002 {
			t.Errorf("node %d has %v", n, l)
		}
	}
	for i, want := range []float64{1, 1, 0.1} {
		sum := 0.0
		for _, f := range flow[i] {
			sum += f
		}
		if d := sum - want; d > 1e-9 || d < -1e-9 {
			t.Errorf("prefix %d: %v of %v requests", i, sum, want)
		}
	}
	if depth(flow[0], 1, 1) < 2 || depth(flow[2], 0.1, 1) != 1 {
		t.Errorf("flows %v", flow)
	}
}

func TestSparesNeverTakeTheRoomOfOwners(t *testing.T) {
	y := "prefixes:\n"
	for i := range 10 {
		y += fmt.Sprintf("  - {name: p%d, model: m, text: t%d, tokens: 60000, rate: 10}\n", i, i)
	}
	p, err := NewPlan(parse(t, y), offline(4), PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range p.Nodes {
		if n.Planned > n.KV-n.Reserved {
			t.Errorf("%s: %d tokens in %d", n.Node, n.Planned, n.KV-n.Reserved)
		}
	}
}

func TestPlanRefusesADeadlineTooNear(t *testing.T) {
	y := "zone: Asia/Shanghai\nprefixes:\n  - {name: a, model: m, text: x, tokens: 60000, where: broadcast, deadline: \"2026-11-11 19:00:05\"}\n"
	p := refused(t, parse(t, y), offline(2), PlanOptions{}, "60000 tokens take 6.0 s at 10000 tokens/s")
	if p.Problems[0].Line != 3 || p.Problems[0].Node != "n0" {
		t.Errorf("%+v", p.Problems[0])
	}
	if _, err := NewPlan(parse(t, y), offline(2), PlanOptions{Now: t0, Force: true}); err != nil {
		t.Errorf("forced: %v", err)
	}
}

func TestPlanRefusesADeadlineInThePast(t *testing.T) {
	y := "zone: Asia/Shanghai\nprefixes:\n  - {name: a, model: m, text: x, tokens: 60000, deadline: \"2026-11-11 18:00:00\"}\n"
	refused(t, parse(t, y), offline(2), PlanOptions{}, "is 1h0m0s in the past")
}

func TestPlanRefusesWhatDoesNotFitMemory(t *testing.T) {
	y := "prefixes:\n"
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		y += "  - {name: " + n + ", model: m, text: " + n + n + ", tokens: 60001, where: broadcast}\n"
	}
	p := refused(t, parse(t, y), offline(1), PlanOptions{}, "6 prefixes need 360096 tokens (22506 blocks of 16) and 345000 of 460000 are free")
	np := p.Nodes[0]
	if np.Planned != 6*60016 || np.Blocks != 28750 || len(np.Evicts) != 1 || np.Evicts[0] != "a" {
		t.Errorf("%+v", np)
	}
	if _, err := NewPlan(parse(t, y), offline(1), PlanOptions{Now: t0, Force: true}); err != nil {
		t.Errorf("forced: %v", err)
	}
}

func TestPlanTellsWhatIsEvicted(t *testing.T) {
	m := parse(t, "prefixes:\n  - {name: a, model: m, text: x, tokens: 200000, where: broadcast}\n")
	f := offline(1)
	f.Resident = func(string) []Resident {
		return []Resident{{Key: 1, Name: "oldest", Tokens: 100_000}, {Key: 2, Name: "older", Tokens: 40_000}, {Key: 3, Name: "newer", Tokens: 40_000}}
	}
	p, err := NewPlan(m, f, PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	if np := p.Nodes[0]; strings.Join(np.Evicts, " ") != "oldest" || np.Resident != 180_000 {
		t.Errorf("%+v", np)
	}
}

func TestPlanRefusesForGood(t *testing.T) {
	for _, c := range []struct{ name, y, want string }{
		{"unknown model", "prefixes:\n  - {name: a, model: nope, text: x}\n", `no node serves model "nope"`},
		{"unknown adapter", "prefixes:\n  - {name: a, model: m, adapter: nope, text: x}\n", `with adapter "nope"`},
		{"below a block", "prefixes:\n  - {name: a, model: m, text: x, tokens: 15}\n", "it has 15 tokens (given) and a block has 16"},
		{"one fingerprint", "prefixes:\n  - {name: a, model: m, text: rules, tokens: 100}\n  - {name: b, model: m, text: rules, protocol: messages, tokens: 100}\n", "it has the fingerprint of a (line 2)"},
		{"unknown tenant", "prefixes:\n  - {name: a, model: m, text: x, tokens: 100, tenants: [acme]}\n", "tenants have no salts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := parse(t, c.y)
			p := refused(t, m, offline(2), PlanOptions{Force: true}, c.want)
			if _, err := Run(t.Context(), p, Options{}); err == nil {
				t.Error("Run takes the refused plan")
			}
		})
	}
}

func TestPlanWithoutNodes(t *testing.T) {
	refused(t, parse(t, "prefixes:\n  - {name: a, model: m, text: x}\n"), Fleet{}, PlanOptions{}, "there are no nodes")
}

func TestPlanOnly(t *testing.T) {
	m := parse(t, "prefixes:\n  - {name: a, model: m, text: x, tokens: 99}\n  - {name: b, model: m, text: y, tokens: 99}\n")
	p, err := NewPlan(m, offline(2), PlanOptions{Now: t0, Only: []string{"b"}})
	if err != nil || len(p.Prefixes) != 1 || p.Prefixes[0].Name != "b" {
		t.Fatalf("%v %v", err, p.Prefixes)
	}
	refused(t, m, offline(2), PlanOptions{Only: []string{"c"}}, "no such entry")
}

func TestPlanStartsNotBefore(t *testing.T) {
	m := parse(t, "zone: Asia/Shanghai\nprefixes:\n  - {name: a, model: m, text: x, tokens: 10000, not_before: 2026-11-11 19:30}\n")
	p, err := NewPlan(m, offline(1), PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Nodes[0].Items[0].Start; !got.Equal(t0.Add(30 * time.Minute)) {
		t.Errorf("starts %v", got)
	}
}

func TestPlanRefusesATextThatNeverStands(t *testing.T) {
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, model: m, template: t.tmpl, tokens: 100}\n", "t.tmpl": `It is {{ date "15:04" }}. Rules.`})
	refused(t, m, offline(1), PlanOptions{}, "its text changes within the hour")
}

// A recorded request whose system text ends in a clock must be given its static length,
// or every request of traffic is another prefix.
func TestB58RecordedKeyEqualsWarmKey(t *testing.T) {
	body := request(policy("rule", 200), "hello")
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, request: r.json, static_bytes: 300, tokens: 100}\n", "r.json": body})
	p, err := NewPlan(m, offline(3), PlanOptions{Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	if p.Prefixes[0].Model != "m" || p.Prefixes[0].StaticBytes != 300 {
		t.Errorf("%+v", p.Prefixes[0])
	}
	// A scanner that doesn't know the prefix keys the whole text: the plan says so.
	s, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := offline(3)
	f.Key = ScannerKey(s, "")
	refused(t, m, f, PlanOptions{}, "another cache entry")
}
