package prewarm

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// CapacityInput are the figures of a fleet and its peak. Zero fields take the defaults
// named beside them.
type CapacityInput struct {
	Prefixes []CapacityPrefix `json:"prefixes"`
	Nodes    []string         `json:"-"`     // names; empty = Count names
	Count    int              `json:"nodes"` // 0 = as many as the peak needs
	Model    EngineModel      `json:"model"` // default DefaultModel

	Rate   float64 `json:"rate"`          // requests/s at the peak, over all nodes
	User   int64   `json:"user_tokens"`   // of the user's text; default 200
	Output int64   `json:"output_tokens"` // default 500

	KVTokens    int64         `json:"kv_tokens"`         // per node; default the model's
	BlockSize   int64         `json:"block_size"`        // default 16
	Utilisation float64       `json:"utilisation"`       // what the fleet is sized for; default 0.7
	Headroom    float64       `json:"headroom"`          // share of KV left to running requests at least; default DefaultKVHeadroom
	Touch       time.Duration `json:"touch_nanoseconds"` // keep-warm interval; 0 = none
	Join        int           `json:"join"`              // nodes that join; default 4
	Leave       int           `json:"leave"`             // nodes that fail; default 2
	Ring        ring.Options  `json:"-"`
}

// CapacityPrefix is one prefix of the peak.
type CapacityPrefix struct {
	Name   string  `json:"name"`
	Tokens int64   `json:"tokens"`
	Share  float64 `json:"share"` // of the requests; the shares of a list are scaled to 1
	K      int     `json:"k"`     // owners; 0 = from the share, as the router does
	Key    uint64  `json:"-"`     // ring key; 0 = from the name
}

// ZipfPrefixes are n prefixes of the same length whose shares fall as 1/rank^alpha.
func ZipfPrefixes(n int, tokens int64, alpha float64) []CapacityPrefix {
	out := make([]CapacityPrefix, n)
	for i := range out {
		out[i] = CapacityPrefix{Name: fmt.Sprintf("prefix-%02d", i+1), Tokens: tokens, Share: math.Pow(float64(i+1), -alpha)}
	}
	return out
}

// Capacity is what fits and what a peak needs. All times are seconds.
type Capacity struct {
	Input CapacityInput  `json:"input"`
	Fits  bool           `json:"fits"`
	Why   string         `json:"why,omitempty"` // it does not
	Nodes []CapacityNode `json:"nodes"`
	Use   []CapacityUse  `json:"prefixes"`

	Peak    PeakFigures   `json:"peak"`
	Needed  []NeedOfModel `json:"needed"` // nodes for the peak by engine model
	Join    MoveFigures   `json:"join"`
	Leave   MoveFigures   `json:"leave"`
	Omitted []string      `json:"model_leaves_out"`
}

// CapacityNode is the KV memory of one node.
type CapacityNode struct {
	Node     string  `json:"node"`
	Prefixes int     `json:"prefixes"`
	Tokens   int64   `json:"prefix_tokens"` // in whole blocks
	Working  int64   `json:"working_tokens"`
	Free     int64   `json:"free_tokens"` // negative = it does not fit
	Rate     float64 `json:"rate"`        // requests/s
}

// CapacityUse is one prefix's place and luck.
type CapacityUse struct {
	Name        string  `json:"name"`
	Tokens      int64   `json:"tokens"`
	Share       float64 `json:"share"`
	Rate        float64 `json:"rate"`
	K           int     `json:"owners"`
	Copies      int     `json:"copies"`       // owners, and nodes that the bound makes it overflow to
	HitRate     float64 `json:"hit_rate"`     // expected in steady state
	ColdSeconds float64 `json:"cold_seconds"` // one cold prefill
}

// PeakFigures are the expected figures at the peak.
type PeakFigures struct {
	EngineSeconds float64 `json:"engine_seconds_per_request"` // of a warm one
	Utilisation   float64 `json:"utilisation"`                // of the mean node
	Busiest       float64 `json:"utilisation_busiest"`
	Batch         float64 `json:"batch"`             // decoding sequences on the mean node
	TokenTime     float64 `json:"seconds_per_token"` // between two tokens
	TTFT          float64 `json:"ttft_warm"`
	HitRate       float64 `json:"hit_rate"` // of the tokens that could hit
	ColdPerSecond float64 `json:"cold_per_second"`
	// Cold prefills in the first minute: prewarmed, not prewarmed but single-flighted, and
	// with neither.
	ColdPrewarmed float64 `json:"cold_first_minute_prewarmed"`
	ColdGated     float64 `json:"cold_first_minute_not_prewarmed"`
	ColdNeither   float64 `json:"cold_first_minute_without_gate"`
	// ColdWait is the longest a first customer waits without prewarm: all prefixes of the
	// fullest node, one after another.
	ColdWait float64 `json:"ttft_cold_worst"`
}

