// Package tier is the contract of a second-level store: where objects are kept that memory
// has no room for, or that should survive the process. Implementations are in the packages
// below it: disk, valkey and s3; decorators (retry, limits, metrics, circuit breaker) in
// decorate; one conformance suite for all of them in conform.
//
// Three rules hold for every store:
//
//   - what Exists, Get and List show was put completely: a put that failed, was cancelled or
//     was cut by a crash is never visible (field report, C 1);
//   - a Get returns only when nothing writes to its memory any more, also when its context
//     has ended (design §1, rule 2). It may then return late: a caller with a deadline leaves
//     the memory alone until it does;
//   - bytes that are not what was put are an error, never a result: every Get checks the
//     header and the XXH3-128 of the object.
package tier
