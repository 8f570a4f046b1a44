package fakeengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// FaultKind names what goes wrong.
type FaultKind string

// The kinds that strike single requests. "Before the head" means that no byte of
// the response was written. N is Fault.After, counted in stream events; on a reply
// that is no stream, faults with N strike in the middle of its body.
const (
	FaultDelay      FaultKind = "delay"       // wait Delay before the request is looked at
	FaultHang       FaultKind = "hang"        // never answer; ends when the client leaves or the fault is removed (then it closes)
	FaultClose      FaultKind = "close"       // close before the head
	FaultReset      FaultKind = "reset"       // RST after N events; N = 0 is before the head
	FaultCut        FaultKind = "cut"         // close after N events without the end of the body
	FaultCutMid     FaultKind = "cut_mid"     // the same in the middle of event N+1
	FaultStatus     FaultKind = "status"      // answer Status with Body (default: an error of that status in the engine's shape)
	FaultErrorEvent FaultKind = "error_event" // 200, N events, then an SSE error object with Code, then [DONE]
	FaultPause      FaultKind = "pause"       // N events, then silence for Delay (0 = until the client leaves)
	FaultEmpty      FaultKind = "empty"       // 200, the right content type, no byte
	FaultNoDone     FaultKind = "no_done"     // a chat or completions stream without [DONE]
	FaultSplit      FaultKind = "split"       // Bytes bytes per write (default 1)
	FaultCoalesce   FaultKind = "coalesce"    // write only when Bytes bytes are there (default 64 KiB)
	FaultComments   FaultKind = "comments"    // an SSE comment line before each event
	FaultHeaders    FaultKind = "headers"     // extra response headers
	FaultGzip       FaultKind = "gzip"        // compressed body, labelled
	FaultCloseAfter FaultKind = "close_after" // close after a whole response whose head did not say so
	FaultResetAfter FaultKind = "reset_after" // the same with RST
)

// The kinds that change the whole engine for as long as they are set, or once.
const (
	FaultMetrics FaultKind = "metrics" // lie on /metrics: Metrics, Remove, Rename, Freeze
	FaultStall   FaultKind = "stall"   // the core hangs behind a live front end; Delay limits it, 0 = until removed
	FaultSleep   FaultKind = "sleep"   // asleep until removed
	FaultRestart FaultKind = "restart" // once: cut everything, come back cold
	FaultKill    FaultKind = "kill"    // once: refuse connections; Delay later come back cold (0 = never)
	FaultCutAll  FaultKind = "cut_all" // once: RST all connections
)

// Fault is one scripted fault. Its zero fields mean: every request of the
// generation paths, always.
type Fault struct {
	Name        string    `json:"name,omitempty"` // key; the kind if empty. A fault replaces the one of its name
	Kind        FaultKind `json:"kind"`
	Path        string    `json:"path,omitempty"` // exact, or a prefix ending in *; "" = generation paths, "*" = all
	Count       int       `json:"count,omitempty"`
	Probability float64   `json:"probability,omitempty"` // 0 = 1; drawn from the engine's seed
	After       int       `json:"after,omitempty"`
	Delay       Duration  `json:"delay,omitempty"`
	Status      int       `json:"status,omitempty"`
	Code        int       `json:"code,omitempty"`
	Body        string    `json:"body,omitempty"`
	ContentType string    `json:"content_type,omitempty"`
	Bytes       int       `json:"bytes,omitempty"`

	Headers http.Header `json:"headers,omitempty"`

	Metrics map[string]string `json:"metrics,omitempty"` // series name -> value as text ("0.97", "NaN"), whatever its labels
	Remove  []string          `json:"remove,omitempty"`  // series names that vanish
	Rename  map[string]string `json:"rename,omitempty"`
	Freeze  bool              `json:"freeze,omitempty"` // the page of the moment the fault was set

	Hits int `json:"hits"` // requests struck so far
}

// Duration is a time.Duration that JSON spells "250ms".
type Duration time.Duration

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements json.Unmarshaler; it takes a string only.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("cannot read a duration: want a string such as \"250ms\"")
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

type fault struct {
	Fault
	gone   chan struct{} // closed when it is removed
	frozen []byte
}

var faultKinds = []FaultKind{
	FaultDelay, FaultHang, FaultClose, FaultReset, FaultCut, FaultCutMid, FaultStatus, FaultErrorEvent, FaultPause, FaultEmpty,
	FaultNoDone, FaultSplit, FaultCoalesce, FaultComments, FaultHeaders, FaultGzip, FaultCloseAfter, FaultResetAfter,
	FaultMetrics, FaultStall, FaultSleep, FaultRestart, FaultKill, FaultCutAll,
}

