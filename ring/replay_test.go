//go:build !race

package ring

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"container/heap"
	"container/list"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// The replays run on one goroutine, where the race detector has nothing to find and takes
// ten times as long: they are left out of race builds.

// The replay asks what a bound costs in cache hits and what it buys in balance, on
// public traces, with the real Pick. It accounts for caches (one LRU of blocks per node)
// and for requests in flight (55 us per uncached token plus 25 ms per generated one);
// queueing inside engines is left out.

// job is one request of a trace.
type job struct {
	at     float64 // seconds
	blocks []uint64
	size   int // tokens per block
	out    int
	key    uint64
	second uint64
	chat   int // conversation that a binding would follow, -1 = none
}

const (
	secPerUncached = 55e-6
	secPerOutput   = 25e-3
)

// loadMooncake reads the conversation trace. All its requests share the first block, so
// the key is the first two. Arrivals sit on 3 s ticks and are spread over them.
func loadMooncake(t testing.TB) []job {
	f, err := os.Open("testdata/mooncake_conversation_trace.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var jobs []job
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var l struct {
			Timestamp float64  `json:"timestamp"`
			Output    int      `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		j := job{at: l.Timestamp/1000 + 3*rnd.Float64(), out: l.Output, size: 512, chat: -1}
		for _, b := range l.Blocks {
			j.blocks = append(j.blocks, mix(b))
		}
		j.key = j.blocks[min(1, len(j.blocks)-1)]
		jobs = append(jobs, j)
	}
	if sc.Err() != nil || len(jobs) != 12031 {
		t.Fatalf("trace has %d requests, %v", len(jobs), sc.Err())
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return int(1e6 * (a.at - b.at)) })
	return jobs
}

// loadClaude reads the agent traces: 64 conversations whose block ids are their own,
// but for the tools and system text, which conversations with the same sizes share.
// Each conversation starts at a random moment of the first 20 minutes.
func loadClaude(t testing.TB) []job {
	f, err := os.Open("testdata/claude_code_traces_sample.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	var jobs []job
	tr := tar.NewReader(z)
	for chat := 0; ; chat++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			chat--
			continue
		}
		jobs = append(jobs, claudeJobs(t, tr, chat, rnd.Float64()*1200)...)
	}
	if len(jobs) < 3000 {
		t.Fatalf("traces have %d requests", len(jobs))
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return int(1e3 * (a.at - b.at)) })
	return jobs
}

func claudeJobs(t testing.TB, r io.Reader, chat int, start float64) []job {
	var tr struct {
		Block    int `json:"block_size"`
		Tools    int `json:"tool_tokens"`
		System   int `json:"system_tokens"`
		Requests []struct {
			T      float64  `json:"t"`
			Out    int      `json:"out"`
			Blocks []uint64 `json:"hash_ids"`
		} `json:"requests"`
	}
	if err := json.NewDecoder(r).Decode(&tr); err != nil {
		t.Fatal(err)
	}
	static := (tr.Tools + tr.System) / tr.Block
	key := mix(uint64(tr.Tools)<<32 | uint64(tr.System))
	var jobs []job
	for _, q := range tr.Requests {
		j := job{at: start + q.T, out: q.Out, size: tr.Block, key: key, second: mix(uint64(chat)), chat: chat}
		for i, b := range q.Blocks {
			if i < static {
				j.blocks = append(j.blocks, mix(key+uint64(i)))
			} else {
				j.blocks = append(j.blocks, mix(uint64(chat)<<40|b))
			}
		}
		if len(j.blocks) > 0 {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// cache is a node's prefix cache: least recently used blocks leave first, and of one
// request the tail before the head.
type cache struct {
	room  int // tokens
	used  int
	order *list.List // front = most recent
	at    map[uint64]*list.Element
}

type cached struct {
	block uint64
	size  int
}

func newCache(room int) *cache {
	return &cache{room: room, order: list.New(), at: map[uint64]*list.Element{}}
}

// serve returns how many leading blocks are in cache, and caches all.
func (c *cache) serve(j *job) (hit int) {
	for hit < len(j.blocks) && c.at[j.blocks[hit]] != nil {
		hit++
	}
	for _, b := range slices.Backward(j.blocks) {
		if e := c.at[b]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.at[b] = c.order.PushFront(cached{b, j.size})
		c.used += j.size
	}
	for c.used > c.room {
		e := c.order.Back()
		v := c.order.Remove(e).(cached)
		delete(c.at, v.block)
		c.used -= v.size
	}
	return hit
}

// setup is one row of the table.
type setup struct {
	nodes, room int
	speed       float64 // the trace is played this much faster
	o           Options
	k           int // 0 = measured by a KSizer
	bind        bool
}

type outcome struct {
	hit      float64 // share of blocks served from cache
	spilled  float64 // share of requests that no owner took
	inflight float64 // per node, as arriving requests find it
	work     float64 // busy time, highest node over mean
	peak     float64 // requests in flight, 99th percentile of highest over mean, where mean >= 1
}

// play runs a trace through a ring.
func play(t testing.TB, jobs []job, s setup) outcome {
	r := newRing(t, names(s.nodes), s.o)
	caches := map[*Node]*cache{}
	busy := map[*Node]float64{}
	for _, n := range r.Nodes() {
		caches[n] = newCache(s.room)
	}
	clock := 0.0
	z := NewKSizer(KOptions{Now: simClock(&clock)})
	bound := map[int]*Node{}
	var out outcome
	var open endings
	var hits, blocks, spilled int
	var peaks []float64
	seen := 0.0
	for i := range jobs {
		j := &jobs[i]
		clock = j.at / s.speed
		for len(open) > 0 && open[0].at <= clock {
			e := heap.Pop(&open).(ending)
			e.slot.Release()
		}
		q := Query{Key: j.key, Second: j.second, K: s.k}
		if s.k == 0 {
			q.K = z.Observe(j.key, Unit, s.nodes)
		}
		if s.bind {
			q.Bound = bound[j.chat]
		}
		slot, reason, refusal := r.Pick(&q)
		if reason == None {
			t.Fatalf("refused: %v", refusal)
		}
		if reason == Overflow {
			spilled++
		}
		n := slot.Node()
		bound[j.chat] = n
		hit := caches[n].serve(j)
		hits += hit
		blocks += len(j.blocks)
		life := secPerUncached*float64((len(j.blocks)-hit)*j.size) + secPerOutput*float64(j.out)
		busy[n] += life
		heap.Push(&open, ending{clock + life, slot})
		highest, mean := spread(r)
		seen += mean
		if mean >= 1 && i > len(jobs)/20 {
			peaks = append(peaks, highest/mean)
		}
	}
	var sum, top float64
	for _, b := range busy {
		sum += b
		top = max(top, b)
	}
	out.hit = float64(hits) / float64(blocks)
	out.spilled = float64(spilled) / float64(len(jobs))
	out.inflight = seen / float64(len(jobs))
	out.work = top / (sum / float64(s.nodes))
	if slices.Sort(peaks); len(peaks) > 0 {
		out.peak = peaks[len(peaks)*99/100]
	}
	return out
}
