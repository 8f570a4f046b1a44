// Package discovery finds the engines of a pool: from a fixed list, a watched file,
// DNS, or Kubernetes.
//
// A Source produces full sets; a Keeper runs one, and stands between it and the ring.
// They guarantee:
//
//   - An empty set replaces a non-empty one only after it has been confirmed for a
//     grace time. An error replaces nothing.
//   - How old the knowledge is can always be asked (Keeper.Age), so that a source that
//     has gone silent shows in readiness instead of in failing requests.
//   - Names are stable: what identifies an engine across changes of its address is the
//     name that its source knows it by (docs/health.md has a table).
//   - One engine is one endpoint, however many addresses it has.
//
// # Concurrency
//
// A Source is run by one goroutine at a time and starts none that outlives Run. A
// Keeper's methods are safe for concurrent use.
package discovery
