package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/prewarm"
)

func prewarmCaptureCommand() *cli.Command {
	return &cli.Command{
		Name:      "capture",
		Usage:     "make a manifest entry from the body of a real request",
		UsageText: "prefixring prewarm capture --body request.json --name winter-sale --dir manifests >> manifests/sale.yaml",
		Description: "Writes NAME.json with the shared part of the body to --dir and prints the entry, to be put under prefixes:. Nothing of\n" +
			"the customer's turns is kept.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "body", Required: true, Usage: "`FILE` with the request body, - for standard input"},
			&cli.StringFlag{Name: "name", Required: true, Usage: "`NAME` of the entry"},
			&cli.StringFlag{Name: "protocol", Usage: "chat, completions, responses or messages (default: told from the body)"},
			&cli.IntFlag{Name: "static-bytes", Usage: "length of the leading text that everyone shares, in bytes (default: all of it)"},
			&cli.StringFlag{Name: "dir", Value: ".", Usage: "`DIRECTORY` of the manifest"},
		},
		Action: capture,
	}
}

func capture(c *cli.Context) error {
	o := prewarm.CaptureOptions{Name: c.String("name"), StaticBytes: c.Int("static-bytes")}
	if c.IsSet("protocol") {
		var err error
		if o.Protocol, err = parseProtocol(c.String("protocol")); err != nil {
			return usageError(err)
		}
	}
	if o.StaticBytes < 0 {
		return usageError(errors.New("--static-bytes is negative"))
	}
	body, err := readBody(c.String("body"))
	if err != nil {
		return failed{exitUnreachable, err}
	}
	got, err := prewarm.Capture(body, o)
	if err != nil {
		return usageError(err)
	}
	path := filepath.Join(c.String("dir"), got.BodyFile)
	// A body is as secret as the prompt, and an entry that another one uses must not change
	// under it: the file is the owner's alone and is never written over.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed{exitNo, fmt.Errorf("cannot write the body: %w", err)}
	}
	_, werr := f.Write(got.Body)
	if err := errors.Join(werr, f.Close()); err != nil {
		os.Remove(path)
		return failed{exitNo, fmt.Errorf("cannot write the body: %w", err)}
	}
	if len(got.Dropped) > 0 {
		fmt.Fprintf(c.App.ErrWriter, "left out: %s\n", strings.Join(got.Dropped, ", "))
	}
	fmt.Fprintf(c.App.ErrWriter, "written: %s\n", path)
	_, err = fmt.Fprint(c.App.Writer, got.YAML)
	return err
}

func prewarmWatchCommand() *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "show what a running router keeps warm",
		UsageText: "prefixring prewarm watch --router http://127.0.0.1:9090",
		Flags: append(routerFlags(),
			&cli.BoolFlag{Name: "once", Usage: "show it once instead of each second; exits 1 if something that should be warm is not"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON, one line each time"},
		),
		Action: func(c *cli.Context) error {
			for {
				cells, err := watched(c)
				if err != nil {
					return err
				}
				if err := showCells(c, cells); err != nil || c.Bool("once") {
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

// watched asks the router.
func watched(c *cli.Context) ([]prewarm.CellStatus, error) {
	b, err := ask(c, http.MethodGet, "/api/v1/fleet", nil)
	if err != nil {
		return nil, err
	}
	var v fleetView
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, failed{exitUnreachable, fmt.Errorf("cannot read the router's answer: %w", err)}
	}
	if v.Prewarm == nil {
		return nil, failed{exitNo, errors.New("the router keeps nothing warm: it has no manifest (prewarm.manifest), or no engine is ready")}
	}
	return v.Prewarm, nil
}

func showCells(c *cli.Context, cells []prewarm.CellStatus) error {
	var page bytes.Buffer
	if c.Bool("json") {
		if err := json.NewEncoder(&page).Encode(cells); err != nil {
			return err
		}
	} else {
		if !c.Bool("once") {
			page.WriteString("\x1b[H\x1b[2J")
		}
		printCells(&page, cells)
	}
	if _, err := c.App.Writer.Write(page.Bytes()); err != nil {
		return err
	}
	if !c.Bool("once") {
		return nil
	}
	cold := 0
	for i := range cells {
		if s := cells[i].State; s == prewarm.CellCold || s == prewarm.CellWarming && !cells[i].Proof.Warm {
			cold++
		}
	}
	if cold > 0 {
		return failed{exitNo, fmt.Errorf("%d of %d places are not warm", cold, len(cells))}
	}
	return nil
}
