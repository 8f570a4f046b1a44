// Package core is the step model of one simulated engine: a continuous-batching
// scheduler with chunked prefill, a block-based prefix cache and a step-time
// equation. It does no I/O, starts no goroutine and reads no clock, so the HTTP
// engine drives it in wall time and a discrete-event simulator in its own time.
//
// Guarantees:
//   - Deterministic: equal configuration, calls and times give equal results.
//   - A decode-only step costs O(1) whatever the batch, unless token events are
//     asked for; a request on a warm shared Chain costs O(1) in the prefix length.
//   - Blocks are conserved: pinned + private + idle + free = total, always.
//
// Known differences from real engines: two requests that compute the same block
// at the same time share it as soon as it is computed (SGLang does so, vLLM keeps
// the second copy until it is freed), and all blocks of a prompt are taken at
// admission instead of one chunk at a time.
//
// A Core is not safe for concurrent use.
package core
