package client

import "github.com/holdfast-kv/holdfast/internal/lmcache"

// Key names a range of a prompt's tokens for one request:
//
//		client.Key{Model: "llama", World: 1, Tokens: prompt, End: len(prompt) / chunk * chunk, Request: "request-1", Readers: 1}
//
//	  - Model is the model's name as it was registered; no @. World is how many ranks have KV
//	    of their own, 1 to 4096, as it was registered.
//	  - Worker is the rank whose objects are meant, from 0 and below World. Lookup and
//	    FreeLookupLocks mean all ranks, whatever it says.
//	  - Tokens are all of the request so far, from the first on, not only those of the range.
//	    Start and End are the range [Start, End) in tokens: both multiples of the chunk size
//	    (Client.ChunkSize), 0 ≤ Start ≤ End ≤ len(Tokens). What is cached under a chunk depends
//	    on all tokens up to its end.
//	  - Request is the request's id, at most 1024 bytes. It is no part of what an object is called.
//	  - Salt is the tenant, "" for none: tenants never share hits. At most 128 characters, none of @ / \ NUL.
//	  - Readers is how many workers will load each rank's object, 1 to 128; above 1 only for a
//	    model with one plane whose ranks share it. Only Lookup and FreeLookupLocks use it.
//	  - Mask has a row for each object group, with an element for each chunk of the range; true
//	    leaves the chunk out. nil leaves nothing out.
type Key = lmcache.Key

// Registration is the shape of a worker's KV cache:
//
//	client.Registration{Instance: rand.Uint64() >> 1, Model: "llama", World: 1, BlockSize: 16,
//		Layers: 32, Hidden: 8 * 128, DType: "bfloat16"}
//
// Each rank's object is then one chunk: [2, Layers, chunk size, Hidden] elements, K before V.
//
//   - Instance is the worker's id, any number below 2⁶³ that no other worker has.
//   - Model and World are as in Key. All ranks of a model register the same.
//   - BlockSize is the engine's, in tokens, from 1; the chunk size must be a multiple of it.
//   - Layers from 1. Hidden is heads × head dimension of this rank, in elements, from 1. An
//     object may take at most 1 TiB.
//   - DType is the element type by torch's name, with or without "torch.": bfloat16, float16,
//     float32, float8_e4m3fn, uint8 and so on.
//   - OnePlane leaves the 2 of the shape out: no separate K and V, as with MLA.
//   - PhysicalSlots is how many places for a token an object has; 0 is the chunk size.
//
// The rest is for several object groups, and nil without. A list that is given has an element
// for each group: Groups is the engine's cache groups, GroupHidden each one's Hidden,
// GroupLayouts each one's tensor, which is then taken as it is. KernelGroups and KVWeave have
// to be zero: neither is served.
type Registration = lmcache.Registration

// EngineGroup is one cache group of an engine: its number, the numbers of its layers (from 0),
// and its tokens in a block. WindowTokens must be -1, full attention, and Recurrent false:
// nothing else is served.
type EngineGroup = lmcache.EngineGroup

// LayoutDesc is the tensor of one object: exactly one shape, in elements, and one DType by
// torch's name.
type LayoutDesc = lmcache.LayoutDesc

// Hello is what a Holdfast server says of itself: Protocol, the version of Holdfast's
// additions (1); BootID, which changes with every start; Version and PID of the server;
// ChunkSize in tokens; and Features, the names of the additions that it has.
type Hello = lmcache.Hello

// SlotRef is where in the pool an object is: Offset and Length in bytes, and Layout, its
// tensor, whose size is Length. Worker.Mem gives the memory.
type SlotRef = lmcache.SlotRef

// StoreReply is the answer to PrepareStore. Slots are to be filled, and Indices, as many, are
// the positions in the range (group-major, from 0) of the chunks that go there; what is not named
// is there already. With Pickle there are neither: bytes are copied over the connection.
type StoreReply = lmcache.StoreReply

// RetrieveReply is the answer to PrepareRetrieve. Without Success it is a miss, and the rest is
// empty. Slots are the range's chunks in order (group-major), to be read until CommitRetrieve;
// where bytes are copied over the connection Slots is nil, and Data their pickled tensors.
type RetrieveReply = lmcache.RetrieveReply
