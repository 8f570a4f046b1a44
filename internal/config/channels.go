package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// Channel is a hosted OpenAI- or Anthropic-compatible endpoint with its accounts. Only
// routes lead to it, and without one nothing ever leaves the fleet. docs/channels.md has
// the rules.
type Channel struct {
	Name     string       `yaml:"name"`     // no pool may have it; a label in metrics
	URL      string       `yaml:"url"`      // base URL, with or without /v1; https, but on loopback
	Protocol string       `yaml:"protocol"` // openai (chat, completions, responses) or anthropic (messages)
	Keys     []ChannelKey `yaml:"keys"`     // its accounts
	Cooldown Duration     `yaml:"cooldown"` // of a model that fails on an account; default 30s, 1s..1h
	Bindings *bool        `yaml:"bindings"` // false = none; default: as bindings.enabled says, in mode user and for 300s unless bindings.ttl is set
	Can      Can          `yaml:"can"`      // what routes may send here; protocols default to those of the endpoint
	TLS      ClientTLS    `yaml:"tls"`
}

// ChannelKey is one account of a channel.
type ChannelKey struct {
	Name   string  `yaml:"name"`   // unique in its channel, never the key itself; default key-1, key-2 ...
	File   string  `yaml:"file"`   // holds the key; read anew when it changes
	Weight float64 `yaml:"weight"` // share of the conversations relative to the others, above 0 and at most 16; default 1
	RPM    int64   `yaml:"rpm"`    // requests per minute to use at most; default: what the host says
	TPM    int64   `yaml:"tpm"`    // tokens per minute to use at most; default: what the host says
}

// spoken are the protocols of an endpoint.
var spoken = map[string][]string{"openai": {"chat", "completions", "responses"}, "anthropic": {"messages"}}

func (c *Config) checkChannels(v *validator) {
	seen := map[string]bool{}
	for i := range c.Channels {
		ch := &c.Channels[i]
		path := fmt.Sprintf("channels[%d]", i)
		switch {
		case ch.Name == "":
			v.fail(path+".name", "the channel has no name; routes lead to it by name")
		case seen[ch.Name], c.poolNamed(ch.Name) != nil:
			v.fail(path+".name", "%q is the name of another channel or pool", ch.Name)
		}
		seen[ch.Name] = true
		ch.check(v, path)
	}
}

func (c *Channel) check(v *validator, path string) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || (u.Scheme != "https" && u.Scheme != "http"):
		v.fail(path+".url", "this is no plain https URL; write for example https://api.openai.com/v1") // not quoted: it may hold a key
	case u.Scheme == "http" && !loopback(u.Hostname()):
		v.fail(path+".url", "a key must not travel in the clear; use https")
	}
	switch words, ok := spoken[c.Protocol]; {
	case !ok:
		v.fail(path+".protocol", "%q is none of openai, anthropic", c.Protocol)
	default:
		for _, p := range c.Can.Protocols {
			oneOf(v, path+".can.protocols", p, words...)
		}
	}
	within(v, path+".cooldown", c.Cooldown.D(), 1e9, 3600e9)
	c.Can.check(v, path+".can")
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		v.fail(path+".tls", "cert_file and key_file go together; set both or none")
	}
	if len(c.Keys) == 0 {
		v.fail(path+".keys", "the channel has no key; name the file of one")
	}
	var names []string
	for i := range c.Keys {
		k := &c.Keys[i]
		at := fmt.Sprintf("%s.keys[%d]", path, i)
		if name := k.name(i); slices.Contains(names, name) {
			v.fail(at+".name", "key %q is there twice", name)
		} else {
			names = append(names, name)
		}
		if k.File == "" {
			v.fail(at+".file", "the key has no file; keys are never written here")
		}
		if k.Weight < 0 || k.Weight > 16 {
			v.fail(at+".weight", "%v is not above 0 and at most 16", k.Weight)
		}
		ranged(v, at+".rpm", int(k.RPM), 1, 1<<40)
		ranged(v, at+".tpm", int(k.TPM), 1, 1<<40)
	}
}

func (k *ChannelKey) name(i int) string {
	if k.Name != "" {
		return k.Name
	}
	return fmt.Sprintf("key-%d", i+1)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *Config) channelNamed(name string) *Channel {
	for i := range c.Channels {
		if c.Channels[i].Name == name {
			return &c.Channels[i]
		}
	}
	return nil
}

// fillChannels sets the defaults that are names.
func (c *Config) fillChannels() {
	for i := range c.Channels {
		ch := &c.Channels[i]
		ch.URL = strings.TrimSuffix(strings.TrimRight(ch.URL, "/"), "/v1")
		if len(ch.Can.Protocols) == 0 {
			ch.Can.Protocols = spoken[ch.Protocol]
		}
		for k := range ch.Keys {
			ch.Keys[k].Name = ch.Keys[k].name(k)
			if ch.Keys[k].Weight == 0 {
				ch.Keys[k].Weight = 1
			}
		}
	}
}
