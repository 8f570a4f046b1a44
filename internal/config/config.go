// Package config turns the configuration file into validated structs. It knows names,
// units, defaults and limits, and nothing of the packages that it configures: cmd
// hands each of them its own options.
//
// Every key has a default but the engines. An unknown key is an error, as is a value
// out of range; an error names file, line, field and remedy. Loading has no effect
// besides reading the file, so that a bad file never replaces a good configuration.
package config

import (
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Config is one configuration file. Durations are written "250ms", "2s", "15m";
// sizes "64MiB" or a number of bytes.
type Config struct {
	Listen      string      `yaml:"listen"` // address of the data port; default 127.0.0.1:8080
	Admin       string      `yaml:"admin"`  // address of the admin port; default 127.0.0.1:8081, "off" = none; not loopback: see admin_access
	AdminAccess AdminAccess `yaml:"admin_access"`
	TLS         ServerTLS   `yaml:"tls"`
	Limits      Limits      `yaml:"limits"`
	Access      Access      `yaml:"access"`
	Tenants     []Tenant    `yaml:"tenants"`
	Retry       Retry       `yaml:"retry"`
	Work        Work        `yaml:"work"`
	Pools       []Pool      `yaml:"pools"`
	Channels    []Channel   `yaml:"channels"`
	Routes      []Route     `yaml:"routes"`
	Bindings    Bindings    `yaml:"bindings"`
	Prewarm     Prewarm     `yaml:"prewarm"`
	Cost        Cost        `yaml:"cost"`
	Telemetry   Telemetry   `yaml:"telemetry"`

	file string // where it was read; empty when it came from flags
	dir  string // of the file: paths inside it are relative to this
}

// ServerTLS makes the data port speak TLS. Both files or none.
type ServerTLS struct {
	CertFile string `yaml:"cert_file"` // PEM chain; read anew when it changes
	KeyFile  string `yaml:"key_file"`  // PEM key
}

// Limits bound what one client and one request may take. 0 = default, "none" is
// written as a negative duration.
type Limits struct {
	MaxBody       Size     `yaml:"max_body"`       // request body; default 64MiB, 1KiB..1GiB; larger gets 413
	MaxHeader     Size     `yaml:"max_header"`     // request head; default 64KiB, 4KiB..1MiB; larger gets 431
	QueueWait     Duration `yaml:"queue_wait"`     // for a node under its bound; default 2s; negative = never wait
	QueueDepth    int      `yaml:"queue_depth"`    // waiting requests per pool; default 1024
	GateWait      Duration `yaml:"gate_wait"`      // for another request's cold prefill of the same prefix; default 30s
	Connect       Duration `yaml:"connect"`        // to an engine; default 2s
	FirstByte     Duration `yaml:"first_byte"`     // from sending to the first event; default 30m
	Announce      Duration `yaml:"announce"`       // response.created, message_start and the like are held back for this long while nothing else comes, so that a dying engine can be replaced; default 15s; negative = not at all
	BetweenEvents Duration `yaml:"between_events"` // silence in the middle of a body; default 15m
	Total         Duration `yaml:"total"`          // one request; default none
	ReadRequest   Duration `yaml:"read_request"`   // a request's arrival, plus 1s per 64KiB announced; default 30s
	ClientIdle    Duration `yaml:"client_idle"`    // a client's connection without a request; default 75s
	ClientStall   Duration `yaml:"client_stall"`   // one write to a client that does not read; default 2m
	Heartbeat     Duration `yaml:"heartbeat"`      // comment lines to streaming clients while no engine byte comes; default none
	EngineIdle    Duration `yaml:"engine_idle"`    // pooled engine connection; default 3s, below uvicorn's keep-alive of 5 s
	DrainDelay    Duration `yaml:"drain_delay"`    // after SIGTERM, while /readyz says no and work goes on; default 5s
	DrainGrace    Duration `yaml:"drain_grace"`    // for open streams after that; default 10m
}

// Pool is the set of nodes that serve one model.
type Pool struct {
	Name       string            `yaml:"name"`    // unique; a label in metrics; default: the first model, or "default"
	Models     []string          `yaml:"models"`  // names that the engines serve; default: what they list themselves
	Aliases    map[string]string `yaml:"aliases"` // name that clients may use: name that the engines serve
	Dialect    string            `yaml:"dialect"` // vllm (default) or sglang
	Engines    []Engine          `yaml:"engines"`
	Discovery  Discovery         `yaml:"discovery"`    // instead of engines
	APIKeyFile string            `yaml:"api_key_file"` // the engines' key; read anew when it changes; default: none is sent
	TLS        ClientTLS         `yaml:"tls"`
	Salt       string            `yaml:"salt"`     // mixed into every fingerprint of the pool; default none
	Bindings   *bool             `yaml:"bindings"` // false = none in this pool; default: as bindings.enabled says
	Can        Can               `yaml:"can"`      // what routes may send here
	Placement  Placement         `yaml:"placement"`
	Health     Health            `yaml:"health"`
}

// Engine is one server, or one data-parallel rank of it.
type Engine struct {
	Name    string  `yaml:"name"`    // stable and unique: placement depends on it; default: host:port of the URL
	URL     string  `yaml:"url"`     // base URL, http or https
	Dialect string  `yaml:"dialect"` // default: the pool's
	Weight  float64 `yaml:"weight"`  // share relative to the others, above 0 and at most 1000; default 1
	Rank    *int    `yaml:"rank"`    // data-parallel rank behind the URL, 0..1023; default: the engine as a whole
}

// ClientTLS is used towards https engines.
type ClientTLS struct {
	CAFile     string `yaml:"ca_file"`     // default: the system's roots
	CertFile   string `yaml:"cert_file"`   // client certificate, with key_file
	KeyFile    string `yaml:"key_file"`    // key of cert_file
	ServerName string `yaml:"server_name"` // default: the URL's host
}

// Placement tunes who gets what. docs/placement.md tells where the defaults come from.
type Placement struct {
	Factor         float64 `yaml:"factor"`          // bound = max(floor, factor x mean) + margin; default 1.25, 1..100
	Floor          float64 `yaml:"floor"`           // in requests; default 8
	Margin         float64 `yaml:"margin"`          // in requests; default 1
	Hard           float64 `yaml:"hard"`            // in requests, for followers of a warm prefix; default 64
	Follow         float64 `yaml:"follow"`          // a binding is followed up to this many times the bound; default 2, 1..100
	Owners         int     `yaml:"owners"`          // owners per prefix; default 0 = by its share of the load
	LearnDepth     *bool   `yaml:"learn_depth"`     // prefixes that no manifest declares share a key when they differ in their tail; default true
	CompletionLead Size    `yaml:"completion_lead"` // leading bytes of a raw prompt that make its key; default 4KiB
}

// Work says how requests are weighed before an engine has counted their tokens.
type Work struct {
	QuantumTokens int `yaml:"quantum_tokens"`  // uncached prompt tokens that weigh as one request; default 8192
	BytesPerToken int `yaml:"bytes_per_token"` // estimate; default 4
	FatTokens     int `yaml:"fat_tokens"`      // static prefix length guarded by the warm gate; default 4096; negative = off
}

// Health tunes probes and saturation of one pool. Zero = default; docs/health.md explains
// each. An engine behind several pools is probed by the shortest interval of them.
type Health struct {
	Interval  Duration `yaml:"interval"`   // of /metrics; default 1s, 100ms..1m
	Timeout   Duration `yaml:"timeout"`    // of /metrics; default 2s
	Failures  int      `yaml:"failures"`   // failed probes in a row that take a node out; default 3
	HangAfter Duration `yaml:"hang_after"` // running requests without progress; default 30s (vllm), 60s (sglang); negative = off
	SlowStart Duration `yaml:"slow_start"` // in which a node that was down, ejected or asleep gets its full share back; default 10s, up to 1h; negative = at once
	Waiting   float64  `yaml:"waiting"`    // waiting requests that make a node saturated; default 2
	KVUsage   float64  `yaml:"kv_usage"`   // share of KV held by live requests that makes it saturated; default 0.88
}

// Retry bounds further attempts of a request.
type Retry struct {
	Max       *int    `yaml:"max"`        // attempts after the first; default 2, 0..10
	Budget    float64 `yaml:"budget"`     // retries per request over the fleet; default 0.08, 0..1
	OnTimeout bool    `yaml:"on_timeout"` // also when an engine may still be working on it; default false
	// Hedge sends a second copy to another node when no first event has come for this
	// long. It may make two engines work, and excludes limits.heartbeat. Default: never.
	Hedge Duration `yaml:"hedge"`
}

// Bindings lead later turns of a conversation to the node that holds its history.
// PROMPT_CACHE_AFFINITY_ENABLED and PROMPT_CACHE_AFFINITY_TTL_SECONDS override the
// first two.
type Bindings struct {
	Enabled bool     `yaml:"enabled"` // default false
	Mode    string   `yaml:"mode"`    // conversation (default), or user: one binding per tenant, principal and model
	Preset  string   `yaml:"preset"`  // strict = a client's own 4xx evicts as well; hosted = ttl 300s; default: neither
	TTL     Duration `yaml:"ttl"`     // fixed at creation; default 900s, 1s..86400s
	Uses    int      `yaml:"uses"`    // default 100; negative = no limit
	Max     int      `yaml:"max"`     // default 10000
}

// Prewarm names the manifest of known prefixes.
type Prewarm struct {
	Manifest string `yaml:"manifest"` // default: none
}

// Cost names the price list.
type Cost struct {
	Prices string `yaml:"prices"` // default: none; tokens are counted, money is unknown
}

// Telemetry sets what is told.
type Telemetry struct {
	AccessLog *bool  `yaml:"access_log"` // one line per request; default true
	LogLevel  string `yaml:"log_level"`  // debug, info (default), warn, error
	Explain   bool   `yaml:"explain"`    // X-Prefixring-* headers on every response; default: only when asked
}

// Defaults that more than one place needs.
const (
	DefaultListen     = "127.0.0.1:8080"
	DefaultAdmin      = "127.0.0.1:8081"
	DefaultDrainDelay = 5 * time.Second
	DefaultDrainGrace = 10 * time.Minute
)

// parseDialect returns the dialect that a name means. An empty name is vllm.
func parseDialect(s string) (dialect.Engine, bool) {
	switch s {
	case "", "vllm":
		return dialect.VLLM, true
	case "sglang":
		return dialect.SGLang, true
	}
	return dialect.VLLM, false
}

// DialectOf is the dialect of an engine of a pool. The configuration has been checked.
func (p *Pool) DialectOf(e *Engine) dialect.Engine {
	name := e.Dialect
	if name == "" {
		name = p.Dialect
	}
	d, _ := parseDialect(name)
	return d
}
