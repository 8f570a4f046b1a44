package config

import (
	"strings"
	"testing"
	"time"
)

// minimal is the shortest file that is right.
const minimal = "pools:\n  - engines:\n      - url: http://10.0.0.7:8000\n"

func TestDefaultsAreFilled(t *testing.T) {
	c, err := Parse("router.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != DefaultListen || c.Admin != DefaultAdmin {
		t.Errorf("listen %q, admin %q", c.Listen, c.Admin)
	}
	if p := c.Pools[0]; p.Name != "default" || p.Engines[0].Name != "10.0.0.7:8000" || p.Engines[0].Weight != 1 {
		t.Errorf("pool %+v", p)
	}
}

func TestValuesCarryUnits(t *testing.T) {
	c, err := Parse("router.yaml", []byte(minimal+"limits:\n  max_body: 16MiB\n  queue_wait: 250ms\n  total: \"2m\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.MaxBody != 16<<20 || c.Limits.QueueWait.D() != 250*time.Millisecond || c.Limits.Total.D() != 2*time.Minute {
		t.Errorf("limits %+v", c.Limits)
	}
}

// Every refusal names file and line, the field or key, and what to do about it.
func TestBadFilesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, line, field, remedy string }{
		"empty":             {"", "", "pools", "name at least one"},
		"unknown key":       {minimal + "lisn: x\n", ":4", `"lisn"`, "docs/configuration.md"},
		"unknown inner key": {minimal + "limits:\n  max_bdy: 1\n", ":5", `"max_bdy"`, "remove it"},
		"not YAML":          {"pools: [\n", ":1", "", ""},
		"no unit":           {minimal + "limits:\n  queue_wait: 5\n", ":5", `"5"`, "250ms"},
		"bad size":          {minimal + "limits:\n  max_body: 5 apples\n", ":5", "apples", "MiB"},
		"size out of range": {minimal + "limits:\n  max_body: 2\n", ":5", "limits.max_body", "within"},
		"bad address":       {minimal + "listen: here\n", ":4", "listen", "host:port"},
		"bad url":           {"pools:\n  - engines:\n      - url: ftp://x\n", ":3", "pools[0].engines[0].url", "http"},
		"no engines":        {"pools:\n  - name: a\n", ":2", "pools[0].engines", "url"},
		"twin engines": {
			minimal + "      - url: http://10.0.0.7:8000\n", ":4", "pools[0].engines[1]", "unique",
		},
		"bad dialect": {"pools:\n  - dialect: tgi\n    engines:\n      - url: http://a:1\n", ":2", "pools[0].dialect", "sglang"},
		"twin models": {
			"pools:\n  - {name: a, models: [m], engines: [{url: 'http://a:1'}]}\n  - {name: b, models: [m], engines: [{url: 'http://b:1'}]}\n",
			":3", "pools[1].models", "one pool",
		},
		"route without tier":   {minimal + "routes: [{name: auto}]\n", ":4", "routes[0].tiers", "tier"},
		"route without pool":   {minimal + "routes: [{name: auto, tiers: [{members: [{pool: x}]}]}]\n", ":4", "members[0].pool", "no pool"},
		"route by discovery":   {minimal + "routes: [{name: auto, tiers: [{members: [{pool: default}]}]}]\n", ":4", "members[0].pool", "models"},
		"route named as pool":  {"pools: [{models: [m], engines: [{url: 'http://a:1'}]}]\nroutes: [{name: m, tiers: [{members: [{pool: m}]}]}]\n", ":2", "routes[0].name", "own"},
		"route to a stranger":  {"pools: [{models: [m], engines: [{url: 'http://a:1'}]}]\nroutes: [{name: a, tiers: [{members: [{pool: m, model: n}]}]}]\n", ":2", "members[0].model", "serve"},
		"channel in the clear": {minimal + "channels: [{name: c, url: 'http://a.example', protocol: openai, keys: [{file: k}]}]\n", ":4", "channels[0].url", "https"},
		"channel with a key":   {minimal + "channels: [{name: c, url: 'https://u:sk-canary@a', protocol: openai, keys: [{file: k}]}]\n", ":4", "channels[0].url", "https"},
		"channel without keys": {minimal + "channels: [{name: c, url: 'https://a', protocol: openai}]\n", ":4", "channels[0].keys", "file"},
		"inline key":           {minimal + "channels: [{name: c, url: 'https://a', protocol: openai, keys: [{key: sk-canary}]}]\n", ":4", `"key"`, "remove"},
		"odd dialect":          {minimal + "channels: [{name: c, url: 'https://a', protocol: gemini, keys: [{file: k}]}]\n", ":4", "channels[0].protocol", "anthropic"},
		"translation":          {minimal + "channels: [{name: c, url: 'https://a', protocol: anthropic, can: {protocols: [chat]}, keys: [{file: k}]}]\n", ":4", "can.protocols", "messages"},
		"twin keys":            {minimal + "channels: [{name: c, url: 'https://a', protocol: openai, keys: [{name: x, file: k}, {name: x, file: l}]}]\n", ":4", "keys[1].name", "twice"},
		"route to no channel":  {minimal + "routes: [{name: auto, tiers: [{members: [{channel: x, model: m}]}]}]\n", ":4", "members[0].channel", "no channel"},
		"channel as a pool":    {minimal + "channels: [{name: default, url: 'https://a', protocol: openai, keys: [{file: k}]}]\n", ":4", "channels[0].name", "another"},
		"odd protocol":         {"pools: [{can: {protocols: [smtp]}, engines: [{url: 'http://a:1'}]}]\n", ":1", "pools[0].can.protocols", "chat"},
		"bad binding mode":     {minimal + "bindings: {mode: both}\n", ":4", "bindings.mode", "user"},
		"half a TLS pair":      {minimal + "tls:\n  cert_file: a.pem\n", ":5", "tls", "go together"},
		"bad log level":        {minimal + "telemetry:\n  log_level: loud\n", ":5", "telemetry.log_level", "debug"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("router.yaml", []byte(tc.file))
			if err == nil {
				t.Fatal("accepted")
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("a key is quoted: %v", err)
			}
			for _, want := range []string{"router.yaml" + tc.line, tc.field, tc.remedy} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
		})
	}
}

