// Package workload is request traces in the Mooncake format: reading and writing them,
// the figures that describe one, and a seeded generator of traces with the figures of a
// production chat service (Mooncake, FAST'25, conversation trace).
//
// A trace names its prompts by hash ids: each id stands for a block of BlockTokens
// tokens together with everything before it, so equal ids mean equal prefixes. The
// tokens themselves are not in a trace; Tokens makes them up from the ids.
package workload
