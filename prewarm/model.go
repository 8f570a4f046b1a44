package prewarm

import (
	"math"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
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
}

// DefaultModel is the model of nodes of which nothing is known.
const DefaultModel = "70b-tp4"

// PresetByName finds a preset of the simulated engine, so that what is planned and what
// is simulated rest on the same figures; the error lists those that exist.
func PresetByName(name string) (EngineModel, error) {
	p, err := core.FindPreset(name)
	if err != nil {
		return EngineModel{}, err
	}
	c := p.Cost
	return EngineModel{
		Name: p.Name, TokenTime: c.Token, PairTime: c.Attention, Floor: c.Floor, ReadTime: c.Context, Overhead: c.Fixed,
		SeqTime: c.Sequence, Front: c.FrontFixed, FrontTok: c.FrontToken,
		KVTokens: int64(p.KVTokens), Budget: int64(p.Budget), MaxSeqs: int64(p.MaxSeqs),
	}, nil
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
