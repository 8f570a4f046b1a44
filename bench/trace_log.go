package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// logBlock is the block size of a trace made from an access log, in tokens.
const logBlock = 64

// logLine is what is read of one line of the router's access log (JSON, msg "request").
type logLine struct {
	Time        *time.Time `json:"time"`
	Msg         string     `json:"msg"`
	Fingerprint string     `json:"fingerprint"`
	Total       float64    `json:"total_ms"`
	Prompt      *int       `json:"prompt_tokens"`
	Cached      *int       `json:"cached_tokens"`
	Output      *int       `json:"output_tokens"`
}

// ReadAccessLog makes a trace of the router's own access log. The log holds no text and
// not the length of a static prefix, so both are modelled: requests of one fingerprint
// share as many tokens as the median of those that hit had in cache, and the rest of
// each prompt is its own. Lines of other kinds, and requests without reported tokens
// (failures), are left out.
func ReadAccessLog(r io.Reader) (*Trace, error) {
	var lines []logLine
	hits := map[string][]int{}
	err := eachLine(r, func(_ int, line []byte) error {
		var l logLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if l.Msg != "request" || l.Prompt == nil {
			return nil
		}
		if l.Time == nil || *l.Prompt <= 0 || l.Total < 0 {
			return errors.New("a request without time, or with a negative count")
		}
		if l.Cached != nil && *l.Cached > 0 {
			hits[l.Fingerprint] = append(hits[l.Fingerprint], min(*l.Cached, *l.Prompt))
		}
		lines = append(lines, l)
		return nil
	})
	t := &Trace{Name: "access-log", BlockTokens: logBlock}
	if len(lines) == 0 {
		if err == nil {
			err = fmt.Errorf("%w: no request with reported tokens in the log", ErrUsage)
		}
		return t, err
	}
	shared := map[string]int{}
	for fp, all := range hits {
		slices.Sort(all)
		shared[fp] = all[len(all)/2]
	}
	// A line is written when the answer has ended; the request came total_ms before.
	came := func(l *logLine) time.Time { return l.Time.Add(-time.Duration(l.Total * float64(time.Millisecond))) }
	first := came(&lines[0])
	for i := range lines {
		if at := came(&lines[i]); at.Before(first) {
			first = at
		}
	}
	for i := range lines {
		l := &lines[i]
		q := TraceRequest{At: came(l).Sub(first), Session: -1, Input: *l.Prompt, Output: 1, Blocks: make([]uint64, (*l.Prompt+logBlock-1)/logBlock)}
		if l.Output != nil {
			q.Output = max(1, *l.Output)
		}
		q.System = min(shared[l.Fingerprint]/logBlock, len(q.Blocks))
		for j := range q.Blocks {
			if j < q.System {
				q.Blocks[j] = seedOf(0x6c6f67, seedOfString(l.Fingerprint), uint64(j))
			} else {
				q.Blocks[j] = seedOf(0x6f776e, uint64(i), uint64(j))
			}
		}
		t.Requests = append(t.Requests, q)
	}
	slices.SortStableFunc(t.Requests, func(a, b TraceRequest) int { return int(a.At - b.At) })
	return t, err
}
