package fingerprint

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// observer feeds a Churn with bodies, five minutes apart.
type observer struct {
	t *testing.T
	c *clock
	s *Scanner
	o *Churn
}

func newObserver(t *testing.T, o ChurnOptions) *observer {
	c := newClock()
	o.Now, o.Seed = c.Now, 0x5eed
	return &observer{t, c, newScanner(t, Options{}), NewChurn(o)}
}

func (o *observer) see(body []byte) (Diagnosis, bool) {
	o.t.Helper()
	o.c.t = o.c.t.Add(5 * time.Minute)
	var r Result
	if err := o.s.Scan(dialect.Chat, body, &r); err != nil {
		o.t.Fatal(err)
	}
	return o.o.Observe("m", body, &r)
}

func (o *observer) system(text string) (Diagnosis, bool) {
	o.t.Helper()
	return o.see(encode(chat{Messages: []map[string]any{say("system", text), say("user", "hi")}}))
}

func toolsBody(tools string) []byte {
	return []byte(`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}],"tools":` + tools + `}`)
}

const (
	toolA = `{"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"number"}}}}}`
	toolB = `{"type":"function","function":{"name":"b","parameters":{"type":"object","properties":{}}}}`
)

func TestB17ToolOrderIsHintedOncePerPair(t *testing.T) {
	o := newObserver(t, ChurnOptions{})
	if _, ok := o.see(toolsBody("[" + toolA + "," + toolB + "]")); ok {
		t.Error("the first prefix was compared with nothing")
	}
	d, ok := o.see(toolsBody("[" + toolB + ", " + toolA + "]"))
	if !ok || d.Change != ChangeToolOrder || d.String() != "same tools as the prefix of 5m0s ago, different order" {
		t.Errorf("swapped tools: %v %v", d, ok)
	}
	for i := range 20 {
		body := toolsBody("[" + toolA + "," + toolB + "]")
		if i%2 == 1 {
			body = toolsBody("[" + toolB + "," + toolA + "]")
		}
		if d, ok := o.see(body); ok {
			t.Errorf("told again: %v", d)
		}
	}
	swapped := strings.Replace(toolA, `"x":{"type":"string"},"y":{"type":"number"}`, `"y":{"type":"number"},"x":{"type":"string"}`, 1)
	if d, ok := o.see(toolsBody("[" + swapped + "," + toolB + "]")); !ok || d.Change != ChangeToolKeys {
		t.Errorf("swapped members: %v %v", d, ok)
	}
	if d, ok := o.see(toolsBody("[" + toolA + "]")); !ok || d.Change != ChangeTools {
		t.Errorf("one tool less: %v %v", d, ok)
	}
}

func TestChurnNamesThePlace(t *testing.T) {
	for _, at := range []int{0, 1, 15, 16, 20, 1204, 9_999, 80_000} {
		o := newObserver(t, ChurnOptions{})
		o.system(fatText[:100_000])
		d, ok := o.system(fatText[:at] + "~" + fatText[at+1:100_000])
		if !ok || d.Change != ChangeText || d.Message != 0 || d.From > at || d.To <= at || d.To-d.From > grain || d.Age != 5*time.Minute {
			t.Errorf("change at byte %d: %+v %v", at, d, ok)
		}
		want := fmt.Sprintf("differs from the prefix of 5m0s ago between bytes %d and %d, inside system message 0 (not shown)", at/16*16, at/16*16+15)
		if d.String() != want {
			t.Errorf("change at byte %d: %q", at, d)
		}
	}
}

func TestB26ChurnNamesTheByteOfAClock(t *testing.T) {
	for _, at := range []int{20, 159_990} {
		o := newObserver(t, ChurnOptions{})
		var d Diagnosis
		for i := range 5 {
			d, _ = o.system(fatText[:at] + fmt.Sprintf("Now: 2031-01-01 00:%02d", 10+i) + fatText[at:160_000])
		}
		// The last digit of the minute is the 20th character of the line.
		if want := at + 20; !d.Exact || d.From != want || d.To != want+1 {
			t.Errorf("clock at %d: %+v, want byte %d", at, d, want)
		}
		if want := fmt.Sprintf("at byte %d, inside system message 0 (not shown)", at+20); !strings.HasSuffix(d.String(), want) {
			t.Errorf("clock at %d: %q", at, d)
		}
	}
}

