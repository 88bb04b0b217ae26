// Package kv has the vocabulary of a KV cache: token chunks and the hash chain
// that names them, the layout of a chunk's tensor, and the key of one stored
// object.
//
// A prompt is cut into chunks of a fixed number of tokens. The digest of chunk i
// covers every token from the start of the prompt to the end of chunk i, so equal
// digests mean equal whole prefixes. An object is the KV of one chunk, for one
// tensor-parallel rank and one object group.
package kv
