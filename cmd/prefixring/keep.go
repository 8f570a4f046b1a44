package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/prewarm"
)

// named is the manifest in force with the prefixes that scanners know by name: the same
// for traffic and for warm requests, so that both have one key (field case B58). It is
// immutable; nil is none.
type named struct {
	manifest *prewarm.Manifest
	list     []fingerprint.Named
	at       string // the moments that the texts were rendered for
}

// readNamed reads the manifest of a configuration, nil when it names none.
func readNamed(cfg *config.Config, log *slog.Logger) (*named, error) {
	if cfg.Prewarm.Manifest == "" {
		return nil, nil
	}
	m, err := prewarm.LoadManifest(cfg.Path(cfg.Prewarm.Manifest))
	if err != nil {
		return nil, err
	}
	return newNamed(m, log, time.Now()), nil
}

// newNamed renders the manifest's texts at the given moments. An entry that cannot be
// rendered is told and left out: traffic then keys it by its whole static prefix.
func newNamed(m *prewarm.Manifest, log *slog.Logger, at ...time.Time) *named {
	list, err := m.Named(nil, at...)
	if err != nil {
		log.Warn("not every prefix of the manifest can be named", "error", err)
	}
	var b strings.Builder
	for _, t := range at[1:] {
		fmt.Fprintf(&b, "%d ", t.Unix())
	}
	for i := range list {
		fmt.Fprintf(&b, "%016x", list[i].Key())
	}
	return &named{manifest: m, list: list, at: b.String()}
}

// names are those of the list, by index.
func (n *named) names() []string {
	if n == nil {
		return nil
	}
	out := make([]string, len(n.list))
	for i := range n.list {
		out[i] = n.list[i].Name
	}
	return out
}

// version changes with the texts that scanners know: keys may, too, and with them owners.
func (n *named) version() string {
	if n == nil {
		return ""
	}
	return n.at
}

func (f *fleet) manifest() *prewarm.Manifest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		return nil
	}
	return f.known.manifest
}

// newKeeper makes the scheduler if there is a manifest. It sends nothing yet.
func (f *fleet) newKeeper() error {
	if f.manifest() == nil {
		return nil
	}
	k, err := prewarm.NewScheduler(prewarm.SchedulerOptions{
		Manifest: f.manifest, Fleet: f.facts, Run: prewarm.Options{Proven: f.proven, Events: f.warmEvent},
		Warm: f.warmth, Alarm: f.alarm, Changed: f.rename,
	})
	f.keeper = k
	return err
}

// patience is how long engines that do not answer hold up the prewarm of those that do.
// Warming before all have told their models would place prefixes on a smaller ring.
const patience = 10 * time.Second

// keepWarm warms the manifest once the engines are ready, and keeps it warm until ctx ends.
func (f *fleet) keepWarm(ctx context.Context) {
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	var since time.Time // when the first engine could take work
	for !allServe(f.health.Snapshot()) && (since.IsZero() || time.Since(since) < patience) {
		if since.IsZero() && f.ready() == nil {
			since = time.Now()
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
	f.log.Info("prewarm begins", "manifest", f.manifest().Path(), "prefixes", len(f.manifest().Prefixes))
	if err := f.keeper.Run(ctx); err != nil {
		f.log.Error("prewarm has ended", "error", err)
	}
}

// warmEvent logs what has become warm or could not. Touches of what is warm are not news.
func (f *fleet) warmEvent(e prewarm.Event) {
	switch {
	case e.Kind == prewarm.EventWarm && e.Proof != nil && !e.Proof.Already:
		f.log.Info("prefix is warm", "prefix", e.Prefix, "node", e.Node, "tokens", e.Proof.Static, "cached", e.Proof.Cached,
			"evidence", e.Proof.Evidence, "cold_seconds", e.Proof.Cold)
	case e.Kind == prewarm.EventFailed:
		f.log.Warn("prefix is not warm", "prefix", e.Prefix, "node", e.Node, "why", e.Why)
	}
}

func (f *fleet) alarm(a prewarm.Alarm) {
	if a.Kind == prewarm.AlarmRecovered {
		f.log.Info("prewarm alarm is over", "prefix", a.Entry, "deadline", a.Deadline, "why", a.Why)
		return
	}
	f.log.Warn("prewarm alarm", "alarm", a.Kind, "prefix", a.Entry, "deadline", a.Deadline, "missing", a.Count, "why", a.Why)
}

// warmth is what traffic has shown, as the scheduler asks: an age of 0 is no evidence.
func (f *fleet) warmth(node string, key uint64) (bool, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.nodes[node]
	if m == nil || f.pools[m.in] == nil {
		return false, 0
	}
	n := f.pools[m.in].ring.Node(node)
	if n == nil {
		return false, 0
	}
	switch w, age := f.pools[m.in].residency.Warmth(n.ID(), key); w {
	case residency.Warm:
		return true, age
	case residency.Cold:
		return false, age
	}
	return false, 0
}

// rename makes the scanners know the texts that are warm now: before a text changes, the
// next version has its name as well, so that its key does not change with the text.
func (f *fleet) rename() {
	m := f.manifest()
	if m == nil {
		return
	}
	next := newNamed(m, f.log, f.keeper.Renderings()...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || f.known.manifest != m || f.known.version() == next.version() {
		return // nothing changed, or another manifest has come in the meantime
	}
	old := f.known
	f.known = next
	if err := f.rebuild(); err != nil {
		f.known = old
		f.log.Error("prefix names not changed", "error", err)
	}
}

// warmCells are what the keeper knows, for status and prewarm watch; nil = no keeper.
func (f *fleet) warmCells() []prewarm.CellStatus {
	if f.keeper == nil {
		return nil
	}
	return f.keeper.Snapshot()
}
