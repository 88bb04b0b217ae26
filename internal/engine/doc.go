// Package engine is a small reference engine: block pool, scheduler loop, tensor-parallel
// ranks with their own devices, and a deterministic transformer whose KV lives in paged pools
// on those devices. It exists to prove the connector: with greedy decoding, the tokens and
// the bits of the logits with offload equal those without any cache, so one wrong KV byte
// shows. It is not fast and has no tokenizer.
//
// A forward gives the same bits for a token whatever the prefill chunks, the batch around it
// and the number of ranks, because each token is computed alone, every sum has one order, and
// fresh KV is read back in its stored form. Its KV reaches the pool by a kernel at the end of
// the forward that nobody waits for: a save that does not wait for the compute stream reads
// stale blocks here as on a GPU.
//
// Step is one scheduler step in the order of the offload specification (§1.3); Run steps
// until nothing is left to do. An Engine is for one goroutine at a time.
package engine
