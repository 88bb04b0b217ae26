// Package offload is the engine-side half of KV offload: what to save and load when, whose
// memory may be freed when, and how copies are ordered against the forward pass. Its
// semantics follow ROCm/ATOM's KV offload, with the rulings R1 to R10 of the specification.
//
// The scheduler half (Scheduler) runs in the engine's scheduler process and touches no
// device memory. It is a plain single-threaded value. Each step it builds one Meta, which
// goes to every tensor-parallel rank before that step's forward. The worker half
// (offload/worker) runs beside the model on each rank, moves the bytes, and answers polls
// with Outputs. Stores (offload/store) are where the bytes go: a cache in this process, or a
// server over its socket and shared memory.
package offload
