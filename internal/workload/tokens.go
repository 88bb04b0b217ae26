package workload

// Vocabulary bounds the token ids that Tokens makes: they are below it.
const Vocabulary = 1 << 17

// Tokens appends the first n tokens of a block. They depend on the hash id alone: an
// equal id stands for an equal prefix, so equal prompts get equal tokens.
func Tokens(dst []uint32, block uint64, n int) []uint32 {
	x := mix(block + 0x9e3779b97f4a7c15)
	for range n {
		x += 0x9e3779b97f4a7c15
		dst = append(dst, uint32(mix(x)>>(64-17)))
	}
	return dst
}

// Prompt appends all tokens of a request's prompt.
func (r *Request) Prompt(dst []uint32) []uint32 {
	for i, b := range r.Blocks {
		dst = Tokens(dst, b, min(BlockTokens, r.Input-i*BlockTokens))
	}
	return dst
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