// NeedOfModel is how many nodes of an engine model the peak needs.
type NeedOfModel struct {
	Model         string  `json:"model"`
	EngineSeconds float64 `json:"engine_seconds_per_request"`
	Nodes         int     `json:"nodes"`
	ByMemory      int     `json:"nodes_by_memory"` // what the prefixes alone need
}

// MoveFigures are what changes when nodes come or go.
type MoveFigures struct {
	Nodes     int     `json:"nodes"`       // that come or go
	Cases     int     `json:"cases"`       // sets of nodes looked at
	Copies    float64 `json:"copies_mean"` // prefix copies to be warmed
	Worst     int     `json:"copies_worst"`
	Tokens    float64 `json:"tokens_mean"`
	Seconds   float64 `json:"seconds_worst"` // until the last node is done
	WorstCase string  `json:"worst_case,omitempty"`
}

// omitted is what the model leaves out.
var omitted = []string{
	"queueing noise: utilisation is a mean, and single nodes and seconds exceed it",
	"overflow beyond the owners: a burst on one prefix warms further copies",
	"chunked prefill of cold prompts beside decodes, and preemption",
	"prefill/decode interference within a step",
	"speculative decoding, LoRA switching, tiered KV caches",
}

func (in *CapacityInput) fill() error {
	in.Model = in.Model.orDefault()
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&in.User, 200)
	def(&in.Output, 500)
	def(&in.KVTokens, in.Model.KVTokens)
	def(&in.BlockSize, 16)
	if in.Utilisation == 0 {
		in.Utilisation = 0.7
	}
	if in.Headroom == 0 {
		in.Headroom = DefaultKVHeadroom
	}
	if in.Join == 0 {
		in.Join = 4
	}
	if in.Leave == 0 {
		in.Leave = 2
	}
	switch {
	case len(in.Prefixes) == 0:
		return withRemedy("cannot size: there are no prefixes", "name some, or give their number and length")
	case !(in.Rate >= 0) || math.IsInf(in.Rate, 0) || in.User < 0 || in.Output < 1 || in.BlockSize < 1 || in.KVTokens < 1:
		return withRemedy("cannot size: a figure is negative or no number", "check rate, tokens and block size")
	case !(in.Utilisation > 0 && in.Utilisation < 1) || !(in.Headroom >= 0 && in.Headroom < 1):
		return withRemedy("cannot size: utilisation and headroom are shares between 0 and 1", "70 % is 0.7")
	case in.Count == 0 && len(in.Nodes) == 0 && in.Rate == 0:
		return withRemedy("cannot size: there are neither nodes nor a rate", "give one of them")
	case in.Count < 0 || in.Count > 1<<15 || in.Join < 0 || in.Leave < 0:
		return withRemedy("cannot size: a number of nodes is negative or above 32768", "size one cell of the fleet at the same rate per node")
	}
	return in.fillPrefixes()
}

func (in *CapacityInput) fillPrefixes() error {
	total := 0.0
	for i := range in.Prefixes {
		p := &in.Prefixes[i]
		if p.Tokens < in.BlockSize {
			return withRemedy(fmt.Sprintf("cannot size: prefix %s has %d tokens and a block has %d", p.Name, p.Tokens, in.BlockSize), "it cannot be cached: remove it")
		}
		if !(p.Share >= 0) || math.IsInf(p.Share, 0) {
			return withRemedy("cannot size: the share of prefix "+p.Name+" is negative or no number", "a share of 30 % is 0.3")
		}
		if p.Key == 0 {
			p.Key = turnKey("prefix " + p.Name)
		}
		total += p.Share
	}
	for i := range in.Prefixes {
		if total > 0 {
			in.Prefixes[i].Share /= total
		} else {
			in.Prefixes[i].Share = 1 / float64(len(in.Prefixes))
		}
	}
	return nil
}

// NewCapacity works the figures out.
func NewCapacity(in CapacityInput) (*Capacity, error) {
	prefixes := append([]CapacityPrefix(nil), in.Prefixes...)
	in.Prefixes = prefixes
	if err := in.fill(); err != nil {
		return nil, err
	}
	c := &Capacity{Omitted: omitted}
	if len(in.Nodes) == 0 {
		if in.Count == 0 {
			in.Count = min(needOf(in.Model, &in).Nodes, 1<<15)
		}
		for i := range in.Count {
			in.Nodes = append(in.Nodes, "node-"+strconv.Itoa(i+1))
		}
	}
	in.Count = len(in.Nodes)
	c.Input = in
	pl, err := place(&in, in.Nodes)
	if err != nil {
		return nil, err
	}
	c.memory(pl)
	c.steady(pl)
	c.peak(pl)
	for _, name := range []string{"8b-tp1", "32b-tp2", "70b-tp4", "70b-tp8"} {
		m, err := PresetByName(name)
		if err != nil {
			return nil, err
		}
		c.Needed = append(c.Needed, needOf(m, &in))
	}
	if c.Join, err = movesJoin(&in, pl); err != nil {
		return nil, err
	}
	c.Leave, err = movesLeave(&in, pl)
	return c, err
}

