package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/admin"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/telemetry"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run the router",
		UsageText: "prefixring serve --engine http://10.0.0.7:8000 --engine http://10.0.0.8:8000,dialect=sglang\n" +
			"prefixring serve --config configs/router.yaml",
		Description: "Engines come from the file or from --engine, not from both. SIGHUP or a change of the file reads it again;\n" +
			"SIGTERM drains: /readyz fails, open streams finish, then the process ends. A second signal ends it at once.",
		Flags: append(configFlags(),
			&cli.StringFlag{Name: "log-format", Value: "json", Usage: "json or text"},
			&cli.DurationFlag{Name: "reload-interval", Value: recheck, Usage: "between looks at the files of the configuration; 0 = only on SIGHUP"},
		),
		Action: func(c *cli.Context) error {
			cfg, err := loadConfig(c)
			if err != nil {
				return err
			}
			log, err := newLogger(c.App.ErrWriter, c.String("log-format"), cfg.Telemetry.LogLevel)
			if err != nil {
				return err
			}
			s, err := newServer(cfg, log)
			if err != nil {
				return usageError(err)
			}
			s.look = c.Duration("reload-interval")
			s.reread = func() (*config.Config, error) { return loadConfig(c) }
			return s.run(c.Context, c.App.Writer)
		},
	}
}

// configFlags are those of every command that takes a configuration.
func configFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, EnvVars: []string{"PREFIXRING_CONFIG"}, Usage: "read the configuration from `FILE`"},
		&cli.StringSliceFlag{Name: "engine", Aliases: []string{"e"}, Usage: "an engine, `URL[,name=N][,dialect=vllm or sglang][,model=M]`; once per engine"},
		&cli.StringFlag{Name: "listen", Usage: "`ADDRESS` of the data port (default: " + config.DefaultListen + ")"},
		&cli.StringFlag{Name: "admin", Usage: "`ADDRESS` of the admin port, or off (default: " + config.DefaultAdmin + ")"},
		&cli.StringFlag{Name: "admin-token-file", Usage: "`FILE` with the tokens of operators; needed when --admin is not loopback"},
	}
}

// loadConfig reads the file or the flags. Flags for addresses override the file.
func loadConfig(c *cli.Context) (*config.Config, error) {
	file, engines := c.String("config"), c.StringSlice("engine")
	switch {
	case file != "" && len(engines) > 0:
		return nil, usageError(errors.New("--config and --engine exclude each other: put the engines into the file"))
	case file == "" && len(engines) == 0:
		return nil, usageError(errors.New("no engines: give --engine URL once per engine, or --config FILE"))
	case file == "":
		cfg, err := config.FromFlags(engines, c.String("listen"), "")
		if err == nil {
			err = cfg.SetAdmin(c.String("admin"), c.String("admin-token-file"))
		}
		if err != nil {
			return nil, usageError(err)
		}
		return cfg, nil
	}
	cfg, err := config.Load(file)
	if err != nil {
		return nil, usageError(err)
	}
	if a := c.String("listen"); a != "" {
		cfg.Listen = a
	}
	if err := cfg.SetAdmin(c.String("admin"), c.String("admin-token-file")); err != nil {
		return nil, usageError(err)
	}
	return cfg, nil
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if level != "" {
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, usageError(fmt.Errorf("unknown log level %q", level))
		}
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, usageError(fmt.Errorf("unknown --log-format %q; there are json and text", format))
}

// server is a running router: data plane, admin port, health and what ties them.
type server struct {
	cfg     *config.Config
	log     *slog.Logger
	fleet   *fleet
	metrics *telemetry.Metrics
	totals  *telemetry.Totals
	reread  func() (*config.Config, error) // nil = the configuration cannot change
	look    time.Duration                  // between looks at the files of the configuration; 0 = none

	data, admin net.Listener                 // admin is nil when it is off
	adminTLS    *tls.Config                  // nil = the admin port speaks plain HTTP
	tokens      atomic.Pointer[admin.Tokens] // of operators; nil = none
}

// newServer wires everything up. It opens no port and polls nothing.
func newServer(cfg *config.Config, log *slog.Logger) (*server, error) {
	s := &server{cfg: cfg, log: log, metrics: telemetry.NewMetrics(), totals: &telemetry.Totals{}}
	applyBindingEnv(cfg, log, os.Getenv)
	var err error
	if s.fleet, err = newFleet(log, s.metrics); err != nil {
		return nil, err
	}
	sinks := telemetry.Sinks{s.metrics, s.totals}
	if on := cfg.Telemetry.AccessLog; on == nil || *on {
		sinks = append(sinks, telemetry.AccessLog{Log: log})
	}
	o, err := proxyOptions(cfg)
	if err != nil {
		return nil, err
	}
	o.Sink, o.Report, o.Log = sinks, s.fleet.report, log
	if o.TLS, err = serverTLS(cfg); err != nil {
		return nil, err
	}
	if s.fleet.proxy, err = proxy.New(o); err != nil {
		return nil, err
	}
	if err := s.fleet.apply(cfg); err != nil {
		return nil, err
	}
	s.fleet.gauges()
	if err := s.protect(cfg); err != nil {
		return nil, err
	}
	return s, nil
}

