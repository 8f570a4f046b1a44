package discovery

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a source that sends what the test tells it to, and fails when told.
type scripted struct {
	sets chan []Endpoint
	fail chan error
	runs atomic.Int64
}

func (s *scripted) Run(ctx context.Context, out chan<- []Endpoint) error {
	s.runs.Add(1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.fail:
			return err
		case set := <-s.sets:
			if send(ctx, out, set) != nil {
				return nil
			}
		}
	}
}

type keeping struct {
	*testing.T
	k   *Keeper
	s   *scripted
	mu  sync.Mutex
	got []string
}

func keep(t *testing.T, o KeeperOptions, f func(*keeping)) {
	synctest.Test(t, func(t *testing.T) {
		g := &keeping{T: t, s: &scripted{sets: make(chan []Endpoint), fail: make(chan error)}}
		o.OnSet = func(set []Endpoint) { g.mu.Lock(); defer g.mu.Unlock(); g.got = append(g.got, show(set)) }
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
		g.k = NewKeeper("test", g.s, o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.k.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		f(g)
	})
}

func (g *keeping) send(names ...string) {
	set := []Endpoint{}
	for _, n := range names {
		set = append(set, Endpoint{Name: n, URL: "http://" + n, Ready: true})
	}
	g.s.sets <- set
	synctest.Wait()
}

func (g *keeping) told(want ...string) {
	g.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.Join(g.got, " | ") != strings.Join(want, " | ") {
		g.Fatalf("told %q, want %q", g.got, want)
	}
}

func TestKeeperTellsChangesOnly(t *testing.T) {
	keep(t, KeeperOptions{}, func(g *keeping) {
		if _, known := g.k.Set(); known || g.k.Check() == nil {
			t.Error("knows something before the first set")
		}
		g.send("b", "a")
		g.send("a", "b")
		g.send("a", "b", "c")
		g.told("a=http://a, b=http://b", "a=http://a, b=http://b, c=http://c")
		if err := g.k.Check(); err != nil {
			t.Error(err)
		}
	})
}

func TestKeeperEmptySetNeedsItsGrace(t *testing.T) {
	keep(t, KeeperOptions{EmptyGrace: time.Minute}, func(g *keeping) {
		g.send("a")
		for range 5 {
			g.send()
			time.Sleep(10 * time.Second)
		}
		g.told("a=http://a")
		g.send("a") // it was an accident; the grace starts anew
		g.send()
		time.Sleep(59 * time.Second)
		g.send()
		g.told("a=http://a")
		time.Sleep(2 * time.Second)
		g.send()
		g.told("a=http://a", "")
	})
}

func TestKeeperEmptyFirstSetIsASet(t *testing.T) {
	keep(t, KeeperOptions{}, func(g *keeping) {
		g.send()
		g.told("")
		if set, known := g.k.Set(); !known || len(set) != 0 {
			t.Errorf("set %v, known %v", set, known)
		}
	})
}

func TestB61KnowledgeThatIsTooOldShows(t *testing.T) {
	keep(t, KeeperOptions{Limit: time.Minute}, func(g *keeping) {
		g.send("a")
		time.Sleep(59 * time.Second)
		if err := g.k.Check(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if err := g.k.Check(); err == nil || !strings.Contains(err.Error(), "1m1s ago") {
			t.Errorf("Check = %v", err)
		}
		g.send("a") // confirmed, though unchanged
		if age, ok := g.k.Age(); !ok || age != 0 || g.k.Check() != nil {
			t.Errorf("age %v, check %v", age, g.k.Check())
		}
		g.told("a=http://a")
	})
}

func TestKeeperRunsAFailedSourceAgainAndKeepsItsSet(t *testing.T) {
	keep(t, KeeperOptions{Rand: func() float64 { return 0.999 }}, func(g *keeping) {
		g.send("a")
		boom := errors.New("boom")
		g.s.fail <- boom
		time.Sleep(600 * time.Millisecond)
		g.s.fail <- boom
		synctest.Wait()
		if g.s.runs.Load() != 2 {
			t.Errorf("%d runs", g.s.runs.Load())
		}
		time.Sleep(700 * time.Millisecond) // the second wait is twice as long
		if g.s.runs.Load() != 2 {
			t.Error("no backoff")
		}
		time.Sleep(400 * time.Millisecond)
		if g.s.runs.Load() != 3 {
			t.Errorf("%d runs", g.s.runs.Load())
		}
		g.told("a=http://a")
		g.send("a", "b")
		g.told("a=http://a", "a=http://a, b=http://b")
	})
}

func TestKeeperRefusesSetsThatCannotBeUsed(t *testing.T) {
	keep(t, KeeperOptions{}, func(g *keeping) {
		g.send("a")
		for _, bad := range [][]Endpoint{
			{{Name: "", URL: "http://a"}},
			{{Name: "a", URL: "http://a"}, {Name: "a", URL: "http://b"}},
			{{Name: "a", URL: "http://fd00::1:8000"}},
			{{Name: "a", URL: "http://a", Dialect: "gpt"}},
			{{Name: "a", URL: "http://a", Weight: -1}},
		} {
			g.s.sets <- bad
			synctest.Wait()
		}
		g.told("a=http://a")
	})
}

func TestStaticConfirmsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Static{Endpoints: []Endpoint{{Name: "a", URL: "[::1]:8000"}}}
		k := NewKeeper("static", s, KeeperOptions{Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		time.Sleep(time.Hour)
		if age, ok := k.Age(); !ok || age > staticPeriod {
			t.Errorf("age %v, known %v", age, ok)
		}
		if set, _ := k.Set(); len(set) != 1 || !set[0].Ready {
			t.Errorf("set %+v", set)
		}
		cancel()
		<-done
	})
}
