package route

import (
	"math"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

// plan has two pools in the first tier, one in the second and a channel in the third.
func plan() *Plan {
	return &Plan{Members: []Member{
		{Tier: 0, Weight: 3, Hash: 1}, {Tier: 0, Weight: 1, Hash: 2},
		{Tier: 1, Hash: 3, Can: Can{NoTools: true}},
		{Tier: 2, Hash: 4, Can: Can{Protocols: []dialect.Protocol{dialect.Chat}, Context: 1000, NoImages: true}},
	}}
}

func all(int) bool { return true }

func walkAll(w *Walk, up func(int) bool) (out []int) {
	for {
		i, ok := w.Next(up)
		if !ok {
			return out
		}
		out = append(out, i)
	}
}

func TestTiersAreAskedInOrderAndNoneTwice(t *testing.T) {
	for seed := range uint64(50) {
		w := &Walk{Plan: plan(), Need: Need{Protocol: dialect.Chat}, Seed: seed}
		got := walkAll(w, all)
		if len(got) != 4 || got[0]+got[1] != 1 || got[2] != 2 || got[3] != 3 {
			t.Fatalf("seed %d: %v", seed, got)
		}
		again := &Walk{Plan: plan(), Need: Need{Protocol: dialect.Chat}, Seed: seed}
		if first, _ := again.Next(nil); first != got[0] {
			t.Fatal("the same conversation went elsewhere")
		}
	}
}

func TestWeightsShareConversations(t *testing.T) {
	n := 0
	const all = 20000
	for seed := range uint64(all) {
		w := &Walk{Plan: plan(), Seed: seed * 7919}
		if i, _ := w.Next(nil); i == 0 {
			n++
		}
	}
	if share := float64(n) / all; math.Abs(share-0.75) > 0.02 {
		t.Errorf("weight 3 of 4 got %.3f", share)
	}
}

func TestWhatIsDownIsPassedOver(t *testing.T) {
	w := &Walk{Plan: plan(), Need: Need{Protocol: dialect.Chat}}
	if got := walkAll(w, func(i int) bool { return i > 1 }); len(got) != 2 || got[0] != 2 {
		t.Errorf("%v", got)
	}
}

func TestAbilityDecidesBeforeATry(t *testing.T) {
	for name, tc := range map[string]struct {
		need Need
		want []int // behind the first tier
	}{
		"nothing special": {Need{Protocol: dialect.Chat}, []int{2, 3}},
		"tools":           {Need{Protocol: dialect.Chat, Tools: true}, []int{3}},
		"protocol":        {Need{Protocol: dialect.Messages}, []int{2}},
		"too long":        {Need{Protocol: dialect.Chat, Tokens: 1001}, []int{2}},
		"just fits":       {Need{Protocol: dialect.Chat, Tokens: 1000}, []int{2, 3}},
		"images":          {Need{Protocol: dialect.Chat, Images: true}, []int{2}},
		"all at once":     {Need{Protocol: dialect.Messages, Tools: true}, nil},
	} {
		w := &Walk{Plan: plan(), Need: tc.need, Tier: 1}
		got := walkAll(w, all)
		if len(got) != len(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
			continue
		}
		for i := range got {
			if got[i] != tc.want[i] {
				t.Errorf("%s: %v, want %v", name, got, tc.want)
			}
		}
	}
}

func TestHeldWalkNeverLeavesItsTier(t *testing.T) {
	for tier := range 3 {
		w := &Walk{Plan: plan(), Need: Need{Protocol: dialect.Chat}, Tier: tier, Held: true}
		for _, i := range walkAll(w, all) {
			if w.Plan.Members[i].Tier != tier {
				t.Errorf("held to tier %d, went to member %d", tier, i)
			}
		}
		if w.More(all) {
			t.Error("more behind the end")
		}
	}
	w := &Walk{Plan: plan(), Tier: 0, Held: true}
	if w.More(func(i int) bool { return i > 1 }) {
		t.Error("a tier that is down is no reason to leave it")
	}
}

func TestLackingNamesWhatNobodyCanDo(t *testing.T) {
	only := &Plan{Members: []Member{{Can: Can{NoTools: true}}, {Tier: 1, Can: Can{NoTools: true}}}}
	if why := (&Walk{Plan: only, Need: Need{Tools: true}}).Lacking(); why != Tools || why.String() != "tools" {
		t.Errorf("%v", why)
	}
	if why := (&Walk{Plan: only}).Lacking(); why != Nothing {
		t.Errorf("%v", why)
	}
}

func TestPlansAreChecked(t *testing.T) {
	for name, p := range map[string]Plan{
		"empty":    {},
		"too many": {Members: make([]Member, MaxMembers+1)},
		"weight":   {Members: []Member{{Weight: -1}}},
		"NaN":      {Members: []Member{{Weight: math.NaN()}}},
		"order":    {Members: []Member{{Tier: 1}, {Tier: 0}}},
	} {
		if p.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := plan().Check(); err != nil {
		t.Error(err)
	}
}

// A choice costs a request nothing that shows.
func BenchmarkRouteNext(b *testing.B) {
	p := plan()
	b.ReportAllocs()
	for i := range b.N {
		w := Walk{Plan: p, Seed: uint64(i)}
		w.Next(all)
	}
}
