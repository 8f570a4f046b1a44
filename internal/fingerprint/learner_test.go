package fingerprint

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// clock is a clock that tests move.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time { return c.t }

// chatWith scans a chat with one system message.
func chatWith(t testing.TB, s *Scanner, system string) *Result {
	t.Helper()
	var r Result
	body := encode(chat{Model: "m", Messages: []map[string]any{say("system", system), say("user", "hello")}})
	if err := s.Scan(dialect.Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

var fatText = lines(160<<10, 100, "")

// volatileRun sends the 400 requests of field case B26 and returns the distinct keys, and
// the last advice.
func volatileRun(t *testing.T, l *Learner, c *clock, make func(i int) string) (map[uint64]int, Advice) {
	s := newScanner(t, Options{})
	keys := map[uint64]int{}
	var last Advice
	for i := range 400 {
		c.t = c.t.Add(9 * time.Second)
		last = l.Place("m", chatWith(t, s, make(i)), nil)
		if last.Depth != DepthNone {
			keys[last.Key]++
		} else if last.Key != 0 {
			t.Fatalf("request %d: a key without a depth", i)
		}
	}
	return keys, last
}

func minute(i int) string { return fmt.Sprintf("Now: 2031-01-01 00:%02d", i*60/400) }

func uuid(i int) string {
	rng := rand.New(rand.NewPCG(uint64(i), 26))
	return fmt.Sprintf("session %08x-%04x-%04x-%012x", rng.Uint32(), rng.Uint32()>>16, rng.Uint32()>>16, rng.Uint64()>>16)
}

func TestB26ClockAtTheEndKeepsOneKey(t *testing.T) {
	for name, tail := range map[string]func(int) string{"minute": minute, "uuid": uuid} {
		c := newClock()
		l := NewLearner(LearnerOptions{Now: c.Now})
		keys, last := volatileRun(t, l, c, func(i int) string { return fatText + tail(i) })
		if len(keys) != 1 {
			t.Errorf("%s at the end: %d keys, want 1", name, len(keys))
		}
		if last.Depth != DepthHead || last.Volatile || last.Bytes < len(fatText)-4096 {
			t.Errorf("%s at the end: %+v", name, last)
		}
		if _, blocks := l.Size(); blocks > 200 {
			t.Errorf("%s at the end: %d blocks are remembered", name, blocks)
		}
	}
}

func TestB26ClockAtTheHeadIsSignalledAndBounded(t *testing.T) {
	for name, volatile := range map[string]func(int) string{"minute": minute, "uuid": uuid} {
		c := newClock()
		l := NewLearner(LearnerOptions{Now: c.Now})
		keys, last := volatileRun(t, l, c, func(i int) string { return fatText[:20] + volatile(i) + fatText })
		if len(keys) > DefaultLearnerVariants {
			t.Errorf("%s at byte 20: %d keys, want at most %d", name, len(keys), DefaultLearnerVariants)
		}
		if !last.Volatile || last.Depth != DepthNone || last.Message != 0 || last.From > 20 || last.To <= 20 || last.To > 256 {
			t.Errorf("%s at byte 20: %+v", name, last)
		}
		if _, blocks := l.Size(); blocks > DefaultLearnerVariants*60 {
			t.Errorf("%s at byte 20: %d blocks are remembered", name, blocks)
		}
	}
}

func TestB26ClockInTheMiddleKeysTheHead(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	keys, last := volatileRun(t, l, c, func(i int) string { return fatText[:60_000] + uuid(i) + fatText })
	if len(keys) > DefaultLearnerVariants+1 {
		t.Errorf("%d keys", len(keys))
	}
	if !last.Volatile || last.Depth != DepthHead || last.Bytes > 61_000 || last.Bytes < 56_000 || last.From > 60_000 || last.To < 60_000 {
		t.Errorf("%+v", last)
	}
}

func TestB27TenantsWithOnePreambleKeepTheirKeys(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	var tenants []*Result
	for i := range 50 {
		tenants = append(tenants, chatWith(t, s, fatText[:2000]+fmt.Sprintf("You serve shop %d. ", i)+fatText))
	}
	keyed := make([]map[uint64]bool, len(tenants))
	rng := rand.New(rand.NewPCG(2, 7))
	unkeyed := 0
	for i := range 3000 {
		n := rng.IntN(50)
		a := l.Place("m", tenants[n], nil)
		if a.Depth == DepthNone {
			unkeyed++
			continue
		}
		if keyed[n] == nil {
			keyed[n] = map[uint64]bool{}
		}
		keyed[n][a.Key] = true
		if i > 1000 && a.Depth != DepthWhole {
			t.Fatalf("request %d of tenant %d: %+v", i, n, a)
		}
	}
	all := map[uint64]bool{}
	for n, k := range keyed {
		if len(k) != 1 {
			t.Errorf("tenant %d has %d keys", n, len(k))
		}
		for key := range k {
			all[key] = true
		}
	}
	if len(all) != 50 || unkeyed > 25 {
		t.Errorf("%d keys for 50 tenants, %d requests of 3000 without", len(all), unkeyed)
	}
}

func TestTenantsWithClocksKeepOneKeyEach(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	keys := map[uint64]int{}
	for i := range 600 {
		n := i * 7 % 20
		system := fatText[:8000] + fmt.Sprintf("You serve shop %d. ", n) + fatText[8000:40_000+n*2000] + minute(i%400)
		keys[l.Place("m", chatWith(t, s, system), nil).Key]++
	}
	if len(keys) != 20 {
		t.Errorf("%d keys for 20 tenants", len(keys))
	}
}

func TestDepthChangesOnlyWhenTheNewKeyIsWarm(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	first := l.Place("m", chatWith(t, s, fatText+minute(0)), nil)
	if first.Depth != DepthWhole || first.Next != 0 {
		t.Fatalf("%+v", first)
	}
	var asked uint64
	no := func(_, k uint64) bool { asked = k; return false }
	second := l.Place("m", chatWith(t, s, fatText+minute(10)), no)
	if second.Key != first.Key || second.Next == 0 || asked != second.Next {
		t.Fatalf("before the proof: %+v, asked %x", second, asked)
	}
	yes := func(_, k uint64) bool { return k == second.Next }
	third := l.Place("m", chatWith(t, s, fatText+minute(20)), yes)
	if third.Key != second.Next || third.Next != 0 || third.Moved != second.Key || third.Family != first.Family {
		t.Fatalf("after the proof: %+v", third)
	}
	again := l.Place("m", chatWith(t, s, fatText+minute(0)), no)
	if again.Key != second.Next || again.Moved != 0 {
		t.Fatalf("the first member stayed behind: %+v", again)
	}

	// Another process that saw other minutes arrives at the same key.
	other := NewLearner(LearnerOptions{Now: c.Now})
	other.Place("m", chatWith(t, s, fatText+minute(90)), nil)
	if b := other.Place("m", chatWith(t, s, fatText+minute(110)), yes); b.Key != third.Key {
		t.Fatalf("two learners disagree: %x and %x", b.Key, third.Key)
	}
}

func TestAnEditedPromptStaysWithItsFamily(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	a := l.Place("m", chatWith(t, s, fatText), nil)
	b := l.Place("m", chatWith(t, s, fatText[:150_000]+"A new rule.\n"+fatText[150_000:]), nil)
	if b.Key != a.Key || b.Bytes < 145_000 {
		t.Errorf("%+v then %+v", a, b)
	}
	short := l.Place("m", chatWith(t, s, fatText[:8192]), nil)
	if short.Key == a.Key || short.Depth != DepthWhole {
		t.Errorf("a short prompt was drawn into the family of a long one: %+v", short)
	}
	if again := l.Place("m", chatWith(t, s, fatText), nil); again.Bytes < 145_000 {
		t.Errorf("a short prompt made the long one's key shallow: %+v", again)
	}
}

func TestGroupsDoNotMix(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	r := chatWith(t, s, fatText)
	a, b := l.Place("m", r, nil), l.Place("other", chatWith(t, s, fatText+" "), nil)
	if a.Key == b.Key {
		t.Error("two models share a family")
	}
	tools := encode(chat{Messages: []map[string]any{say("system", fatText+"!")}, Tools: []any{tool(1)}})
	var rt Result
	if err := s.Scan(dialect.Chat, tools, &rt); err != nil {
		t.Fatal(err)
	}
	if l.Place("m", &rt, nil).Key == a.Key {
		t.Error("other tools, same family")
	}
}

func TestLearnerIsBounded(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now, MaxPrefixes: 100, MaxBlocks: 500})
	s := newScanner(t, Options{})
	hot := chatWith(t, s, fatText)
	want := l.Place("m", hot, nil).Key
	for i := range 3000 {
		c.t = c.t.Add(time.Second)
		l.Place(fmt.Sprint("model ", i), chatWith(t, s, strings.Repeat(uuid(i), 300)), nil)
		if got := l.Place("m", hot, nil); got.Key != want {
			t.Fatalf("request %d: the key of a prefix in use changed", i)
		}
		if p, b := l.Size(); p > 100 || b > 500 {
			t.Fatalf("%d prefixes, %d blocks", p, b)
		}
	}
}

func TestLearnerUnderConcurrentUse(t *testing.T) {
	l := NewLearner(LearnerOptions{Now: time.Now, MaxPrefixes: 50, MaxBlocks: 400})
	s := newScanner(t, Options{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				l.Place("m", chatWith(t, s, fatText[:20_000]+minute(i+g)), func(_, _ uint64) bool { return i%3 == 0 })
				l.Place("m", chatWith(t, s, uuid(i)+fatText[:20_000]), nil)
			}
		})
	}
	wg.Wait()
}

func BenchmarkLearnerKnown(b *testing.B) {
	l := NewLearner(LearnerOptions{Now: time.Now})
	r := chatWith(b, newScanner(b, Options{}), fatText)
	b.ReportAllocs()
	for b.Loop() {
		l.Place("m", r, nil)
	}
}
