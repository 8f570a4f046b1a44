package prewarm

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows a run on a terminal: one bar in total and one for each node, or, where w
// is no terminal, one line for each settled prefix. It only reads events.
type Progress struct {
	w    io.Writer
	tty  bool
	rows int // nodes shown at most

	mu    sync.Mutex // guards the following
	total *bar
	nodes []*bar
	index map[string]*bar
	lines int // drawn last, to be drawn over
	drawn time.Time
	eta   float64
}

type bar struct {
	p    *progressbar.ProgressBar
	note string
}

// NewProgress returns a renderer. rows bounds the nodes that have a bar of their own; 0
// means 16.
func NewProgress(w io.Writer, tty bool, rows int) *Progress {
	if rows <= 0 {
		rows = 16
	}
	return &Progress{w: w, tty: tty, rows: rows, index: map[string]*bar{}}
}

func newBar(name string, items int) *bar {
	b := &bar{}
	b.p = progressbar.NewOptions(max(items, 1),
		progressbar.OptionSetWriter(io.Discard), progressbar.OptionSetWidth(28), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetDescription(fmt.Sprintf("%-16.16s", name)), progressbar.OptionUseANSICodes(false))
	_ = b.p.RenderBlank() // to io.Discard: cannot fail
	return b
}

// Handle takes one event; it is an Options.Events.
func (p *Progress) Handle(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty {
		p.line(e)
		return
	}
	p.eta = e.ETA
	if p.total == nil {
		p.total = newBar("total", e.Total)
	}
	b := p.bar(e)
	switch e.Kind {
	case EventPlan:
		return
	case EventStart:
		b.say(e.Prefix)
	case EventPaused:
		b.say("paused: " + e.Why)
	case EventResumed:
		b.say(e.Prefix)
	case EventRetry:
		b.say("retry: " + e.Why)
	case EventFailed:
		b.say("NOT WARM " + e.Prefix + ": " + e.Why)
	case EventWarm:
		b.say("")
	}
	p.set(p.total, e.Done)
	if b != nil {
		p.set(b, e.NodeDone)
	}
	// A bar is for eyes: ten times a second is enough, and the end must not be missed.
	if e.Kind == EventDone || e.At.Sub(p.drawn) >= 100*time.Millisecond || e.At.Before(p.drawn) {
		p.draw()
		p.drawn = e.At
	}
}

// bar is the node's bar, nil when there are too many nodes for one each.
func (p *Progress) bar(e Event) *bar {
	if e.Node == "" {
		return nil
	}
	b := p.index[e.Node]
	if b == nil && len(p.nodes) < p.rows {
		b = newBar(e.Node, e.NodeTotal)
		p.nodes = append(p.nodes, b)
		p.index[e.Node] = b
	}
	return b
}

func (b *bar) say(note string) {
	if b != nil {
		b.note = note
	}
}

func (p *Progress) set(b *bar, done int) {
	// The bar writes to memory, which does not fail; a count above its maximum would, and
	// cannot be.
	_ = b.p.Set(done)
}

// text is the bar as it stands.
func (b *bar) text() string { return strings.TrimRight(strings.Trim(b.p.String(), "\r"), " \n") }

// draw draws all bars over the ones drawn before.
func (p *Progress) draw() {
	var out strings.Builder
	if p.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", p.lines)
	}
	line := func(s string) { out.WriteString("\x1b[2K" + s + "\n") }
	head := p.total.text()
	if p.eta > 0 {
		head += "  " + time.Duration(p.eta*float64(time.Second)).Round(time.Second).String() + " left"
	}
	line(head)
	for _, b := range p.nodes {
		line(b.text() + "  " + b.note)
	}
	p.lines = 1 + len(p.nodes)
	// A terminal that is gone is no reason to stop warming.
	_, _ = io.WriteString(p.w, out.String())
}

// line tells an event where there is no terminal.
func (p *Progress) line(e Event) {
	switch e.Kind {
	case EventWarm:
		_, _ = fmt.Fprintf(p.w, "%d/%d warm      %s on %s by %s, %d of %d tokens\n", e.Done, e.Total, e.Prefix, e.Node, e.Proof.Evidence, e.Proof.Cached, e.Proof.Static)
	case EventFailed:
		_, _ = fmt.Fprintf(p.w, "%d/%d NOT WARM  %s on %s: %s\n", e.Done, e.Total, e.Prefix, e.Node, e.Why)
	case EventPaused:
		_, _ = fmt.Fprintf(p.w, "%d/%d paused    %s on %s: %s\n", e.Done, e.Total, e.Prefix, e.Node, e.Why)
	case EventRetry:
		_, _ = fmt.Fprintf(p.w, "%d/%d retry     %s on %s: %s\n", e.Done, e.Total, e.Prefix, e.Node, e.Why)
	}
}
