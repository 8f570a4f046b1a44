package fakeengine

import (
	"strings"
	"sync"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Every page may be asked for while the engine restarts: a restart replaces what pages
// read. The race detector is the judge.
func TestPagesMayBeReadDuringRestarts(t *testing.T) {
	for _, d := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		t.Run(d.String(), func(t *testing.T) {
			e, c := start(t, Options{Dialect: d, Ranks: 2, DevMode: true, LoadTracking: true, HealthDelay: -1})
			var pages []string
			for route := range e.routes() {
				if path, ok := strings.CutPrefix(route, "GET "); ok {
					pages = append(pages, path)
				}
			}
			if len(pages) < 6 {
				t.Fatalf("only %d pages: %v", len(pages), pages)
			}
			pages = append(pages, "/oracle")
			stop, answered := make(chan struct{}), make(chan struct{})
			var wg sync.WaitGroup
			for _, page := range pages {
				wg.Go(func() {
					for {
						_, _, _ = c.try(page, "") // a restart cuts connections
						select {
						case answered <- struct{}{}:
						case <-stop:
							return
						}
					}
				})
			}
			// Restarts keep pace with answers, so that they meet pages in every stage.
			for range 200 {
				<-answered
				<-answered
				if err := e.Restart(); err != nil {
					t.Error(err)
				}
			}
			close(stop)
			wg.Wait()
			if n := e.Counters().Epoch; n != 200 {
				t.Errorf("epoch %d after 200 restarts", n)
			}
		})
	}
}