func TestChurnInOtherPlaces(t *testing.T) {
	o := newObserver(t, ChurnOptions{})
	two := func(a, b string) []byte {
		return encode(chat{Messages: []map[string]any{say("system", a), say("developer", b), say("user", "x")}})
	}
	o.see(two(fatText[:5000], "second"))
	if d, ok := o.see(two(fatText[:5000], "secant")); !ok || d.Message != 1 || d.From != 0 || d.To <= 3 {
		t.Errorf("second message: %+v %v", d, ok)
	}
	if d, ok := o.system(fatText[:5000]); !ok || d.Change != ChangeMessages || d.Message != 1 {
		t.Errorf("a message less: %+v %v", d, ok)
	}
	if d, ok := o.see(encode(map[string]any{"messages": []any{say("system", fatText[:5000]), say("user", "x")}, "chat_template_kwargs": map[string]any{"enable_thinking": false}})); !ok || d.Change != ChangeArguments {
		t.Errorf("other arguments: %+v %v", d, ok)
	}
	if d, ok := o.system(fatText[:4990]); !ok || d.Change != ChangeText || d.From > 4990 || d.To <= 4990 {
		t.Errorf("a shorter text: %+v %v", d, ok)
	}
	if d, ok := o.see(encode(chat{Messages: []map[string]any{say("user", "no prefix at all")}})); ok {
		t.Errorf("no prefix: %+v", d)
	}
}

func TestChurnIsBoundedAndRateLimited(t *testing.T) {
	o := newObserver(t, ChurnOptions{MaxPrefixes: 10, MaxBytes: 100_000})
	for i := range 100 {
		o.system(uuid(i) + fatText[:20_000])
		if n, size := o.o.Size(); n > 10 || size > 100_000 {
			t.Fatalf("%d prefixes of %d bytes", n, size)
		}
	}
	o.c.t = o.c.t.Add(time.Hour)
	before, _ := o.o.Size()
	var r Result
	for i := range 50 {
		body := encode(chat{Messages: []map[string]any{say("system", uuid(1000+i)+" short")}})
		if err := o.s.Scan(dialect.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		o.c.t = o.c.t.Add(time.Millisecond)
		o.o.Observe("m", body, &r)
	}
	if after, _ := o.o.Size(); after > before+1 {
		t.Errorf("50 prefixes in 50 ms were all looked at: %d, then %d", before, after)
	}
}

// Peek repeats what was told, foresees what would be, and keeps nothing.
func TestChurnPeek(t *testing.T) {
	o := newObserver(t, ChurnOptions{})
	o.system(fatText[:9_000])
	told, ok := o.system(fatText[:4_000] + "~" + fatText[4_001:9_000])
	if !ok || len(o.o.Recent()) != 1 || o.o.Recent()[0] != told {
		t.Fatalf("%+v %v, kept %+v", told, ok, o.o.Recent())
	}
	peek := func(text string) (Diagnosis, bool) {
		body := encode(chat{Messages: []map[string]any{say("system", text), say("user", "other words")}})
		var r Result
		if err := o.s.Scan(dialect.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		return o.o.Peek("m", body, &r)
	}
	o.c.t = o.c.t.Add(time.Minute)
	if d, ok := peek(fatText[:4_000] + "~" + fatText[4_001:9_000]); !ok || d.From != told.From || d.Age != 6*time.Minute {
		t.Errorf("what was told: %+v %v", d, ok)
	}
	if d, ok := peek(fatText[:9_000]); ok {
		t.Errorf("the first prefix: %+v", d)
	}
	for range 2 {
		if d, ok := peek(fatText[:80] + "~" + fatText[81:9_000]); !ok || d.From > 80 || d.To <= 80 {
			t.Errorf("what would be told: %+v %v", d, ok)
		}
	}
	if n, _ := o.o.Size(); n != 2 || len(o.o.Recent()) != 1 {
		t.Errorf("Peek kept something: %d prefixes, %+v", n, o.o.Recent())
	}
}

// A tail behind a registered prefix is expected to move; what departs from the registered
// text itself is told.
func TestChurnKnowsRegisteredPrefixes(t *testing.T) {
	o := newObserver(t, ChurnOptions{})
	n, err := NewNamedText("rules", "", fatText[:8_000])
	if err != nil {
		t.Fatal(err)
	}
	o.s = newScanner(t, Options{Named: []Named{n}})
	for i := range 5 {
		if d, ok := o.system(fatText[:8_000] + uuid(i)); ok {
			t.Errorf("the tail was told: %+v", d)
		}
	}
	if n, _ := o.o.Size(); n != 1 {
		t.Errorf("%d prefixes are kept for one registered", n)
	}
	if d, ok := o.system(fatText[:1_204] + "~" + fatText[1_205:8_000] + "tail"); !ok || d.Change != ChangeText || d.From > 1_204 || d.To <= 1_204 {
		t.Errorf("a departure from the registered text: %+v %v", d, ok)
	}
}

// Only one new prefix per gap is read a second time, however many come at once.
func TestChurnGapUnderConcurrentUse(t *testing.T) {
	c := newClock()
	o := NewChurn(ChurnOptions{Now: c.Now})
	s := newScanner(t, Options{})
	var wg sync.WaitGroup
	for i := range 16 {
		body := encode(chat{Messages: []map[string]any{say("system", uuid(i)+fatText[:5_000])}})
		wg.Go(func() {
			var r Result
			if err := s.Scan(dialect.Chat, body, &r); err != nil {
				t.Error(err)
			}
			o.Observe("m", body, &r)
		})
	}
	wg.Wait()
	if n, _ := o.Size(); n != 1 {
		t.Errorf("%d prefixes were read in one gap", n)
	}
}
