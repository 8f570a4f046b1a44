package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// claudeFile is one conversation of the kv-cache-tester traces.
type claudeFile struct {
	ID       string          `json:"id"`
	Block    int             `json:"block_size"`
	Tools    int             `json:"tool_tokens"`
	System   int             `json:"system_tokens"`
	Requests []claudeRequest `json:"requests"`
}

type claudeRequest struct {
	T        float64         `json:"t"` // seconds since the conversation began
	In       int             `json:"in"`
	Out      int             `json:"out"`
	Hashes   []uint64        `json:"hash_ids"`
	Think    float64         `json:"think_time"`
	Tools    int             `json:"tool_tokens"` // a sub-agent's own
	System   int             `json:"system_tokens"`
	Requests []claudeRequest `json:"requests"` // a sub-agent's
}

// ClaudeOptions say what the traces do not.
type ClaudeOptions struct {
	// Variants is how many different tool-and-system texts the conversations use. The
	// hash ids are local to a conversation, so what is shared between them has to be
	// modelled: conversation i has variant i mod Variants. 0 means 8.
	Variants int
	// Every is the mean gap between two conversations' first requests; 0 means 5 s.
	Every time.Duration
	Seed  uint64
}

// ClaudeTraces collects conversations into one trace.
type ClaudeTraces struct {
	o     ClaudeOptions
	t     Trace
	files int
	next  int // session
	start time.Duration
}

// NewClaudeTraces starts an empty collection.
func NewClaudeTraces(o ClaudeOptions) *ClaudeTraces {
	o.Variants = orInt(o.Variants, 8)
	o.Every = orDefault(o.Every, 5*time.Second)
	return &ClaudeTraces{o: o, t: Trace{Name: "claude-code"}}
}

// Add reads one file.
func (c *ClaudeTraces) Add(r io.Reader) error {
	var f claudeFile
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		return fmt.Errorf("cannot read conversation %d: %w", c.files+1, err)
	}
	if f.Block <= 0 || len(f.Requests) == 0 {
		return fmt.Errorf("cannot read conversation %q: no block_size or no requests", f.ID)
	}
	if c.t.BlockTokens != 0 && c.t.BlockTokens != f.Block {
		return fmt.Errorf("cannot mix block sizes %d and %d", c.t.BlockTokens, f.Block)
	}
	c.t.BlockTokens = f.Block
	err := c.session(&f, f.Requests, f.Tools+f.System, "")
	gap := newRand(seedOf(c.o.Seed, 0x636c, uint64(c.files))).ExpFloat64()
	c.start += time.Duration(gap * float64(c.o.Every))
	c.files++
	return err
}

// session adds one chain of requests, and its sub-agents as chains of their own.
func (c *ClaudeTraces) session(f *claudeFile, reqs []claudeRequest, static int, agent string) error {
	session := c.next
	c.next++
	own := seedOf(seedOfString(f.ID), seedOfString(agent))
	for i := range reqs {
		q := &reqs[i]
		if len(q.Requests) > 0 {
			if err := c.session(f, q.Requests, q.Tools+q.System, fmt.Sprintf("%s/%d", agent, i)); err != nil {
				return err
			}
			continue
		}
		if q.In <= 0 || len(q.Hashes) == 0 {
			continue // a record of a tool or a failed call: no prompt to send
		}
		if q.In > (len(q.Hashes)+1)*f.Block || q.T < 0 || q.Think < 0 || q.Out < 0 {
			return fmt.Errorf("cannot read conversation %q request %d: %w", f.ID, i, errors.New("lengths and hash ids do not agree"))
		}
		lead := min(static/f.Block, len(q.Hashes))
		blocks := make([]uint64, len(q.Hashes))
		for j, h := range q.Hashes {
			if j < lead {
				blocks[j] = seedOf(0x73746174, uint64(c.files%c.o.Variants), uint64(j)) // "stat"
			} else {
				blocks[j] = seedOf(own, h)
			}
		}
		c.t.Requests = append(c.t.Requests, TraceRequest{
			At: c.start + time.Duration(q.T*float64(time.Second)), Session: session, Think: time.Duration(q.Think * float64(time.Second)),
			Blocks: blocks, System: lead, Input: min(q.In, len(blocks)*f.Block), Output: max(1, q.Out),
		})
	}
	return nil
}

// Trace returns what was collected, in order of time.
func (c *ClaudeTraces) Trace() (*Trace, error) {
	return c.t.Shape(ReplayOptions{})
}