// All faults come at once: an operator should not have to find them one by one.
func TestAllFaultsAreNamed(t *testing.T) {
	_, err := Parse("r.yaml", []byte("listen: x\nadmin: y\npools:\n  - engines: [{url: z}]\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three lines, got %q", err)
	}
}

func TestFlags(t *testing.T) {
	c, err := FromFlags([]string{"http://a:1,name=one", "http://b:2,dialect=sglang,model=m", "http://c:3"}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Pools) != 2 || len(c.Pools[0].Engines) != 2 || c.Pools[0].Engines[0].Name != "one" || c.Pools[1].Name != "m" {
		t.Errorf("pools %+v", c.Pools)
	}
	for spec, want := range map[string]string{
		"http://a:1,nam=x": "unknown key",
		"http://a:1,name":  "not key=value",
		"a:1":              "URL",
	} {
		if _, err := FromFlags([]string{spec}, "", ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

// Whatever a file holds, the answer is a configuration or an error that names the file.
func FuzzParse(f *testing.F) {
	for _, s := range []string{minimal, "! 000000000", "pools: ! 000000000", "pools:\n  - ! 0000000\n", "limits: {max_body: [1]}", "a: &x\n  b: *x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("router.yaml", b)
		if (c == nil) == (err == nil) {
			t.Fatalf("configuration %v, error %v", c, err)
		}
		if err != nil && !strings.Contains(err.Error(), "router.yaml") {
			t.Errorf("the error does not name the file: %v", err)
		}
	})
}
