// Package fakeengine is a simulated vLLM or SGLang server: real HTTP over a real
// listener, in front of the step model of package core. Tests, the demo, the
// bench tool and the quick start all use it, so that none of them needs a GPU.
//
// What is real: the four wire protocols with streams, tool calls and errors in
// each engine's own shape; a block-based prefix cache keyed by the rendered
// prompt; continuous batching in simulated time; metric names and labels; aborts
// when a client leaves; keep-alive closed after 5 s idle; sleep, restart, data
// parallel ranks, LoRA adapters. What is not: the words. The answer is made of
// four-letter tokens drawn from the seed and the prompt.
//
// Faults can be scripted over POST /fault or Engine.SetFault, and GET /oracle (or
// Engine.Counters) tells the truth whatever /metrics says.
//
// Shapes are those of vLLM 0.32 (the recorded bytes in testdata are the oracle of
// the tests) and of SGLang 0.5.13 as read from its source.
//
// Concurrency: an Engine may be used from many goroutines. One goroutine per
// data-parallel rank runs the steps; Close ends it, the listener and all
// connections, and returns when they have ended.
package fakeengine
