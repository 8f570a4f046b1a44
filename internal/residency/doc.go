// Package residency knows what is warm where: for each (node, fingerprint), what the
// evidence says about the prefix being in that node's KV cache.
//
// # Guarantees
//
//   - Warm is answered only on evidence (a reported cache hit, a prewarm proof, engine
//     counters, a time-to-first-token ratio, a finished prefill), and only until that
//     evidence is too old, too much else has been written to the node's cache since, or
//     the node was forgotten (restart, sleep, reset, flush). No evidence is Unknown; it
//     is never Warm, and an unreported count is never a zero (field case B67).
//   - At most one lead per (node, fingerprint) is out at a time, so that a fat prefix is
//     prefilled once per node and not once per waiting request (field case B60).
//   - Memory is bounded by MaxEntries; the weakest and oldest evidence makes room.
//   - It holds digests and numbers; never text, keys or tenants.
//
// # Concurrency
//
// All methods may be called from any goroutine. Warmth is lock-free and allocates
// nothing. Observe and Lead hold one of 64 mutexes, chosen by the fingerprint, for some
// tens of nanoseconds, and allocate only when a lead begins. Forget is O(1): it starts
// a new epoch of the node, and what was seen before no longer counts. The package
// starts no goroutine, does no I/O, and has no clock but the injected one.
package residency
