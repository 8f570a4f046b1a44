package fakeengine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// Engine is one simulated engine. Make it with New.
type Engine struct {
	opts        Options
	blockSize   int
	maxModelLen int
	cfg         core.Config
	kvTokens    int // capacity of one rank
	ranks       []*rank
	turn        atomic.Int64 // internal round robin over ranks
	requests    atomic.Int64
	inFlight    atomic.Int64 // HTTP requests to the paths that /load counts
	instance    string       // the hex digits of system_fingerprint

	mu       sync.Mutex
	rng      *rand.Rand
	key      string
	adapters []adapter
	loads    int // adapters loaded so far
	faults   []*fault
	stored   map[string]stored
	conns    map[*trackedConn]struct{}
	past     Counters // of the epochs before restarts
	epoch    int
	draining bool
	started  time.Time

	life   sync.Mutex // serialises Start, Kill, Revive and Close
	server *http.Server
	addr   string
	served chan struct{}
	stop   chan struct{}
	loops  sync.WaitGroup
	closed bool
}

// adapter is a loaded LoRA adapter. SGLang gives each load a fresh identity, so a
// reload is cold there; vLLM keys its cache by the name.
type adapter struct{ name, identity string }

// New makes an engine and starts its step loops. Close it.
func New(opts Options) (*Engine, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	e := &Engine{opts: opts, stop: make(chan struct{}), key: opts.APIKey, started: time.Now(), stored: map[string]stored{}, conns: map[*trackedConn]struct{}{}}
	e.rng = rand.New(rand.NewPCG(opts.Seed, 0x66616b65))
	e.instance = fmt.Sprintf("%08x", e.rng.Uint32())
	for i := range opts.Ranks {
		r, err := newRank(e, i)
		if err != nil {
			return nil, err
		}
		e.ranks = append(e.ranks, r)
	}
	// A restart replaces a rank's core by one of the same shape: what never changes is kept
	// here, where pages may read it without the rank's lock.
	e.cfg, e.kvTokens = e.ranks[0].core.Config(), e.ranks[0].core.Capacity()
	e.blockSize = e.cfg.BlockSize
	e.maxModelLen = min(opts.MaxModelLen, e.kvTokens)
	for _, name := range opts.Adapters {
		e.load(name)
	}
	for _, r := range e.ranks {
		e.loops.Go(func() { r.run(e.stop) })
	}
	return e, nil
}

// load makes an adapter known; e.mu must be free or not yet needed.
func (e *Engine) load(name string) {
	e.loads++
	identity := name
	if e.opts.Dialect == dialect.SGLang {
		identity = fmt.Sprintf("%s#%d", name, e.loads)
	}
	e.adapters = slices.DeleteFunc(e.adapters, func(a adapter) bool { return a.name == name })
	e.adapters = append(e.adapters, adapter{name, identity})
}

// connKey finds the network connection of a request, for faults below HTTP.
type connKey struct{}

// Serve answers on l until Close or Kill; it always returns a non-nil error, then
// http.ErrServerClosed. It takes over l.
func (e *Engine) Serve(l net.Listener) error {
	e.life.Lock()
	s, err := e.serveLocked(l)
	e.life.Unlock()
	if err != nil {
		return err
	}
	return s()
}

func (e *Engine) serveLocked(l net.Listener) (func() error, error) {
	if e.closed {
		l.Close()
		return nil, errors.New("cannot serve: the engine is closed")
	}
	if e.server != nil {
		l.Close()
		return nil, errors.New("cannot serve: the engine has a listener already")
	}
	s := &http.Server{
		Handler: e.Handler(), IdleTimeout: e.opts.KeepAlive, MaxHeaderBytes: 256 << 10,
		ReadHeaderTimeout: time.Minute,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState:         closeWhenIdle,
		ErrorLog:          silent,
	}
	e.server, e.addr, e.served = s, l.Addr().String(), make(chan struct{})
	l = &trackingListener{l, e}
	if e.opts.TLS != nil {
		l = tls.NewListener(l, e.opts.TLS)
	}
	done := e.served
	return func() error {
		defer close(done)
		return s.Serve(l)
	}, nil
}

// Start listens on addr ("" is a free port of 127.0.0.1) and serves in the
// background. It returns the base URL.
func (e *Engine) Start(addr string) (url string, err error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	e.life.Lock()
	defer e.life.Unlock()
	if err := e.listenLocked(addr); err != nil {
		return "", err
	}
	scheme := "http://"
	if e.opts.TLS != nil {
		scheme = "https://"
	}
	return scheme + e.addr, nil
}

func (e *Engine) listenLocked(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot listen for the simulated engine: %w", err)
	}
	serve, err := e.serveLocked(l)
	if err != nil {
		return err
	}
	go func() { _ = serve() }() // ends with the server; hangUp waits for it
	return nil
}

