package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

const (
	chaosEngines = 16
	chaosModel   = "sim"
)

// chaos is one run: engines, router, load, events and what was seen.
type chaos struct {
	t      *testing.T
	rng    *rand.Rand
	seed   uint64
	length time.Duration

	dir    string
	server *server
	cancel context.CancelFunc
	done   chan error

	engines []*chaosEngine // members at present, in the order in which they joined
	born    int            // engines so far, for their names
	all     []*chaosEngine

	start  time.Time // of the load
	loads  []*chaosLoad
	ledger chaosLedger
	watch  chaosWatch
	events []*chaosEvent
	wg     sync.WaitGroup // events that end later
}

// chaosEngine is one simulated engine under its stable name.
type chaosEngine struct {
	*fakeengine.Engine
	name, url, dialect string
	busy               time.Time // until when an event on it goes on
}

func newChaos(t *testing.T, seed uint64, length time.Duration) *chaos {
	t.Helper()
	c := &chaos{t: t, seed: seed, length: length, rng: rand.New(rand.NewPCG(seed, 0x6368616f)), dir: t.TempDir()}
	for range chaosEngines {
		c.add()
	}
	c.loads = c.traffic()
	c.writeManifest()
	c.writeConfig()
	c.serve()
	return c
}

// add starts a cold engine; it gets work once the configuration names it.
func (c *chaos) add() *chaosEngine {
	c.t.Helper()
	c.born++
	e := &chaosEngine{name: fmt.Sprintf("engine-%02d", c.born), dialect: "vllm"}
	o := fakeengine.Options{
		Name: e.name, Model: chaosModel, Preset: "8b-tp1", Seed: c.seed + uint64(c.born), ReportCached: true, AnswerTokens: 24,
	}
	if c.born%4 == 0 {
		e.dialect, o.Dialect = "sglang", dialect.SGLang
	}
	var err error
	if e.Engine, err = fakeengine.New(o); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { e.Close() })
	if e.url, err = e.Start(""); err != nil {
		c.t.Fatal(err)
	}
	c.engines, c.all = append(c.engines, e), append(c.all, e)
	return e
}

func (c *chaos) configFile() string { return filepath.Join(c.dir, "router.yaml") }

// writeConfig names the present members, in one atomic step as an operator's tool would.
func (c *chaos) writeConfig() {
	c.t.Helper()
	var b strings.Builder
	b.WriteString("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbindings: {enabled: true}\nprewarm: {manifest: sale.yaml}\n" +
		"limits: {drain_delay: 1ms, drain_grace: 20s}\ntelemetry: {access_log: false}\npools:\n  - engines:\n")
	for _, e := range c.engines {
		fmt.Fprintf(&b, "      - {name: %s, url: '%s', dialect: %s}\n", e.name, e.url, e.dialect)
	}
	next := c.configFile() + ".next"
	if err := os.WriteFile(next, []byte(b.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(next, c.configFile()); err != nil {
		c.t.Fatal(err)
	}
}

// writeManifest declares the prefixes of the first load; those of the second are
// learned from traffic alone.
func (c *chaos) writeManifest() {
	c.t.Helper()
	o := &c.loads[0].options
	var b strings.Builder
	b.WriteString("prefixes:\n")
	for i, share := range o.Workload.Shares() {
		file := fmt.Sprintf("prefix-%d.json", i+1)
		if err := os.WriteFile(filepath.Join(c.dir, file), o.Example(i), 0o600); err != nil {
			c.t.Fatal(err)
		}
		fmt.Fprintf(&b, "  - {name: prefix-%d, model: %s, request: %s, share: %.4f}\n", i+1, chaosModel, file, share)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "sale.yaml"), []byte(b.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// serve runs the router as the serve command does, and waits until it knows all engines
// and has warmed the manifest.
func (c *chaos) serve() {
	c.t.Helper()
	cfg, err := config.Load(c.configFile())
	if err != nil {
		c.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("PREFIXRING_CHAOS_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if c.server, err = newServer(cfg, log); err != nil {
		c.t.Fatal(err)
	}
	c.server.reread = func() (*config.Config, error) { return config.Load(c.configFile()) }
	if err := c.server.listen(); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.done = cancel, make(chan error, 1)
	go func() { c.done <- c.server.run(ctx, io.Discard) }()
	c.until("all engines serve", 30*time.Second, func() bool { return allServe(c.server.fleet.health.Snapshot()) })
	c.until("the manifest is warm", 60*time.Second, func() bool {
		cells := c.server.fleet.warmCells()
		for i := range cells {
			if cells[i].State != "warm" {
				return false
			}
		}
		return len(cells) > 0
	})
}

// until waits for a state of the router.
func (c *chaos) until(what string, limit time.Duration, ok func() bool) time.Duration {
	c.t.Helper()
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Since(began) > limit {
			c.t.Errorf("not within %v: %s", limit, what)
			break
		}
	}
	return time.Since(began)
}

// stop ends the router; the engines end with the test.
func (c *chaos) stop() {
	c.cancel()
	if err := <-c.done; err != nil {
		c.t.Errorf("serve: %v", err)
	}
}
