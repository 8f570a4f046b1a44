package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// Endpoint is one engine, or one data-parallel rank of it, as a source knows it.
type Endpoint struct {
	// Name is unique within a set and stays when the address changes, as far as the
	// source has such a name.
	Name string
	// URL is the base URL, with an IPv6 address in brackets.
	URL string
	// ServerName is the name to check an https certificate against, where the URL holds
	// an address; empty means the URL's host.
	ServerName string
	// Ready is false while the source says that the engine should get no requests yet.
	Ready bool
	// Terminating says that the engine is about to go: what runs may finish.
	Terminating bool
	// What the source may say beyond that; zero means that it does not.
	Dialect string   // "vllm" or "sglang"
	Models  []string // names it serves
	Rank    string   // data-parallel rank
	Weight  float64  // share relative to the others
}

// Source finds engines.
//
// Run sends full sets, never differences, and never nil for "nothing new": the first as
// soon as it is known, then one whenever the set has changed, and one each time that an
// unchanged set has been confirmed, which is what keeps Keeper.Age small. A set that
// was sent is not touched again. What cannot be read is not sent: a set is empty only
// when the source says so.
//
// Run returns when ctx has ended, or with an error when it cannot go on; it is then run
// again after a while. It does not close out, and everything that it has started has
// ended when it returns.
type Source interface {
	Run(ctx context.Context, out chan<- []Endpoint) error
}

// send hands a set over unless ctx ends first.
func send(ctx context.Context, out chan<- []Endpoint, set []Endpoint) error {
	if set == nil {
		set = []Endpoint{}
	}
	select {
	case out <- set:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// order brings a set into the one order in which equal sets compare equal.
func order(set []Endpoint) []Endpoint {
	slices.SortFunc(set, func(a, b Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return set
}

func equal(a, b []Endpoint) bool {
	return slices.EqualFunc(a, b, func(x, y Endpoint) bool {
		models := slices.Equal(x.Models, y.Models)
		x.Models, y.Models = nil, nil
		return models && fmt.Sprint(x) == fmt.Sprint(y)
	})
}

// check refuses a set that cannot be served from, naming the first fault.
func check(set []Endpoint) error {
	seen := make(map[string]bool, len(set))
	for i := range set {
		e := &set[i]
		if e.Name == "" {
			return fmt.Errorf("cannot use engine %d: it has no name", i+1)
		}
		if seen[e.Name] {
			return fmt.Errorf("cannot use engine %q: its name stands twice", e.Name)
		}
		seen[e.Name] = true
		if _, err := base(e.URL); err != nil {
			return fmt.Errorf("cannot use engine %q: %w", e.Name, err)
		}
		if e.Weight < 0 || e.Dialect != "" && e.Dialect != "vllm" && e.Dialect != "sglang" {
			return fmt.Errorf("cannot use engine %q: weight %v and dialect %q", e.Name, e.Weight, e.Dialect)
		}
	}
	return nil
}

// base parses a base URL; "host:port" alone means http.
func base(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("its URL needs http or https and a host")
	}
	return u, nil
}

// at builds the base URL of an address, with brackets where IPv6 needs them (field
// case B62).
func at(scheme, host, port string) string {
	if scheme == "" {
		scheme = "http"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
