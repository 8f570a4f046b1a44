package main

import (
	"fmt"
	"io"
	"net/url"
	"reflect"
	"time"

	"github.com/prefixring/prefixring/internal/channel"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
	"github.com/prefixring/prefixring/ring"
)

// hosted is a channel at work: its accounts as the nodes of a ring. It outlives reloads
// that do not change it, so that rates, rests and bindings do, too.
type hosted struct {
	conf     config.Channel
	bindings config.Bindings
	timeouts proxy.Timeouts
	ring     *ring.Ring
	store    *session.Store // nil = off
	keys     []hostedKey
}

type hostedKey struct {
	name     string
	account  *channel.Account
	upstream *proxy.Upstream
}

// unbounded is the ring of a channel: a host's rates are the bound, not our load on it.
var unbounded = ring.Options{Factor: 100, Floor: 1 << 40, Margin: -1}

// channelsOf makes the channels of a configuration, and takes over those that are as
// before. On an error nothing is left open.
func channelsOf(cfg *config.Config, old map[string]*hosted) (map[string]*hosted, error) {
	next := map[string]*hosted{}
	for i := range cfg.Channels {
		h := &hosted{conf: cfg.Channels[i], bindings: cfg.Bindings, timeouts: timeouts(&cfg.Limits)}
		if was := old[h.conf.Name]; was.same(h) {
			next[h.conf.Name] = was
			continue
		}
		next[h.conf.Name] = h
		if err := h.open(cfg); err != nil {
			closeChannels(next, old)
			return nil, fmt.Errorf("cannot use channel %q: %w", h.conf.Name, err)
		}
	}
	return next, nil
}

func (h *hosted) same(o *hosted) bool {
	return h != nil && reflect.DeepEqual(h.conf, o.conf) && h.bindings == o.bindings && h.timeouts == o.timeouts
}

// closeChannels closes the connections of channels that the others do not go on using.
func closeChannels(channels, others map[string]*hosted) {
	for name, h := range channels {
		if others[name] == h {
			continue
		}
		for _, k := range h.keys {
			k.upstream.Close()
		}
	}
}

func (h *hosted) open(cfg *config.Config) error {
	var err error
	if h.ring, err = ring.New(unbounded); err != nil {
		return err
	}
	b := h.bindings
	if b.TTL == 0 {
		b.Preset = "hosted"
	}
	if h.store, err = newBindings(&b, &config.Pool{Bindings: h.conf.Bindings}); err != nil {
		return err
	}
	var members []ring.Member
	for _, k := range h.conf.Keys {
		a, err := newAccess(cfg, &way{tls: h.conf.TLS, keyFile: cfg.Path(k.File)})
		if err != nil {
			return err
		}
		key := hostedKey{name: k.Name, account: channel.New(channel.Options{RPM: k.RPM, TPM: k.TPM, Cooldown: h.conf.Cooldown.D()}, time.Now())}
		key.upstream, err = proxy.NewUpstream(proxy.UpstreamOptions{
			Name: h.conf.Name + "/" + k.Name, URL: h.conf.URL, Key: a.key, TLS: a.tls, Rank: -1, Account: key.account, Timeouts: h.timeouts,
		})
		if err != nil {
			return err
		}
		h.keys = append(h.keys, key)
		members = append(members, ring.Member{Name: key.upstream.Name(), Weight: k.Weight, Value: key.upstream})
	}
	return h.ring.Apply(members)
}

// pool is the channel as the data plane sees it.
func (h *hosted) pool(s *fingerprint.Scanner) *proxy.Pool {
	a := newAffinity(&h.bindings, &config.Pool{Name: h.conf.Name, Salt: h.conf.URL})
	if h.bindings.Mode == "" {
		a.Mode = session.User // a hosted cache belongs to the account
	}
	return &proxy.Pool{Name: h.conf.Name, Hosted: true, Ring: h.ring, Scanner: s, Bindings: h.store, Affinity: a}
}

// channelView is one account in status. Unknown numbers are null.
type channelView struct {
	Channel      string  `json:"channel"`
	Host         string  `json:"host"`
	Key          string  `json:"key"` // its name, never itself
	State        string  `json:"state"`
	RequestsLeft *int64  `json:"requests_left"`
	TokensLeft   *int64  `json:"tokens_left"`
	Rest         float64 `json:"rest_seconds"`
	InFlight     int64   `json:"in_flight"`
}

func (f *fleet) channelViews() []channelView {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	out := []channelView{}
	for _, name := range sortedKeys(f.channels) {
		h := f.channels[name]
		host := ""
		if u, err := url.Parse(h.conf.URL); err == nil {
			host = u.Host
		}
		for _, k := range h.keys {
			r := k.account.Rates(now)
			out = append(out, channelView{
				Channel: name, Host: host, Key: k.name, State: k.account.State(now, "", 0).String(), Rest: r.RestSeconds,
				RequestsLeft: countKnown(r.RequestsLeft), TokensLeft: countKnown(r.TokensLeft),
				InFlight: h.ring.Node(k.upstream.Name()).InFlight(),
			})
		}
	}
	return out
}

func countKnown(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

// writeChannels writes the accounts for a scrape. An unknown number has no sample.
func (f *fleet) writeChannels(w io.Writer) {
	for _, v := range f.channelViews() {
		line := func(metric string, n float64) {
			telemetry.WriteLine(w, "prefixring_channel_"+metric, n, "channel", v.Channel, "key", v.Key)
		}
		line("key_refused", boolean(v.State == channel.Refused.String()))
		line("key_usable", boolean(v.State == channel.Fit.String() || v.State == channel.Short.String()))
		line("rest_seconds", v.Rest)
		line("in_flight", float64(v.InFlight))
		if v.RequestsLeft != nil {
			line("requests_left", float64(*v.RequestsLeft))
		}
		if v.TokensLeft != nil {
			line("tokens_left", float64(*v.TokensLeft))
		}
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// nothingLeaves is what status and the banner say without a channel.
const nothingLeaves = "channels: nothing leaves the fleet"

func printChannels(w io.Writer, views []channelView) {
	if len(views) == 0 {
		fmt.Fprintln(w, nothingLeaves)
	}
	for _, v := range views {
		fmt.Fprintf(w, "channel %s at %s, key %s: %s, %d in flight, %s requests and %s tokens left", v.Channel, v.Host, v.Key, v.State, v.InFlight, left(v.RequestsLeft), left(v.TokensLeft))
		if v.Rest > 0 {
			fmt.Fprintf(w, ", rests %.0f s", v.Rest)
		}
		fmt.Fprintln(w)
	}
}

func left(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}
