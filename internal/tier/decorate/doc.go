// Package decorate has stores around a store, one idea each: Retry, Timeout, RateLimit,
// Concurrency, Breaker, Metrics, and Faulty for tests. What is around a store that conforms to
// the contract of package tier conforms too, and is tier.Indexed if the store is.
//
// A useful order, from the inside: Concurrency and RateLimit at the store, Timeout around one
// attempt, Retry around the attempts, Breaker around what retries could not heal, Metrics around
// all.
//
// The decisions (retry schedule, token bucket, breaker) are plain values to which the time is
// passed.
package decorate
