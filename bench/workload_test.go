package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Golden schedules: if one of these numbers changes, old runs cannot be repeated by
// their seed any more.
func TestSchedulesAreGoldenBySeed(t *testing.T) {
	for _, c := range []struct {
		a    Arrivals
		n    int
		at   []time.Duration // of the first, the hundredth and the last request
		seed uint64
	}{
		{Arrivals{Kind: "constant", Rate: 50, Duration: time.Minute}, 3000, []time.Duration{10 * time.Millisecond, 1990 * time.Millisecond, 59990 * time.Millisecond}, 1},
		{Arrivals{Kind: "poisson", Rate: 20, Duration: 20 * time.Second}, 416, []time.Duration{29728429, 5175807511, 19920976715}, 1},
		{Arrivals{Kind: "gamma", Rate: 20, Duration: 20 * time.Second}, 328, []time.Duration{57460267, 5569906034, 19997614482}, 1},
		{Arrivals{Kind: "weibull", Rate: 20, Duration: 20 * time.Second}, 451, []time.Duration{8837795, 5260929124, 19979019644}, 1},
		{Arrivals{Kind: "sale", Rate: 40, Duration: 20 * time.Second}, 440, []time.Duration{148642146, 8545903755, 19787121110}, 1},
	} {
		s := c.a.Schedule(c.seed)
		got := []time.Duration{s[0], s[99], s[len(s)-1]}
		if len(s) != c.n || fmt.Sprint(got) != fmt.Sprint(c.at) {
			t.Errorf("%s: %d requests at %#v, want %d at %v", c.a.Kind, len(s), got, c.n, c.at)
		}
		for i := 1; i < len(s); i++ {
			if s[i] < s[i-1] {
				t.Fatalf("%s: request %d leaves before its predecessor", c.a.Kind, i)
			}
		}
	}
}

func TestArrivalsHaveTheRateAndTheBurstinessAskedFor(t *testing.T) {
	for _, c := range []struct {
		a      Arrivals
		n, cv  float64
		within float64
	}{
		{Arrivals{Kind: "poisson", Rate: 100, Duration: 10 * time.Minute}, 60000, 1, 0.02},
		{Arrivals{Kind: "gamma", Rate: 100, Duration: 10 * time.Minute, Shape: 0.25}, 60000, 2, 0.06},
		{Arrivals{Kind: "gamma", Rate: 100, Duration: 10 * time.Minute, Shape: 4}, 60000, 0.5, 0.02},
		{Arrivals{Kind: "weibull", Rate: 100, Duration: 10 * time.Minute, Shape: 1}, 60000, 1, 0.02},
		{Arrivals{Kind: "ramp", Rate: 100, From: 50, Duration: 10 * time.Minute}, 45000, 0, 0.02},
		{Arrivals{Kind: "step", Rate: 100, From: 20, Steps: 5, Duration: 10 * time.Minute}, 36000, 0, 0.02},
		{Arrivals{Kind: "day", Rate: 100, From: 100, Duration: 10 * time.Minute}, 60000, 1, 0.02},
	} {
		s := c.a.Schedule(3)
		if math.Abs(float64(len(s))/c.n-1) > c.within {
			t.Errorf("%+v: %d requests, want about %.0f", c.a, len(s), c.n)
		}
		if c.cv == 0 {
			continue
		}
		mean, sq := 0.0, 0.0
		for i := 1; i < len(s); i++ {
			mean += (s[i] - s[i-1]).Seconds() / float64(len(s)-1)
		}
		for i := 1; i < len(s); i++ {
			d := (s[i] - s[i-1]).Seconds() - mean
			sq += d * d / float64(len(s)-1)
		}
		if cv := math.Sqrt(sq) / mean; math.Abs(cv/c.cv-1) > 0.05 {
			t.Errorf("%+v: coefficient of variation %.3f, want %.2f", c.a, cv, c.cv)
		}
	}
}

func TestRampAndSaleFollowTheirShape(t *testing.T) {
	count := func(s []time.Duration, from, to time.Duration) (n float64) {
		for _, at := range s {
			if at >= from && at < to {
				n++
			}
		}
		return n
	}
	s := Arrivals{Kind: "sale", Rate: 200, From: 10, Duration: 100 * time.Second, Regular: true}.Schedule(1)
	near(t, "quiet", count(s, 0, 20*time.Second), 200, 2)
	near(t, "peak", count(s, 40*time.Second, 60*time.Second), 4000, 2)
	near(t, "end of the tail", count(s, 99*time.Second, 100*time.Second), 51, 2)
	s = Arrivals{Kind: "ramp", Rate: 100, From: 0.001, Duration: 100 * time.Second, Regular: true}.Schedule(1)
	near(t, "first half of the ramp", count(s, 0, 50*time.Second), 1250, 2)
}

func TestBadArrivalsAreRefused(t *testing.T) {
	for _, a := range []Arrivals{
		{Kind: "sometimes", Rate: 1, Duration: time.Second}, {Rate: 0, Duration: time.Second}, {Rate: -1, Duration: time.Second},
		{Rate: math.NaN(), Duration: time.Second}, {Rate: math.Inf(1), Duration: time.Second}, {Rate: 1}, {Rate: 1e9, Duration: time.Hour},
		{Rate: 1, Duration: time.Second, Shape: -1},
	} {
		if err := a.validate(); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v was taken: %v", a, err)
		}
	}
}

