package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DNS finds engines by name.
//
// With SRV set, Name is looked up as an SRV name ("_http._tcp.engines.ns.svc") and each
// target becomes an engine under its own host name: a StatefulSet's pods keep theirs
// when their addresses change. Targets that have no address are left out.
//
// Otherwise Name is looked up as a host, and each address becomes an engine under
// "address:port". Addresses are all that such a name has: an engine that returns under
// another address is another engine.
//
// One family of addresses is used, so that a dual-stack engine is one engine.
type DNS struct {
	Name   string
	SRV    bool
	Port   int    // for host names; SRV records bring their own
	Scheme string // default http
	Family string // "4", "6", or "" for IPv4 and, where there is none, IPv6

	// The name is asked again when the shortest TTL of the answers has passed, but not
	// before Min and not after Max. Defaults 1 s and 30 s; the latter also where no TTL
	// was seen.
	Min, Max time.Duration
	Timeout  time.Duration // of one look-up; default 5 s

	// Dial connects to a DNS server; nil means the system's way. Servers and search list
	// come from the system's resolver configuration.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Run implements Source. A name that does not exist is an empty set; a look-up that
// fails is not sent, so that the last set stays while its age grows.
func (d *DNS) Run(ctx context.Context, out chan<- []Endpoint) error {
	lo, hi, limit := d.Min, d.Max, d.Timeout
	if lo <= 0 {
		lo = time.Second
	}
	if hi <= 0 {
		hi = 30 * time.Second
	}
	if limit <= 0 {
		limit = 5 * time.Second
	}
	if !d.SRV && (d.Port < 1 || d.Port > 65535) {
		return fmt.Errorf("cannot look for engines at %s: port %d", d.Name, d.Port)
	}
	for {
		lookup, cancel := context.WithTimeout(ctx, limit)
		set, ttl, err := d.find(lookup)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err // the keeper logs it, waits and runs us again
		}
		if send(ctx, out, set) != nil {
			return nil
		}
		if ttl <= 0 {
			ttl = hi
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(max(ttl, lo), hi)):
		}
	}
}

// find looks the name up once. ttl is 0 if no TTL was seen.
func (d *DNS) find(ctx context.Context) (set []Endpoint, ttl time.Duration, err error) {
	watch := &ttlWatch{dial: d.Dial}
	r := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: watch.connect}
	if d.SRV {
		set, err = d.services(ctx, r)
	} else {
		set, err = d.hosts(ctx, r)
	}
	var missing *net.DNSError
	if errors.As(err, &missing) && missing.IsNotFound {
		return []Endpoint{}, watch.shortest(), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cannot look up engines: %w", err)
	}
	return set, watch.shortest(), nil
}

func (d *DNS) hosts(ctx context.Context, r *net.Resolver) ([]Endpoint, error) {
	addrs, err := d.addresses(ctx, r, d.Name)
	if err != nil {
		return nil, err
	}
	set := make([]Endpoint, 0, len(addrs))
	port := strconv.Itoa(d.Port)
	for _, a := range addrs {
		set = append(set, Endpoint{Name: net.JoinHostPort(a.String(), port), URL: at(d.Scheme, a.String(), port),
			ServerName: strings.TrimSuffix(d.Name, "."), Ready: true})
	}
	return order(set), nil
}

func (d *DNS) services(ctx context.Context, r *net.Resolver) ([]Endpoint, error) {
	_, records, err := r.LookupSRV(ctx, "", "", d.Name)
	if err != nil {
		return nil, err
	}
	set := make([]Endpoint, 0, len(records))
	for _, s := range records {
		if s.Target == "." {
			continue // RFC 2782: decidedly not available here
		}
		addrs, err := d.addresses(ctx, r, s.Target)
		var missing *net.DNSError
		if errors.As(err, &missing) && missing.IsNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		host, port := strings.TrimSuffix(s.Target, "."), strconv.Itoa(int(s.Port))
		set = append(set, Endpoint{Name: net.JoinHostPort(host, port), URL: at(d.Scheme, addrs[0].String(), port),
			ServerName: host, Ready: true})
	}
	set = order(set)
	return slices.CompactFunc(set, func(a, b Endpoint) bool { return a.Name == b.Name }), nil
}

// addresses returns the addresses of one family, in order, and at least one.
func (d *DNS) addresses(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	network := "ip" + d.Family
	if d.Family == "" {
		network = "ip4"
	}
	all, err := r.LookupNetIP(ctx, network, host)
	var missing *net.DNSError
	if d.Family == "" && errors.As(err, &missing) && missing.IsNotFound {
		all, err = r.LookupNetIP(ctx, "ip6", host)
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}
