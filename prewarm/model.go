package prewarm

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// EngineModel is the step model of one engine: a step of T tokens (B of them decoding)
// takes
//
//	O + max(W, A*T) + B*sum(chunk*(start+chunk/2)) + K*sum(context) + D*B
//
// The coefficients are fitted on public measurements of H100 SXM cards in bf16; B is
// good to about 30 %, all others to 10-20 %.
type EngineModel struct {
	Name      string  `json:"name"`
	TokenTime float64 `json:"token_seconds"`         // A: s per token of a step
	PairTime  float64 `json:"pair_seconds"`          // B: s per prefill token and token of its context
	Floor     float64 `json:"floor_seconds"`         // W: s, reading the weights
	ReadTime  float64 `json:"context_read_seconds"`  // K: s per token of context of each decoding sequence
	Overhead  float64 `json:"step_overhead_seconds"` // O: s per step
	SeqTime   float64 `json:"sequence_seconds"`      // D: s per decoding sequence
	Front     float64 `json:"front_seconds"`         // s per request before the engine core: HTTP
	FrontTok  float64 `json:"front_token_seconds"`   // s per prompt token before the engine core: tokeniser
	KVTokens  int64   `json:"kv_tokens"`             // capacity on 80 GB cards
	Budget    int64   `json:"budget_tokens"`         // tokens per step at most
	MaxSeqs   int64   `json:"max_sequences"`         // running sequences at most
	GPUs      int     `json:"gpus"`
}

// Presets are the engine models that come with the program.
var Presets = []EngineModel{
	preset("8b-tp1", 1, 26, 1.2, 5.5, 45, 1.0, 430_000),
	preset("32b-tp2", 2, 68, 1.4, 9.8, 45, 1.0, 307_328),
	preset("70b-tp4", 4, 68, 1.46, 10.8, 22, 1.0, 461_376),
	preset("70b-tp8", 8, 44, 0.73, 5.6, 11, 1.5, 1_330_000),
}

// DefaultModel is the model of nodes of which nothing is known.
const DefaultModel = "70b-tp4"

func preset(name string, gpus int, a, b, w, k, o float64, kv int64) EngineModel {
	return EngineModel{
		Name: name, GPUs: gpus, TokenTime: a * 1e-6, PairTime: b * 1e-9, Floor: w * 1e-3, ReadTime: k * 1e-9,
		Overhead: o * 1e-3, SeqTime: 30e-6, Front: 15e-3, FrontTok: 10e-6, KVTokens: kv, Budget: 8192, MaxSeqs: 1024,
	}
}

// PresetByName finds a preset; the error lists those that exist.
func PresetByName(name string) (EngineModel, error) {
	for _, p := range Presets {
		if p.Name == name {
			return p, nil
		}
	}
	names := make([]string, len(Presets))
	for i, p := range Presets {
		names[i] = p.Name
	}
	slices.Sort(names)
	return EngineModel{}, fmt.Errorf("cannot find engine preset %q: there are %s", name, strings.Join(names, ", "))
}

func (m EngineModel) orDefault() EngineModel {
	if m.TokenTime > 0 {
		return m
	}
	d, err := PresetByName(DefaultModel)
	if err != nil {
		panic("BUG: the default preset is missing: " + err.Error())
	}
	return d
}

// Prefill is the engine time of prefilling n tokens behind a cached prefix, in seconds,
// on an otherwise idle engine.
func (m EngineModel) Prefill(cached, n float64) float64 {
	if n <= 0 {
		return 0
	}
	steps := math.Ceil(n / float64(max(m.Budget, 1)))
	linear := math.Max(m.TokenTime*n, m.Floor*steps)
	return steps*m.Overhead + linear + m.PairTime*n*(cached+n/2)
}

// prefillTime is how long a cold prefill of n tokens takes on the node.
func (n *Node) prefillTime(tokens int64) time.Duration {
	seconds := float64(tokens) / n.PrefillRate
	if !(n.PrefillRate > 0) {
		m := n.Model.orDefault()
		seconds = m.Prefill(0, float64(tokens)) + m.Front + m.FrontTok*float64(tokens)
	}
	return time.Duration(seconds * float64(time.Second))
}