// hangUp closes the listener and cuts all connections.
func (e *Engine) hangUp() {
	if e.server == nil {
		return
	}
	_ = e.server.Close()
	<-e.served
	e.server = nil
}

// Kill is SIGKILL: the port refuses, all connections are cut, everything in
// flight and in the cache is gone. Revive brings the engine back, cold.
func (e *Engine) Kill() {
	e.life.Lock()
	defer e.life.Unlock()
	e.hangUp()
	for _, r := range e.ranks {
		r.kill(killCut)
	}
}

// Revive listens again on the address of before with an empty cache and counters
// that begin at zero.
func (e *Engine) Revive() error {
	e.life.Lock()
	defer e.life.Unlock()
	if e.closed || e.server != nil || e.addr == "" {
		return errors.New("cannot revive: the engine was not killed")
	}
	if err := e.resetRanks(); err != nil {
		return err
	}
	return e.listenLocked(e.addr)
}

// Restart cuts all connections and comes back cold at once, without the port ever
// refusing. Counters still adds up what was before.
func (e *Engine) Restart() error {
	e.life.Lock()
	defer e.life.Unlock()
	if err := e.resetRanks(); err != nil {
		return err
	}
	e.CutConnections(false)
	return nil
}

// startedAt is when the process that the engine simulates began.
func (e *Engine) startedAt() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

func (e *Engine) resetRanks() error {
	past := e.Counters()
	for _, r := range e.ranks {
		if err := r.restart(); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	past.Running, past.Waiting, past.UsedBlocks, past.IdleBlocks, past.TotalBlocks, past.ResidentPrefixes = 0, 0, 0, 0, 0, 0
	e.past, e.epoch, e.draining, e.started = past, e.epoch+1, false, time.Now()
	clear(e.stored)
	return nil
}

// Shutdown is SIGTERM. vLLM aborts what runs (streams end with finish_reason
// "abort") unless ShutdownTimeout lets it drain; SGLang fails /health and serves
// on until nothing is left or ctx ends. Then the engine is closed.
func (e *Engine) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
	if e.opts.Dialect == dialect.VLLM {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.opts.ShutdownTimeout)
		defer cancel()
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for e.busy() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, r := range e.ranks {
		r.kill(killAbort)
	}
	e.life.Lock()
	if e.server != nil { // let the aborted streams write their last event
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = e.server.Shutdown(last)
		cancel()
	}
	e.life.Unlock()
	return e.Close()
}

func (e *Engine) busy() bool {
	for _, r := range e.ranks {
		r.mu.Lock()
		n := len(r.jobs)
		r.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// Close ends the engine: listener, connections and step loops. It is safe to call twice.
func (e *Engine) Close() error {
	e.life.Lock()
	if !e.closed {
		e.closed = true
		e.ClearFaults()
		e.hangUp()
		for _, r := range e.ranks {
			r.kill(killCut)
		}
		close(e.stop)
	}
	e.life.Unlock()
	e.loops.Wait() // outside the lock: a scripted kill may be waiting for it
	return nil
}

// Addr returns host:port of the listener, "" before Start or Serve.
func (e *Engine) Addr() string {
	e.life.Lock()
	defer e.life.Unlock()
	return e.addr
}

// SetAPIKey replaces the key; "" asks for none.
func (e *Engine) SetAPIKey(key string) {
	e.mu.Lock()
	e.key = key
	e.mu.Unlock()
}

// Sleep puts the engine to sleep as /sleep does: level 1 and above drop the cache.
// Requests wait until Wake.
func (e *Engine) Sleep(level int) {
	for _, r := range e.ranks {
		r.mu.Lock()
		r.asleep = level
		if level > 0 {
			r.core.Reset()
		}
		r.mu.Unlock()
	}
}

// Wake ends Sleep.
func (e *Engine) Wake() {
	for _, r := range e.ranks {
		r.mu.Lock()
		r.asleep = 0
		r.mu.Unlock()
		r.kick()
	}
}

// Counters tells the truth; see the type.
func (e *Engine) Counters() Counters {
	e.mu.Lock()
	c := e.past
	c.Epoch = e.epoch
	e.mu.Unlock()
	c.Requests = e.requests.Load()
	for _, r := range e.ranks {
		r.mu.Lock()
		s := r.core.Stats()
		c.add(s, r.m.generated)
		c.Refused += r.m.rejected
		c.Running += s.Running
		c.Waiting += s.Waiting + s.Pending
		c.UsedBlocks += s.UsedBlocks
		c.IdleBlocks += s.IdleBlocks
		c.TotalBlocks += s.TotalBlocks
		c.ResidentPrefixes += r.heads.resident(r.core)
		r.mu.Unlock()
	}
	return c
}
