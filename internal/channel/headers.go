package channel

import (
	"math"
	"strconv"
	"time"
)

// window is one limit as a host tells it.
type window struct {
	limit, remaining int64
	reset            time.Duration // until all of it is there again; 0 = not told
	ok               bool
}

type limits struct {
	requests, tokens window
	retryAfter       time.Duration
}

// readLimits reads what OpenAI- and Anthropic-compatible hosts send:
//
//	x-ratelimit-limit-requests, -remaining-requests, -reset-requests: "60", "59", "1s" or "6m0s"
//	anthropic-ratelimit-requests-limit, -remaining, -reset: "50", "49", RFC 3339 time
//
// and the same for tokens (Anthropic: tokens, else input-tokens), retry-after in seconds or
// as a date, and OpenAI's retry-after-ms. What does not parse is as if it were not there.
func readLimits(now time.Time, field func(string) string) (l limits) {
	if field == nil {
		return l
	}
	l.requests = openAI(now, field, "requests")
	l.tokens = openAI(now, field, "tokens")
	if !l.requests.ok {
		l.requests = anthropic(now, field, "requests")
	}
	for _, kind := range [...]string{"tokens", "input-tokens"} {
		if !l.tokens.ok {
			l.tokens = anthropic(now, field, kind)
		}
	}
	l.retryAfter = retryAfter(now, field)
	return l
}

func openAI(now time.Time, field func(string) string, kind string) window {
	return newWindow(now, field("x-ratelimit-limit-"+kind), field("x-ratelimit-remaining-"+kind), field("x-ratelimit-reset-"+kind))
}

func anthropic(now time.Time, field func(string) string, kind string) window {
	p := "anthropic-ratelimit-" + kind
	return newWindow(now, field(p+"-limit"), field(p+"-remaining"), field(p+"-reset"))
}

func newWindow(now time.Time, limit, remaining, reset string) (w window) {
	var err1, err2 error
	w.limit, err1 = strconv.ParseInt(limit, 10, 64)
	w.remaining, err2 = strconv.ParseInt(remaining, 10, 64)
	if err1 != nil || err2 != nil || w.limit <= 0 || w.remaining < 0 {
		return window{}
	}
	w.remaining = min(w.remaining, w.limit)
	w.reset, w.ok = until(now, reset), true
	return w
}

func retryAfter(now time.Time, field func(string) string) time.Duration {
	if ms, err := strconv.ParseFloat(field("retry-after-ms"), 64); err == nil {
		return positive(ms / 1000)
	}
	return until(now, field("retry-after"))
}

// until reads "1.5", "6m0s", an RFC 3339 time or an HTTP date.
func until(now time.Time, s string) time.Duration {
	if s == "" {
		return 0
	}
	if sec, err := strconv.ParseFloat(s, 64); err == nil {
		return positive(sec)
	}
	if d, err := time.ParseDuration(s); err == nil {
		return max(d, 0)
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return max(t.Sub(now), 0)
	}
	if t, err := time.Parse(httpDate, s); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}

// httpDate is the date form that hosts send (RFC 9110 section 5.6.7).
const httpDate = "Mon, 02 Jan 2006 15:04:05 GMT"

// positive turns seconds into a duration; nonsense is none.
func positive(sec float64) time.Duration {
	if !(sec > 0) || math.IsInf(sec, 0) || sec > 1e6 {
		return 0
	}
	return time.Duration(sec * float64(time.Second))
}