// listen opens the ports, so that a port in use is told before anything else starts.
func (s *server) listen() error {
	var err error
	if s.data, err = net.Listen("tcp", s.cfg.Listen); err != nil {
		return failed{exitUnreachable, fmt.Errorf("cannot listen on %s (listen): %w", s.cfg.Listen, err)}
	}
	if s.cfg.Admin == "off" {
		return nil
	}
	if s.admin, err = net.Listen("tcp", s.cfg.Admin); err != nil {
		s.data.Close()
		return failed{exitUnreachable, fmt.Errorf("cannot listen on %s (admin): %w", s.cfg.Admin, err)}
	}
	if s.adminTLS != nil {
		s.admin = tls.NewListener(s.admin, s.adminTLS)
	}
	return nil
}

// run serves until ctx ends, then drains. All goroutines have ended when it returns.
func (s *server) run(ctx context.Context, out io.Writer) error {
	if s.data == nil {
		if err := s.listen(); err != nil {
			return err
		}
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if err := s.fleet.newKeeper(); err != nil {
		return usageError(err)
	}
	wg.Go(func() { s.fleet.health.Run(background) })
	wg.Go(func() { s.fleet.discover(background) })
	if s.fleet.keeper != nil {
		wg.Go(func() { s.fleet.keepWarm(background) })
	}
	if s.reread != nil {
		wg.Go(func() { s.watchConfig(background) })
	}
	if s.admin != nil {
		srv := admin.Server(s.adminHandler())
		srv.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
		wg.Go(func() { srv.Serve(s.admin) })
		defer srv.Close()
	}
	served := make(chan error, 1)
	go func() { served <- s.fleet.proxy.Serve(s.data) }()
	s.banner(out)
	select {
	case err := <-served:
		s.fleet.proxy.Close()
		return failed{exitUnreachable, fmt.Errorf("cannot serve: %w", err)}
	case <-ctx.Done():
	}
	s.drain()
	<-served
	s.farewell(out)
	return nil
}

// drain ends the data plane in order: readiness fails first, so that balancers stop
// sending; then no new request is taken and open ones finish. A second signal cuts it.
func (s *server) drain() {
	again, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s.fleet.leaving.Store(true)
	s.fleet.proxy.Retire() // answers close their connections from here on: clients move to another router
	s.log.Info("draining", "delay", s.cfg.Limits.DrainDelay.D().String(), "grace", s.cfg.Limits.DrainGrace.D().String())
	select {
	case <-time.After(s.cfg.Limits.DrainDelay.D()):
	case <-again.Done():
	}
	grace, cancel := context.WithTimeout(again, s.cfg.Limits.DrainGrace.D())
	defer cancel()
	if err := s.fleet.proxy.Drain(grace); err != nil {
		s.log.Warn("some requests were cut", "error", err)
	}
}

// banner says what runs, which engines there are, and what is off.
func (s *server) banner(out io.Writer) {
	fmt.Fprintf(out, "prefixring %s\n  data   http://%s\n", version(), s.data.Addr())
	if s.admin != nil {
		fmt.Fprintf(out, "  admin  %s://%s  (/healthz /readyz /metrics /api/v1/fleet)\n", s.adminScheme(), s.admin.Addr())
	}
	for _, st := range s.fleet.health.Snapshot() {
		fmt.Fprintf(out, "  engine %-20s %-7s %s  %s\n", st.Name, st.Engine, st.URL, st.State)
	}
	for _, d := range s.fleet.discoveries() {
		fmt.Fprintf(out, "  find   engines of pool %s by %s\n", d.Pool, d.Source)
	}
	for _, c := range s.fleet.channelViews() {
		fmt.Fprintf(out, "  leaves %s, key %s of channel %s: where a route leads there\n", c.Host, c.Key, c.Channel)
	}
	if k := s.fleet.known; k != nil {
		fmt.Fprintf(out, "  warm   %d prefixes of %s, kept warm from when the engines are ready\n", len(k.manifest.Prefixes), k.manifest.Path())
	}
	for _, off := range s.off() {
		fmt.Fprintf(out, "  off    %s\n", off)
	}
}

// off lists features that are not in use, so that nobody believes they are.
func (s *server) off() []string {
	var out []string
	add := func(is bool, what string) {
		if is {
			out = append(out, what)
		}
	}
	add(s.admin != nil && !s.cfg.AdminAccess.Protected(), "admin credentials: everyone on this machine may use the admin port (admin_access)")
	add(s.admin != nil && s.cfg.AdminAccess.Protected() && s.adminTLS == nil, "TLS on the admin port: its tokens can be read on the way (admin_access.cert_file)")
	add(s.cfg.TLS.CertFile == "", "TLS on the data port (tls.cert_file)")
	keys := keysWord(s.cfg)
	add(keys != "", keys)
	add(!s.cfg.Bindings.Enabled, "bindings (bindings.enabled)")
	add(len(s.cfg.Channels) == 0, nothingLeaves)
	add(s.cfg.Prewarm.Manifest == "", "prewarm (prewarm.manifest)")
	add(s.admin == nil, "admin port")
	return out
}

// farewell sums up what was counted.
func (s *server) farewell(out io.Writer) {
	t := s.totals
	fmt.Fprintf(out, "served %d requests, %d errors", t.Requests.Load(), t.Errors.Load())
	if p := t.Prompt.Load(); p > 0 {
		fmt.Fprintf(out, "; %.1f %% of %d prompt tokens came from cache", 100*float64(t.Cached.Load())/float64(p), p)
	}
	if u := t.UnknownOf.Load(); u > 0 {
		fmt.Fprintf(out, "; %d requests without a cached-token report", u)
	}
	fmt.Fprintln(out)
}
