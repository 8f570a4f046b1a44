package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/prewarm"
)

// demoRouter is a router of its own with its engines, as serve would run it.
type demoRouter struct {
	server *server
	fleet  *demoFleet
	cancel context.CancelFunc
	done   chan error
}

// routed is the second arm: the same traffic through prefixring, after a prewarm.
func (d *demo) routed(ctx context.Context) (demoArm, *demoRouter, error) {
	f, err := d.start()
	if err != nil {
		return demoArm{}, nil, err
	}
	r, err := startRouter(ctx, f)
	if err != nil {
		f.close()
		return demoArm{}, nil, err
	}
	o := d.traffic(f, "prefixring ")
	o.URL = "http://" + r.server.data.Addr().String()
	warm, err := d.prewarm(ctx, r, &o)
	if err == nil {
		var res bench.Result
		if res, err = bench.Run(ctx, o); err == nil {
			arm := newDemoArm(&res, d.speed)
			arm.Prewarm = warm
			return arm, r, nil
		}
	}
	r.stop()
	return demoArm{}, nil, failed{exitUnreachable, err}
}

// startRouter runs serve in this process and waits until every engine serves.
func startRouter(ctx context.Context, f *demoFleet) (*demoRouter, error) {
	cfg := &config.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Pools: []config.Pool{{Name: "default"}}}
	for i, url := range f.urls {
		e := config.Engine{Name: f.names[i], URL: url, Weight: 1}
		if i >= demoEngines/2 {
			e.Dialect = "sglang"
		}
		cfg.Pools[0].Engines = append(cfg.Pools[0].Engines, e)
	}
	off := false
	cfg.Telemetry.AccessLog = &off
	s, err := newServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &demoRouter{server: s, fleet: f, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.run(run, io.Discard) }()
	limit, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !allServe(s.fleet.health.Snapshot()) {
		select {
		case <-poll.C:
		case <-limit.Done():
			r.stop()
			return nil, failed{exitUnreachable, fmt.Errorf("the simulated engines did not become ready: %w", limit.Err())}
		}
	}
	return r, nil
}

// stop ends the router and its engines.
func (r *demoRouter) stop() {
	r.cancel()
	<-r.done
	r.fleet.close()
}

// demoPrewarm is what the prewarm did, in simulated seconds.
type demoPrewarm struct {
	Prefixes int     `json:"prefixes"`
	Items    int     `json:"items"` // prefix on node
	Warm     int     `json:"proven_warm"`
	Seconds  float64 `json:"seconds"`
}

// prewarm writes the manifest that an operator would write, plans it and runs it.
func (d *demo) prewarm(ctx context.Context, r *demoRouter, o *bench.Options) (*demoPrewarm, error) {
	dir, err := os.MkdirTemp("", "prefixring-demo")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var b strings.Builder
	b.WriteString("prefixes:\n")
	for i, share := range o.Workload.Shares() {
		file := fmt.Sprintf("prefix-%d.json", i+1)
		if err := os.WriteFile(filepath.Join(dir, file), o.Example(i), 0o600); err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "  - {name: prefix-%d, model: %s, request: %s, share: %.4f}\n", i+1, demoModel, file, share)
	}
	m, err := prewarm.ParseManifest([]byte(b.String()), dir)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	report, err := r.server.fleet.prewarm(ctx, m, prewarm.PlanOptions{}, prewarm.Options{
		Events: func(e prewarm.Event) {
			if e.Kind == prewarm.EventWarm || e.Kind == prewarm.EventFailed {
				fmt.Fprintf(d.view, "\rprewarm      %d of %d (prefix, engine) pairs proven warm ", e.Done, e.Total)
			}
		},
	})
	fmt.Fprintln(d.view)
	if err != nil {
		return nil, err
	}
	return &demoPrewarm{
		Prefixes: len(m.Prefixes), Items: len(report.Items), Warm: report.Warm,
		Seconds: time.Since(began).Seconds() * d.speed,
	}, nil
}

// invite tells what to try while everything is left running.
func (r *demoRouter) invite(w io.Writer) {
	data, adm := "http://"+r.server.data.Addr().String(), "http://"+r.server.admin.Addr().String()
	fmt.Fprintf(w, "\nleft running until Ctrl-C. Try:\n")
	fmt.Fprintf(w, "  prefixring status --router %s --watch\n", adm)
	fmt.Fprintf(w, "  curl -s %s/v1/models\n", data)
	fmt.Fprintf(w, "  curl -si %s/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Prefixring-Explain: 1' -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'\n", data, demoModel)
}
