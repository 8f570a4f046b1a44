// Package prewarm makes known prefixes warm before traffic comes, proves that they
// are, and keeps them so.
//
// The steps are separate and each can be used alone:
//
//   - LoadManifest reads what should be warm (YAML) and refuses what is wrong with line,
//     field and remedy. Capture makes an entry from a real request body.
//   - NewPlan says which node warms what, in which order, how long that takes, whether
//     it ends before the deadlines and fits the KV memory; it refuses, with figures,
//     what cannot work.
//   - Run sends the warm requests to the engines and proves each prefix with a second
//     request. Verify only proves.
//   - Scheduler does all of this by itself inside the router: deadlines, touches before
//     the engine's LRU would drop a prefix, re-warming after restarts, the next day's
//     text before midnight.
//   - NewCapacity answers what fits, and how many engines a peak needs, from figures.
//
// # Guarantees
//
//   - A prefix is called warm only on evidence, and the evidence is named: cached tokens
//     that the engine reported, or the weaker engine counters or time ratio.
//   - A warm request is built from the real one. Every field that can change the
//     rendered prompt keeps its bytes; the user's turn is replaced by a short one of
//     ours; what is generated is one token.
//   - One fat prefill at a time per node (unless told otherwise), none while the node is
//     saturated, and requests go straight to the engine: they are never billed, bound to
//     a conversation or counted in the latency of users.
//   - Nothing this package stores, logs or returns in an error holds prompt text, a key
//     or a salt: digests and names only.
//
// # Concurrency
//
// Manifest, Plan and Capacity are values to read once made. Run and Verify may be called
// from several goroutines with different Options. A Scheduler is driven by one Run call;
// its other methods may be called from any goroutine. Every goroutine ends before the
// call that started it returns. The clock is injected; nothing sleeps outside it.
package prewarm
