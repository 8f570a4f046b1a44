package channel

import (
	"testing"
	"time"
)

var t0 = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// headers is an answer's head.
func headers(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func openAIHead(limit, remaining, reset, tokens, tokensLeft, tokensReset string) func(string) string {
	return headers("x-ratelimit-limit-requests", limit, "x-ratelimit-remaining-requests", remaining, "x-ratelimit-reset-requests", reset,
		"x-ratelimit-limit-tokens", tokens, "x-ratelimit-remaining-tokens", tokensLeft, "x-ratelimit-reset-tokens", tokensReset)
}

func TestNothingKnownIsNothingForbidden(t *testing.T) {
	a := New(Options{}, t0)
	for range 1000 {
		if _, ok := a.Take(t0, "m", 1_000_000); !ok {
			t.Fatal("an unknown limit is not a used up one")
		}
	}
	if r := a.Rates(t0); r.RequestsLeft != -1 || r.TokensLimit != -1 {
		t.Errorf("%+v", r)
	}
}

func TestConfiguredRates(t *testing.T) {
	a := New(Options{RPM: 60, TPM: 6000}, t0)
	n := 0
	for ; n < 100; n++ {
		if _, ok := a.Take(t0, "m", 200); !ok {
			break
		}
	}
	if n != 30 {
		t.Errorf("%d requests of 200 tokens in a full budget of 6000", n)
	}
	if s := a.State(t0, "m", 200); s != Spent || s.Takes() {
		t.Errorf("state %v", s)
	}
	if s := a.State(at(2), "m", 200); !s.Takes() {
		t.Errorf("after 2 s 200 tokens are back: %v", s)
	}
	a.Settle(t0, 200, 4200) // the host counted more
	if s := a.State(at(2), "m", 200); s != Spent {
		t.Errorf("%v after a correction of 4000 tokens", s)
	}
	a.Undo(t0, 4200)
	if s := a.State(at(2), "m", 200); !s.Takes() {
		t.Errorf("%v after an undo", s)
	}
}

// Bindings stop to lead to an account before its work does.
func TestShortOfRate(t *testing.T) {
	a := New(Options{RPM: 100}, t0)
	for range 95 {
		a.Take(t0, "m", 1)
	}
	if s := a.State(t0, "m", 1); s != Fit {
		t.Errorf("%v with 5 of 100 left", s)
	}
	a.Take(t0, "m", 1)
	if s := a.State(t0, "m", 1); s != Short || !s.Takes() {
		t.Errorf("%v with 4 of 100 left", s)
	}
}

// The forms are those of the hosts' own documentation.
func TestRatesAreLearnedFromHeaders(t *testing.T) {
	for name, head := range map[string]func(string) string{
		"openai": openAIHead("60", "3", "57s", "150000", "100", "1m0s"),
		"anthropic": headers(
			"anthropic-ratelimit-requests-limit", "60", "anthropic-ratelimit-requests-remaining", "3", "anthropic-ratelimit-requests-reset", at(57).Format(time.RFC3339),
			"anthropic-ratelimit-tokens-limit", "150000", "anthropic-ratelimit-tokens-remaining", "100", "anthropic-ratelimit-tokens-reset", at(60).Format(time.RFC3339)),
		"anthropic input tokens": headers(
			"anthropic-ratelimit-requests-limit", "60", "anthropic-ratelimit-requests-remaining", "3", "anthropic-ratelimit-requests-reset", at(57).Format(time.RFC3339),
			"anthropic-ratelimit-input-tokens-limit", "150000", "anthropic-ratelimit-input-tokens-remaining", "100", "anthropic-ratelimit-input-tokens-reset", at(60).Format(time.RFC3339)),
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{}, t0)
			m, _ := a.Take(t0, "m", 10)
			a.Heard(t0, Answer{Status: 200, Field: head, Model: "m", Mark: m})
			if r := a.Rates(t0); r.RequestsLeft != 3 || r.RequestsLimit != 60 || r.TokensLeft != 100 || r.TokensLimit != 150000 {
				t.Fatalf("%+v", r)
			}
			if s := a.State(t0, "m", 101); s != Spent {
				t.Errorf("101 of 100 tokens: %v", s)
			}
			if s := a.State(at(30), "m", 70_000); !s.Takes() {
				t.Errorf("half of the tokens are back after half of the reset: %v", s)
			}
			if s := a.State(at(61), "m", 1_000_000); !s.Takes() {
				t.Errorf("more than the limit is asked for once all is there: %v", s)
			}
		})
	}
}

// What was sent after the answered request is not in the host's count.
func TestLaterRequestsAreCountedIn(t *testing.T) {
	a := New(Options{}, t0)
	m, _ := a.Take(t0, "m", 1000)
	for range 3 {
		a.Take(t0, "m", 1000)
	}
	a.Heard(t0, Answer{Status: 200, Field: openAIHead("60", "59", "1s", "10000", "9000", "6s"), Model: "m", Mark: m})
	if r := a.Rates(t0); r.RequestsLeft != 56 || r.TokensLeft != 6000 {
		t.Errorf("%+v", r)
	}
}

