package core_test

import (
	"fmt"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// A simulator keeps one Core per engine and a Chain per shared prefix. It submits
// at arrival times and lets Run jump from one event to the next.
func ExampleCore_Run() {
	preset, _ := core.FindPreset("70b-tp4")
	engine, err := core.New(core.Config{Cost: preset.Cost, KVTokens: preset.KVTokens})
	if err != nil {
		panic(err)
	}
	head := core.SeedChain(1, 60_000/16)
	arrivals := []time.Duration{0, 20 * time.Second}
	var events []core.Event
	now := time.Duration(0)
	for i, at := range arrivals {
		now, events = run(engine, now, at, events)
		_, err := engine.Submit(at, core.Request{
			Prompt: core.Prompt{Tokens: 60_200, Static: 60_000, Head: head, Tail: core.AppendSeed(nil, head.End(), uint64(i), 200/16)},
			Output: 10, Tag: uint64(i),
		})
		if err != nil {
			panic(err)
		}
	}
	_, events = run(engine, now, time.Minute, events)
	for _, e := range events {
		switch e.Kind {
		case core.Admitted:
			fmt.Printf("request %d finds %d tokens\n", e.Tag, e.Cached)
		case core.First:
			fmt.Printf("request %d: first token after %.2f s\n", e.Tag, (e.At - arrivals[e.Tag]).Seconds())
		}
	}
	// Output:
	// request 0 finds 0 tokens
	// request 0: first token after 7.36 s
	// request 1 finds 60000 tokens
	// request 1: first token after 0.65 s
}

func run(c *core.Core, now, until time.Duration, events []core.Event) (time.Duration, []core.Event) {
	for now < until {
		now, events = c.Run(now, until, events)
	}
	return now, events
}
