// Package ring places fingerprints on nodes and picks, for one request, a node
// that may take it under the bound.
//
// # Guarantees
//
//   - Placement depends on member names and weights and on nothing else: not on
//     the order of registration, on time or on chance. Two processes that know the
//     same members agree bit for bit, without talking.
//   - The order of a partition is: the owner that the consistent library names,
//     its heir (the node that would own the partition if the owner left), then the
//     rest by weighted rendezvous. The heir is what makes the step from "closed" to
//     "gone" and from "joining" to "open" cheap: the node that served the key stays
//     next in line, so that its cache is used.
//   - A pick never takes a node over its bound: the reservation is one
//     compare-and-swap of the node's load, so that no burst can overshoot.
//   - A slot is given back exactly once, whoever calls Release and however often.
//   - A rebuild that fails keeps the old snapshot.
//
// # Concurrency
//
// The placement is an immutable snapshot behind an atomic pointer. Pick, Owners and
// the methods of Node and Slot may be called from any goroutine; they take no lock
// and allocate nothing. Apply and SetLevel take a mutex between themselves and never
// make a pick wait. The package starts no goroutine, does no I/O, and has no clock
// of its own (KSizer gets one).
//
// # Work units
//
// Loads and bounds are counted in units of 1/1000 request (Unit): a request in flight
// weighs Unit, and the caller adds Unit per quantum of uncached prompt tokens.
package ring