// placement is who holds what.
type placement struct {
	names []string
	k     []int       // owners by prefix
	nodes [][]int     // by prefix: the nodes that get requests, in ring order
	flow  [][]float64 // by prefix and place: requests/s
}

func place(in *CapacityInput, names []string) (*placement, error) {
	r, err := ring.New(in.Ring)
	if err != nil {
		return nil, err
	}
	members := make([]ring.Member, len(names))
	index := make(map[string]int, len(names))
	for i, n := range names {
		members[i], index[n] = ring.Member{Name: n}, i
	}
	if err := r.Apply(members); err != nil {
		return nil, fmt.Errorf("cannot size: %w", err)
	}
	pl := &placement{names: names}
	rates := make([]float64, len(in.Prefixes))
	order := make([][]int, len(in.Prefixes))
	for i, p := range in.Prefixes {
		k := p.K
		if k <= 0 {
			k = OwnersFor(p.Share, len(names))
		}
		pl.k = append(pl.k, min(k, len(names)))
		for _, n := range r.Owners(p.Key, len(names), nil) {
			order[i] = append(order[i], index[n.Name()])
		}
		rates[i] = in.Rate * p.Share
	}
	limit := in.boundRate(in.Rate / float64(len(names)))
	bound := make([]float64, len(names))
	for n := range bound {
		bound[n] = limit
	}
	flow, _ := spread(order, pl.k, rates, bound)
	for i := range order {
		var nodes []int
		var flows []float64
		for j, n := range order[i] {
			if j < pl.k[i] || flow[i][j] > traceFlow*rates[i]/float64(pl.k[i]) {
				nodes, flows = append(nodes, n), append(flows, flow[i][j])
			}
		}
		pl.nodes, pl.flow = append(pl.nodes, nodes), append(pl.flow, flows)
	}
	return pl, nil
}

// boundRate is the rate at which a node reaches the router's bound, given the mean rate:
// the bound is in requests in flight, which grow faster than the rate.
func (in *CapacityInput) boundRate(mean float64) float64 {
	inFlight := func(rate float64) float64 { return in.Model.load(in, in.meanPrefix(), rate).batch }
	factor, floor, margin := in.Ring.Factor, in.Ring.Floor, in.Ring.Margin
	if factor == 0 {
		factor = ring.DefaultFactor
	}
	if floor == 0 {
		floor = ring.DefaultFloor
	}
	if margin == 0 {
		margin = ring.DefaultMargin
	}
	limit := math.Max(float64(floor)/float64(ring.Unit), factor*inFlight(mean)) + math.Max(float64(margin), 0)/float64(ring.Unit)
	low, high := 0.0, 1/in.Model.perRequest(in.meanPrefix(), in.User, in.Output)
	if math.IsInf(limit, 0) {
		return factor * mean // an overloaded fleet: nothing holds, but the bound is even
	}
	for range 60 {
		if mid := (low + high) / 2; inFlight(mid) < limit {
			low = mid
		} else {
			high = mid
		}
	}
	return math.Max(low, mean)
}

// memory fills the nodes and says whether everything fits.
func (c *Capacity) memory(pl *placement) {
	in := &c.Input
	c.Nodes = make([]CapacityNode, len(pl.names))
	for i, n := range pl.names {
		c.Nodes[i].Node = n
	}
	for i, p := range in.Prefixes {
		for j, n := range pl.nodes[i] {
			c.Nodes[n].Prefixes++
			c.Nodes[n].Tokens += wholeBlocks(p.Tokens, in.BlockSize)
			c.Nodes[n].Rate += pl.flow[i][j]
		}
	}
	least, short := int64(math.MaxInt64), 0
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Working = c.working(n.Rate)
		n.Free = in.KVTokens - n.Tokens - n.Working
		if n.Free < least {
			least = n.Free
		}
		if n.Free < 0 {
			short++
		}
	}
	if c.Fits = short == 0; !c.Fits {
		c.Why = fmt.Sprintf("%d of %d nodes have too little KV memory, the worst by %d of %d tokens", short, len(c.Nodes), -least, in.KVTokens)
	}
}

// working is the KV that running requests hold on a node beside the shared prefixes: the
// batch's own tokens, and the headroom at least.
func (c *Capacity) working(rate float64) int64 {
	in := &c.Input
	l := in.Model.load(in, c.meanPrefix(), rate)
	own := l.batch * (float64(in.User) + float64(in.Output)/2)
	if math.IsInf(own, 0) {
		own = float64(in.KVTokens)
	}
	return int64(math.Max(own, in.Headroom*float64(in.KVTokens)))
}

// meanPrefix is the prefix length of the mean request.
func (c *Capacity) meanPrefix() float64 { return c.Input.meanPrefix() }

func (in *CapacityInput) meanPrefix() float64 {
	sum := 0.0
	for _, p := range in.Prefixes {
		sum += p.Share * float64(p.Tokens)
	}
	return sum
}
