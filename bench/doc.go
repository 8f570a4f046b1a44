// Package bench makes load, measures it honestly and replays it.
//
// What it guarantees:
//
//   - Open loop by default. The whole schedule is computed from a seed before the
//     first byte is sent, a slow answer never delays the next request, and every
//     latency is taken from the moment the request was planned to leave, so a stall
//     of the server stays in the percentiles (field case B71).
//   - Time to first token is the first event that carries text, reasoning or a tool
//     call. A role-only chunk, a comment and an empty delta are not tokens (B68).
//   - Tokens are what the server's usage says, never the number of chunks (B70).
//   - A failed, empty or cut answer is an error of its own kind and gives no sample
//     to any percentile (B72).
//   - The tool watches itself: send lag, achieved rate and own CPU are in the result,
//     and a run in which the tool was the bottleneck says so (Result.Valid).
//   - A run's prompts carry a nonce, so a cold run is cold.
//
// Run makes load, Replay plays a trace. The simulator in simulated time is package bench/sim and the HTML report
// is package bench/report.
//
// Concurrency: every function owns the goroutines it starts and returns after the
// last one has ended. Options are read only. Callbacks are called from one goroutine
// at a time and must not block.
package bench