// TrySetFault sets a fault, replacing the one of the same name. Errors: a kind
// that does not exist, a value out of range.
func (e *Engine) TrySetFault(f Fault) error {
	if !slices.Contains(faultKinds, f.Kind) {
		return fmt.Errorf("cannot set a fault of kind %q: known are %v", f.Kind, faultKinds)
	}
	if f.Probability < 0 || f.Probability > 1 || f.Count < 0 || f.After < 0 || f.Delay < 0 || f.Bytes < 0 {
		return fmt.Errorf("cannot set fault %q: count, after, delay and bytes must not be negative, probability is from 0 to 1", f.Kind)
	}
	if f.Kind == FaultStatus && (f.Status < 200 || f.Status > 599) {
		return fmt.Errorf("cannot set fault %q: status %d is not from 200 to 599", f.Kind, f.Status)
	}
	if f.Name == "" {
		f.Name = string(f.Kind)
	}
	f.Hits = 0
	switch f.Kind {
	case FaultRestart:
		return e.Restart()
	case FaultCutAll:
		e.CutConnections(true)
		return nil
	case FaultKill:
		e.later(func() { e.killFor(time.Duration(f.Delay)) })
		return nil
	}
	s := &fault{Fault: f, gone: make(chan struct{})}
	if f.Freeze {
		s.frozen = e.metricsPage()
	}
	e.remove(f.Name)
	e.mu.Lock()
	e.faults = append(e.faults, s)
	e.mu.Unlock()
	e.enter(s)
	return nil
}

// SetFault is TrySetFault for tests: it panics on a fault that makes no sense.
func (e *Engine) SetFault(f Fault) {
	if err := e.TrySetFault(f); err != nil {
		panic("BUG: " + err.Error())
	}
}

// later runs f on a goroutine that Close waits for.
func (e *Engine) later(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.stop:
	default:
		e.loops.Go(f)
	}
}

func (e *Engine) killFor(d time.Duration) {
	e.Kill()
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		_ = e.Revive() // fails only when somebody closed or revived it meanwhile
	case <-e.stop:
	}
}

func (e *Engine) enter(s *fault) {
	switch s.Kind {
	case FaultSleep:
		e.Sleep(1)
	case FaultStall:
		e.stall(true)
		if s.Delay > 0 {
			e.later(func() {
				t := time.NewTimer(time.Duration(s.Delay))
				defer t.Stop()
				select {
				case <-t.C:
					e.remove(s.Name)
				case <-s.gone:
				case <-e.stop:
				}
			})
		}
	}
}

func (e *Engine) stall(on bool) {
	for _, r := range e.ranks {
		r.mu.Lock()
		r.stalled = on
		r.mu.Unlock()
		r.kick()
	}
}

// ClearFaults removes all faults; the engine is as if they had never been set.
func (e *Engine) ClearFaults() {
	for _, f := range e.Faults() {
		e.remove(f.Name)
	}
}

// RemoveFault removes one fault by name and reports whether it was there.
func (e *Engine) RemoveFault(name string) bool { return e.remove(name) }

func (e *Engine) remove(name string) bool {
	e.mu.Lock()
	i := slices.IndexFunc(e.faults, func(f *fault) bool { return f.Name == name })
	if i < 0 {
		e.mu.Unlock()
		return false
	}
	s := e.faults[i]
	e.faults = slices.Delete(e.faults, i, i+1)
	close(s.gone)
	e.mu.Unlock()
	switch s.Kind {
	case FaultSleep:
		e.Wake()
	case FaultStall:
		e.stall(false)
	}
	return true
}

// Faults lists what is set, with hits.
func (e *Engine) Faults() []Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]Fault, 0, len(e.faults))
	for _, f := range e.faults {
		all = append(all, f.Fault)
	}
	return all
}

// strike picks the faults that hit a request to path, by kind.
func (e *Engine) strike(path string) map[FaultKind]*fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	var hit map[FaultKind]*fault
	for _, f := range e.faults {
		if !f.matches(path) || f.Count > 0 && f.Hits >= f.Count {
			continue
		}
		if f.Probability > 0 && e.rng.Float64() >= f.Probability {
			continue
		}
		f.Hits++
		if hit == nil {
			hit = map[FaultKind]*fault{}
		}
		hit[f.Kind] = f
	}
	return hit
}

func (f *fault) matches(path string) bool {
	switch {
	case f.Kind == FaultMetrics:
		return path == "/metrics"
	case f.Kind == FaultStall || f.Kind == FaultSleep:
		return false
	case f.Path == "":
		return generationPath(path)
	case strings.HasSuffix(f.Path, "*"):
		return strings.HasPrefix(path, strings.TrimSuffix(f.Path, "*"))
	}
	return f.Path == path
}
