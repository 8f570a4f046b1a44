package residency

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestOneLeadPerNodeAndPrefix(t *testing.T) {
	tab, _ := newTable(Options{})
	if !tab.Lead(1, 7) || tab.Lead(1, 7) {
		t.Fatal("want one lead")
	}
	if !tab.Lead(2, 7) || !tab.Lead(1, 8) {
		t.Error("other nodes and other prefixes are free")
	}
	want(t, tab, 1, 7, Warming)
	if tab.Leaders(7) != 2 || tab.Leaders(8) != 1 || tab.Leaders(9) != 0 {
		t.Errorf("%d, %d, %d leaders", tab.Leaders(7), tab.Leaders(8), tab.Leaders(9))
	}
	tab.Done(1, 7)
	want(t, tab, 1, 7, Unknown) // being done is no evidence
	if !tab.Lead(1, 7) {
		t.Error("after Done the lead is free")
	}
	tab.Observe(1, 7, Evidence{Kind: Prefill, Static: 60000})
	want(t, tab, 1, 7, Warm)
}

func TestFollowersAreWoken(t *testing.T) {
	tab, _ := newTable(Options{})
	if tab.Changed(7) != nil {
		t.Error("there is nothing to wait for")
	}
	tab.Lead(1, 7)
	ch := tab.Changed(7)
	if tab.Changed(7) != ch {
		t.Error("followers share one channel")
	}
	select {
	case <-ch:
		t.Fatal("woken too early")
	default:
	}
	tab.Observe(1, 7, Evidence{Kind: Prefill, Static: 60000})
	<-ch // evidence wakes: the test would hang otherwise
	ch = tab.Changed(7)
	tab.Done(1, 7)
	<-ch
	if len(tab.shard(7).flights) != 0 {
		t.Error("the flight must be gone with its last lead")
	}
	tab.Done(1, 7) // once more is harmless
}

func TestLostLeadIsVoidInTime(t *testing.T) {
	tab, clock := newTable(Options{LeadTimeout: time.Minute})
	tab.Lead(1, 7)
	clock.pass(time.Minute - time.Millisecond)
	if tab.Lead(1, 7) {
		t.Error("too early")
	}
	want(t, tab, 1, 7, Warming)
	clock.pass(time.Millisecond)
	want(t, tab, 1, 7, Unknown)
	if tab.Leaders(7) != 0 || !tab.Lead(1, 7) {
		t.Error("a lead whose holder is lost must be void")
	}
}

// A lead is kept even where every place of its set is held by other leads.
func TestLeadsAreNeverPushedOut(t *testing.T) {
	tab, _ := newTable(Options{MaxEntries: 512})
	for fp := range uint64(5000) {
		if !tab.Lead(1, fp) {
			t.Fatal("first lead refused")
		}
	}
	for fp := range uint64(5000) {
		if tab.Lead(1, fp) {
			t.Fatalf("second lead of %d given", fp)
		}
		tab.Done(1, fp)
	}
	if n := len(tab.Snapshot()); n > 512 {
		t.Errorf("%d entries", n)
	}
}

// Field case B60: 200 requests of one new prefix at once over 8 nodes. With a limit of
// four leads at most four nodes prefill it; all others follow when the first is done.
func TestB60BurstOfAColdPrefixIsPrefilledFewTimes(t *testing.T) {
	tab, _ := newTable(Options{})
	const fp, limit = 7, 4
	var prefills [8]atomic.Int64
	var followed atomic.Int64
	release := make(chan struct{}) // the first prefill is done
	var wg, waiting sync.WaitGroup
	waiting.Add(200 - limit)
	for range 200 {
		wg.Go(func() {
			for first := true; ; first = false {
				for node := range uint32(8) {
					if w, _ := tab.Warmth(node, fp); w == Warm {
						followed.Add(1)
						return
					}
					if tab.LeadAmong(node, fp, limit) {
						prefills[node].Add(1)
						<-release
						tab.Observe(node, fp, Evidence{Kind: Prefill, Static: 60000})
						tab.Done(node, fp)
						return
					}
				}
				changed := tab.Changed(fp)
				if first {
					waiting.Done()
				}
				if w, _ := tab.Warmth(0, fp); w != Warm && changed != nil {
					<-changed
				}
			}
		})
	}
	waiting.Wait()
	close(release)
	wg.Wait()
	nodes, sum := 0, int64(0)
	for i := range prefills {
		if n := prefills[i].Load(); n > 0 {
			nodes, sum = nodes+1, sum+n
		}
	}
	if nodes > limit || sum != limit || followed.Load() != 200-limit {
		t.Errorf("%d prefills on %d nodes, %d followed", sum, nodes, followed.Load())
	}
	if tab.Leaders(fp) != 0 {
		t.Errorf("%d leads left", tab.Leaders(fp))
	}
}
