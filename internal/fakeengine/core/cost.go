package core

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"
)

// Cost holds the coefficients of the step equation, in seconds:
//
//	step = Fixed + max(Floor, Token*T) + Attention*sum(chunk*(start+chunk/2))
//	     + Context*sum(context of decoding) + Sequence*decoding
//
// T counts all tokens of the step. The front end adds FrontFixed + FrontToken *
// prompt tokens before the scheduler sees a request (tokenising, HTTP); it keeps
// no GPU busy. The zero value costs nothing.
type Cost struct {
	Token      float64 // a, per token
	Attention  float64 // b, per token x context token of a prefill chunk
	Floor      float64 // w, reading the weights once
	Context    float64 // k, per context token of a decoding sequence
	Fixed      float64 // o, per step
	Sequence   float64 // d, per decoding sequence
	FrontFixed float64
	FrontToken float64
}

// Preset is a measured model and GPU configuration.
type Preset struct {
	Name     string
	Cost     Cost
	KVTokens int // default KV capacity in tokens
	Budget   int // tokens per step
	MaxSeqs  int
}

const (
	us = 1e-6
	ns = 1e-9
	ms = 1e-3
)

// The coefficients are for H100 SXM in bf16: linear layers from vidur's operator
// times, attention from FLOPs, capacities 0.90 x 79.65 GiB less weights, checked
// against the measured 461,376 (70B TP4) and 307,328 (32B TP2) tokens of llm-d's
// public reports.
var presets = []Preset{
	h100("8b-tp1", Cost{Token: 26 * us, Attention: 1.2 * ns, Floor: 5.5 * ms, Context: 45 * ns, Fixed: 1.0 * ms}, 430_000),
	h100("32b-tp2", Cost{Token: 68 * us, Attention: 1.4 * ns, Floor: 9.8 * ms, Context: 45 * ns, Fixed: 1.0 * ms}, 307_000),
	h100("70b-tp4", Cost{Token: 68 * us, Attention: 1.46 * ns, Floor: 10.8 * ms, Context: 22 * ns, Fixed: 1.0 * ms}, 460_000),
	h100("70b-tp8", Cost{Token: 44 * us, Attention: 0.73 * ns, Floor: 5.6 * ms, Context: 11 * ns, Fixed: 1.5 * ms}, 1_330_000),
	{Name: "instant", KVTokens: 1 << 20, Budget: 8192, MaxSeqs: 1024},
}

func h100(name string, c Cost, kv int) Preset {
	c.Sequence = 30 * us
	c.FrontFixed, c.FrontToken = 15*ms, 10*us
	return Preset{Name: name, Cost: c, KVTokens: kv, Budget: 8192, MaxSeqs: 1024}
}

// Presets lists the names that FindPreset knows, sorted.
func Presets() []string {
	names := make([]string, 0, len(presets))
	for i := range presets {
		names = append(names, presets[i].Name)
	}
	sort.Strings(names)
	return names
}

// FindPreset returns a preset by name, ignoring case. "7b" and "8b" are short for
// 8b-tp1, "32b" for 32b-tp2, "70b" for 70b-tp4; the empty name is 8b-tp1.
// "instant" costs no time at all.
func FindPreset(name string) (Preset, error) {
	n := strings.ToLower(name)
	switch n {
	case "", "7b", "8b":
		n = "8b-tp1"
	case "32b":
		n = "32b-tp2"
	case "70b":
		n = "70b-tp4"
	}
	for i := range presets {
		if presets[i].Name == n {
			return presets[i], nil
		}
	}
	return Preset{}, fmt.Errorf("cannot find preset %q: known are %s", name, strings.Join(Presets(), ", "))
}

// load is what one step carries.
type load struct {
	tokens    int
	attention float64 // sum of chunk*(start+chunk/2)
	context   int     // sum of contexts of decoding sequences
	decoding  int
}

func (c *Cost) step(l load) float64 {
	return c.Fixed + max(c.Floor, c.Token*float64(l.tokens)) + c.Attention*l.attention +
		c.Context*float64(l.context) + c.Sequence*float64(l.decoding)
}

func (c *Cost) front(tokens int) time.Duration {
	return seconds(c.FrontFixed + c.FrontToken*float64(tokens))
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }
