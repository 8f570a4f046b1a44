package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "show the fleet of a running router",
		UsageText: "prefixring status --watch",
		Flags: append(routerFlags(),
			&cli.BoolFlag{Name: "watch", Usage: "show it anew each second until interrupted"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		),
		Action: func(c *cli.Context) error {
			for {
				if err := showStatus(c); err != nil || !c.Bool("watch") {
					return err
				}
				select {
				case <-c.Context.Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		},
	}
}

func showStatus(c *cli.Context) error {
	b, err := ask(c, http.MethodGet, "/api/v1/fleet", nil)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		_, err := c.App.Writer.Write(b)
		return err
	}
	var v fleetView
	if err := json.Unmarshal(b, &v); err != nil {
		return failed{exitUnreachable, fmt.Errorf("cannot read the router's answer: %w", err)}
	}
	var page bytes.Buffer
	if c.Bool("watch") {
		page.WriteString("\x1b[H\x1b[2J")
	}
	fmt.Fprintf(&page, "ready: %s\n", v.Ready)
	printNodes(&page, v.Nodes)
	printDiscovery(&page, v.Discovery)
	t := &v.Totals
	fmt.Fprintf(&page, "%d requests, %d errors", t.Requests, t.Errors)
	if t.HitRate != nil {
		fmt.Fprintf(&page, ", %.1f %% of %d prompt tokens from cache", 100**t.HitRate, t.PromptTokens)
	}
	if t.UnknownUsages > 0 {
		fmt.Fprintf(&page, ", %d requests without a cached-token report", t.UnknownUsages)
	}
	fmt.Fprintln(&page)
	printChannels(&page, v.Channels)
	printRoutes(&page, v.Routes)
	printBindings(&page, v.Bindings)
	printLearning(&page, v.Pools)
	_, err = c.App.Writer.Write(page.Bytes())
	return err
}

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say where a request body would go and why; no engine is touched",
		UsageText: "prefixring explain --body request.json\nprefixring explain --engine http://a:8000,model=m --engine http://b:8000,model=m --body request.json",
		Description: "Asks a running router (--router), which knows loads, states and warmth. With --config or --engine it\n" +
			"decides by placement alone, as if all engines were idle and ready.",
		Flags: append(append(configFlags(), routerFlags()...),
			&cli.StringFlag{Name: "body", Required: true, Usage: "`FILE` with the request body, - for standard input"},
			&cli.StringFlag{Name: "path", Value: "/v1/chat/completions", Usage: "`PATH` that it would be sent to"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		),
		Action: func(c *cli.Context) error {
			body, err := readBody(c.String("body"))
			if err != nil {
				return failed{exitUnreachable, err}
			}
			var b []byte
			if c.String("config") != "" || len(c.StringSlice("engine")) > 0 {
				b, err = explainOffline(c, body)
			} else {
				b, err = ask(c, http.MethodPost, "/api/v1/explain?path="+url.QueryEscape(c.String("path")), body)
			}
			if err != nil {
				return err
			}
			if c.Bool("json") {
				_, err = c.App.Writer.Write(b)
				return err
			}
			return printExplanation(c.App.Writer, b)
		},
	}
}

func readBody(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(os.Stdin)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the body: %w", err)
	}
	return b, nil
}

// printExplanation writes the JSON facts as lines that a person reads.
func printExplanation(out io.Writer, b []byte) error {
	var e explanation
	if err := json.Unmarshal(b, &e); err != nil {
		return failed{exitUnreachable, fmt.Errorf("cannot read the explanation: %w", err)}
	}
	fmt.Fprintf(out, "protocol     %s\nmodel        %s  (pool %s)\n", e.Protocol, e.Model, e.Pool)
	fmt.Fprintf(out, "key          %s  made of: %s", e.Fingerprint, e.Key)
	if e.Named != "" {
		fmt.Fprintf(out, " (%s)", e.Named)
	}
	fmt.Fprintf(out, "\nprefix       about %d of %d prompt tokens are static (estimate)", e.StaticTokens, e.PromptTokens)
	if e.Fat {
		fmt.Fprint(out, "; guarded by the warm gate")
	}
	fmt.Fprintln(out)
	printPrefix(out, &e)
	d := &e.Ring
	if d.Node != "" {
		fmt.Fprintf(out, "goes to      %s  (%s; %d owners of %d usable nodes, partition %d)\n", d.Node, d.Reason, d.K, d.Usable, d.Partition)
	} else {
		fmt.Fprintf(out, "goes nowhere %s\n", d.Refusal)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RANK\tENGINE\tOWNER\tWARMTH\tTAKES\tLOAD\tBOUND\tVERDICT")
	for _, n := range d.Candidates {
		owner := ""
		switch {
		case n.Owner:
			owner = "yes"
		case n.Next:
			owner = "next"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%s\n", n.Rank, n.Name, owner, e.Warmth[n.Name], n.Level, float64(n.Load)/1000, float64(n.Limit)/1000, n.Verdict)
	}
	return w.Flush()
}

// explainOffline decides with the configuration alone, as if all engines were ready.
func explainOffline(c *cli.Context, body []byte) ([]byte, error) {
	cfg, err := loadConfig(c)
	if err != nil {
		return nil, err
	}
	s, err := newServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, usageError(err)
	}
	defer s.fleet.proxy.Close()
	p, ok := dialect.ProtocolOf(c.String("path"))
	if !ok {
		return nil, usageError(fmt.Errorf("path %q is not served on the data port", c.String("path")))
	}
	if err := s.fleet.assumeReady(p, body); err != nil {
		return nil, usageError(err)
	}
	v, err := s.fleet.explain(c.String("path"), body)
	if err != nil {
		return nil, failed{exitNo, err}
	}
	return json.Marshal(v)
}