func TestTheLowerOfBoughtAndToldHolds(t *testing.T) {
	a := New(Options{RPM: 10}, t0)
	m, _ := a.Take(t0, "m", 1)
	a.Heard(t0, Answer{Status: 200, Field: openAIHead("60", "55", "5s", "1", "1", "0s"), Model: "m", Mark: m})
	if r := a.Rates(t0); r.RequestsLimit != 10 || r.RequestsLeft != 5 {
		t.Errorf("%+v", r)
	}
}

func TestRestAfter429(t *testing.T) {
	for name, tc := range map[string]struct {
		head func(string) string
		want float64
	}{
		"seconds":     {headers("retry-after", "7"), 7},
		"fraction":    {headers("retry-after", "1.5"), 1.5},
		"millis":      {headers("retry-after", "9", "retry-after-ms", "250"), 0.25},
		"date":        {headers("retry-after", at(20).Format(httpDate)), 20},
		"reset":       {openAIHead("60", "0", "30s", "100", "100", "0s"), 0.5},
		"nothing":     {headers(), 10},
		"nonsense":    {headers("retry-after", "soon"), 10},
		"far away":    {headers("retry-after", "90000"), 3600},
		"a date past": {headers("retry-after", at(-20).Format(httpDate)), 10},
	} {
		a := New(Options{}, t0)
		if a.Heard(t0, Answer{Status: 429, Field: tc.head, Model: "m"}) {
			t.Errorf("%s: a 429 is no alarm", name)
		}
		if s := a.State(at(tc.want-0.01), "m", 1); s.Takes() {
			t.Errorf("%s: asked again before %v s: %v", name, tc.want, s)
		}
		if s := a.State(at(tc.want+0.01), "m", 1); !s.Takes() {
			t.Errorf("%s: %v after %v s", name, s, tc.want)
		}
		if a.State(t0, "other", 1).Takes() {
			t.Errorf("%s: the whole key rests, whatever the model", name)
		}
	}
}

func TestRefusedKeyIsAnAlarmOnce(t *testing.T) {
	for _, status := range []int{401, 403} {
		a := New(Options{}, t0)
		if !a.Heard(t0, Answer{Status: status}) || a.Heard(t0, Answer{Status: status}) {
			t.Errorf("%d: the alarm comes once", status)
		}
		if s := a.State(at(1e6), "m", 1); s != Refused || s.Takes() {
			t.Errorf("%d: %v", status, s)
		}
		a.Renew()
		if s := a.State(t0, "m", 1); s != Fit {
			t.Errorf("%d: %v after the key was replaced", status, s)
		}
	}
}

func TestCooldownIsPerModel(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses []int
		cools    bool
	}{
		"overloaded":           {[]int{529}, true},
		"unavailable":          {[]int{503}, true},
		"no such model":        {[]int{404}, true},
		"three errors":         {[]int{500, 502, 500}, true},
		"two errors":           {[]int{500, 500}, false},
		"a success in between": {[]int{500, 500, 200, 500}, false},
		"client's errors":      {[]int{400, 413, 422, 400}, false},
	} {
		a := New(Options{}, t0)
		for _, s := range tc.statuses {
			a.Heard(t0, Answer{Status: s, Model: "m"})
		}
		if got := a.State(t0, "m", 1) == Cooling; got != tc.cools {
			t.Errorf("%s: cooling %t", name, got)
		}
		if s := a.State(t0, "other", 1); s != Fit {
			t.Errorf("%s: another model is %v", name, s)
		}
		if s := a.State(at(31), "m", 1); s != Fit {
			t.Errorf("%s: %v after the cooldown", name, s)
		}
	}
	a := New(Options{Cooldown: time.Second}, t0)
	for range 3 {
		a.Failed(t0, "m")
	}
	if a.State(t0, "m", 1) != Cooling || a.State(at(1.1), "m", 1) != Fit {
		t.Error("three requests without an answer cool a model")
	}
}

// Whatever a host sends, nothing breaks and no limit becomes nonsense.
func FuzzHeaders(f *testing.F) {
	f.Add("60", "59", "1s", "7")
	f.Add("-1", "99999999999999999999", "NaN", "Inf")
	f.Add("1", "2", "2031-05-01T12:00:00Z", "1e300")
	f.Fuzz(func(t *testing.T, limit, remaining, reset, after string) {
		a := New(Options{RPM: 5}, t0)
		a.Heard(t0, Answer{Status: 429, Model: "m", Field: headers("x-ratelimit-limit-requests", limit,
			"x-ratelimit-remaining-requests", remaining, "x-ratelimit-reset-requests", reset, "retry-after", after)})
		r := a.Rates(t0)
		if r.RequestsLimit < 1 || r.RequestsLimit > 5 || r.RequestsLeft < 0 || r.RequestsLeft > r.RequestsLimit || r.RestSeconds < 0 || r.RestSeconds > 3600 {
			t.Fatalf("%+v", r)
		}
		if s := a.State(at(7200), "m", 1); !s.Takes() {
			t.Fatalf("%v after two hours", s)
		}
	})
}
