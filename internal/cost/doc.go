// Package cost counts what requests used and estimates what that cost.
//
// # Guarantees
//
// Every token in a [Row] or a [Report] was counted by an engine; the package never
// guesses one. A request whose engine did not report cached tokens stays in the
// Partial half of [Sums]: it is counted, it is in no ratio and in no estimate.
// Money is exact decimal arithmetic from the price to the total; nothing is a
// float. Two places divide, and say so: a percentage is rounded to one place, and a
// price derived from a GPU's hourly cost to twelve. Amounts are called estimates
// and carry the source of the price. Sums over any grouping of rows equal the total.
//
// # Concurrency
//
// [Ledger] and [Budgets] are safe for concurrent use. [Book] is immutable.
// [Reporter] belongs to one goroutine. The package is pure: it reads no clock,
// starts no goroutine and touches no file; who stores rows drains them.
package cost