func TestZipfSharesAreTheFormula(t *testing.T) {
	z := newZipf(4, 1)
	sum := 1 + 0.5 + 1.0/3 + 0.25
	for i, want := range []float64{1 / sum, 0.5 / sum, 1.0 / 3 / sum, 0.25 / sum} {
		near(t, fmt.Sprintf("share of rank %d", i), z.share(i), want, 1e-12)
	}
	r := newRand(1)
	var n [4]float64
	for range 100000 {
		n[z.draw(r)]++
	}
	near(t, "draws of rank 0", n[0]/100000, 1/sum, 0.005)
	near(t, "draws of rank 3", n[3]/100000, 0.25/sum, 0.005)
}

// bodyOf builds a whole body and checks that it is JSON.
func bodyOf(t *testing.T, c *composer, s *Shot, n, turn int, history []message) map[string]any {
	t.Helper()
	p := c.body(s, n, turn, history, nil)
	var m map[string]any
	if err := json.Unmarshal(append(append([]byte(nil), p.head...), p.rest...), &m); err != nil {
		t.Fatalf("body is not JSON: %v", err)
	}
	return m
}

func TestBodiesAreValidInEveryProtocol(t *testing.T) {
	for _, proto := range []dialect.Protocol{dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages} {
		for _, w := range []Workload{
			{Prefixes: 3, Prefix: Exactly(200), User: Exactly(20), Output: Exactly(7), Tools: 2, Tail: Exactly(5)},
			{Prefix: Exactly(50), User: Exactly(20), Output: Exactly(7), PerUser: Exactly(30), Shared: 10},
			{Prefixes: 1, Prefix: Exactly(50), Prompts: 2, User: Exactly(20), Output: Exactly(7)},
		} {
			o := Options{Model: `a "quoted" model`, Protocol: proto, Workload: w, Nonce: "n1", Seed: 3, IgnoreEOS: true}
			c := newComposer(&o)
			s := w.plan(make([]time.Duration, 1), 1)[0]
			m := bodyOf(t, c, &s, 0, 0, nil)
			if m["model"] != `a "quoted" model` || m["stream"] != true || m["ignore_eos"] != true {
				t.Errorf("%v: model %v, stream %v", proto, m["model"], m["stream"])
			}
			max := "max_tokens"
			if proto == dialect.Responses {
				max = "max_output_tokens"
			}
			if m[max] != float64(7) {
				t.Errorf("%v: %s is %v", proto, max, m[max])
			}
			if _, has := m["stream_options"]; has != (proto == dialect.Chat || proto == dialect.Completions) {
				t.Errorf("%v: stream_options present: %v", proto, has)
			}
			if _, has := m["tools"]; has != (w.Tools > 0 && proto != dialect.Completions) {
				t.Errorf("%v: tools present: %v", proto, has)
			}
			h := []message{{user: []byte("hi"), answer: []byte(`say \"yes\"`)}}
			long := fmt.Sprint(bodyOf(t, c, &s, 0, 1, h))
			if !strings.Contains(long, `say "yes"`) || !strings.Contains(long, "hi") {
				t.Errorf("%v: history is missing", proto)
			}
		}
	}
}

func TestPrefixesAreSharedAndNothingElseIs(t *testing.T) {
	w := Workload{Prefixes: 2, Prefix: Exactly(500), User: Exactly(40), Output: Exactly(1)}
	make := func(nonce string, prefix int32, n int) string {
		o := Options{Model: "m", Workload: w, Nonce: nonce}
		s := Shot{Prefix: prefix, Prompt: -1, User: 40, Output: 1, Turns: 1}
		p := newComposer(&o).body(&s, n, 0, nil, nil)
		return string(p.head) + string(p.rest)
	}
	common := func(a, b string) int {
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] {
			i++
		}
		return i
	}
	if n := common(make("x", 0, 1), make("x", 0, 2)); n < 500*BytesPerToken || n > 500*BytesPerToken+200 {
		t.Errorf("two requests of one prefix share %d bytes", n)
	}
	if n := common(make("x", 0, 1), make("x", 1, 1)); n > 120 {
		t.Errorf("two prefixes share %d bytes", n)
	}
	// Another run has another nonce: cold is cold (B72).
	if n := common(make("x", 0, 1), make("y", 0, 1)); n > 80 {
		t.Errorf("two runs share %d bytes", n)
	}
	if first, again := make("x", 0, 1), make("x", 0, 1); first != again {
		t.Error("one seed and nonce gave two different bodies")
	}
}

func TestTextHasTheTokensAskedFor(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 1000} {
		b := appendText(nil, 5, n)
		if len(b) != n*BytesPerToken || len(strings.Fields(string(b))) != n {
			t.Errorf("%d tokens are %d bytes and %d words", n, len(b), len(strings.Fields(string(b))))
		}
	}
	if len(words)%BytesPerToken != 0 {
		t.Error("the word list is not made of four-byte words")
	}
}

func TestPresetsAreUsable(t *testing.T) {
	for _, p := range Presets() {
		if err := errors.Join(p.Workload.validate(), p.Arrivals.validate()); err != nil {
			t.Errorf("%s: %v", p.Workload.Name, err)
		}
		if q, err := FindPreset(p.Workload.Name); err != nil || q.About != p.About || p.About == "" {
			t.Errorf("%s is not found: %v", p.Workload.Name, err)
		}
	}
	if _, err := FindPreset("nonsense"); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "fat") {
		t.Errorf("an unknown preset gave %v", err)
	}
}
