// Package dense lays out the KV of models whose whole state is a paged pool: MHA, GQA and
// MQA with K and V planes, MLA with one latent plane and perhaps an index cache, each with
// or without FP8 scales.
//
// A Spec is the geometry that the scheduler half and every rank are configured with. From
// it come the tensors a rank must have (Tensors), the namespace its objects live in
// (Namespace), and, with the rank's own pools, the validated Layout that copies are made
// with. An object is opaque bytes: one chunk of tokens, segment after segment in the order
// of Tensors, and inside a segment block after block (specification §6.1). What the bytes
// inside a block mean is the attention kernel's business; it shows only in the namespace.
package dense
