package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
)

// poolView is what a pool has learned. Keys are digests of what they cover; no text.
type poolView struct {
	Name    string         `json:"name"`
	Learned []learnedView  `json:"learned_keys"` // most used first, at most shownFamilies
	Churn   []churnView    `json:"churn"`        // newest first, at most 32
	Sizes   map[string]int `json:"remembered"`   // prefixes, blocks, churn_prefixes, churn_bytes
}

// learnedView is one key that was not registered.
type learnedView struct {
	Key         string  `json:"key,omitempty"` // digest; none when the text is volatile from the start
	Next        string  `json:"next,omitempty"`
	Depth       string  `json:"depth"`
	Bytes       int     `json:"bytes"`
	Prefixes    int     `json:"prefixes"`
	Requests    uint64  `json:"requests"`
	SecondsIdle float64 `json:"seconds_idle"`
	Volatile    bool    `json:"volatile,omitempty"`
	Message     int     `json:"message,omitempty"`
	From        int     `json:"from,omitempty"`
	To          int     `json:"to,omitempty"`
}

// churnView is one diagnosis.
type churnView struct {
	*proxy.ChurnHint
	Model   string  `json:"model"`
	Seconds float64 `json:"seconds_ago"`
	New     string  `json:"new"` // digests of the two prefixes
	Old     string  `json:"old"`
}

const shownFamilies = 20

// learnedViews describes what the pools have learned.
func (f *fleet) learnedViews() []poolView {
	f.mu.Lock()
	var pools []*pool
	for _, name := range sortedKeys(f.pools) {
		pools = append(pools, f.pools[name])
	}
	f.mu.Unlock()
	out := []poolView{}
	for _, p := range pools {
		out = append(out, p.view())
	}
	return out
}

func (p *pool) view() poolView {
	now := time.Now()
	v := poolView{Name: p.name, Learned: []learnedView{}, Churn: []churnView{}, Sizes: map[string]int{}}
	v.Sizes["prefixes"], v.Sizes["blocks"] = p.learner.Size()
	v.Sizes["churn_prefixes"], v.Sizes["churn_bytes"] = p.churn.Size()
	for _, l := range p.learner.Families(shownFamilies) {
		v.Learned = append(v.Learned, learnedView{
			Key: hexOrNone(l.Key), Next: hexOrNone(l.Next), Depth: l.Depth.String(), Bytes: l.Bytes,
			Prefixes: l.Prefixes, Requests: l.Requests, SecondsIdle: now.Sub(l.Seen).Round(time.Second).Seconds(),
			Volatile: l.Volatile, Message: l.Message, From: l.From, To: l.To,
		})
	}
	for _, d := range p.churn.Recent() {
		v.Churn = append(v.Churn, churnView{
			ChurnHint: proxy.NewChurnHint(&d), Model: d.Model, Seconds: now.Sub(d.At).Round(time.Second).Seconds(),
			New: hexOrNone(d.New), Old: hexOrNone(d.Old),
		})
	}
	return v
}

func hexOrNone(x uint64) string {
	if x == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", x)
}

// poolGauges registers what is read of a pool at each scrape. A pool of that name that
// comes back later is read instead.
func (f *fleet) poolGauges(name string) {
	for metric, read := range map[string]func(*pool) int{
		"prefixring_learned_prefixes": func(p *pool) int { n, _ := p.learner.Size(); return n },
		"prefixring_learned_blocks":   func(p *pool) int { _, n := p.learner.Size(); return n },
		"prefixring_learned_keys": func(p *pool) int {
			return len(slices.DeleteFunc(p.learner.Families(fingerprint.DefaultLearnerPrefixes), func(l fingerprint.Learned) bool { return l.Key == 0 }))
		},
	} {
		f.metrics.Gauge(metric, func() float64 {
			f.mu.Lock()
			p := f.pools[name]
			f.mu.Unlock()
			if p == nil {
				return 0
			}
			return float64(read(p))
		}, "pool", name)
	}
}

// printLearning writes what a person should know of keys without a manifest: what is
// volatile, what changes, and why prefixes are new. Stable prefixes are no news.
func printLearning(out io.Writer, pools []poolView) {
	for _, p := range pools {
		for _, l := range p.Learned {
			switch {
			case l.Depth == fingerprint.DepthNone.String():
				fmt.Fprintf(out, "%s: %d prefixes change between bytes %d and %d of system message %d (not shown): no key, each conversation goes its own way\n",
					p.Name, l.Prefixes, l.From, l.To-1, l.Message)
			case l.Depth == fingerprint.DepthHead.String():
				fmt.Fprintf(out, "%s: %d prefixes share the key %s, of the %d bytes that they have in common%s\n",
					p.Name, l.Prefixes, l.Key, l.Bytes, becomes(l.Next))
			}
		}
		if len(p.Churn) > 0 {
			c := &p.Churn[0]
			fmt.Fprintf(out, "%s: %.0f s ago a new prefix came: %s\n", p.Name, c.Seconds, c.Hint)
		}
	}
}

func becomes(next string) string {
	if next == "" {
		return ""
	}
	return "; it becomes " + next + " when an owner of that is proven warm"
}

// printPrefix writes what explain knows of the prefix beside its key.
func printPrefix(out io.Writer, e *explanation) {
	if l := e.Learned; l != nil {
		switch l.Depth {
		case fingerprint.DepthWhole.String():
			fmt.Fprintf(out, "depth        whole: no other prefix shares this key\n")
		case fingerprint.DepthHead.String():
			fmt.Fprintf(out, "depth        head: the key is that of the %d bytes that several prefixes have in common%s\n", l.Bytes, becomes(l.Next))
		default:
			fmt.Fprintf(out, "depth        none: placed by conversation\n")
		}
		if l.Volatile {
			fmt.Fprintf(out, "volatile     bytes %d to %d of system message %d change with each request (not shown)\n", l.From, l.To-1, l.Message)
		}
	}
	if e.Churn != nil {
		fmt.Fprintf(out, "churn        %s\n", e.Churn.Hint)
	}
	if e.Binding != "" {
		fmt.Fprintf(out, "binding      %s holds the conversation's history\n", e.Binding)
	}
	for i, s := range e.Spans {
		if i == 0 {
			fmt.Fprint(out, "fields      ")
		}
		fmt.Fprintf(out, " %s [%d, %d)", s.Field, s.Start, s.End)
	}
	if len(e.Spans) > 0 {
		fmt.Fprintln(out)
	}
}
