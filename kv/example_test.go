package kv_test

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/kv"
)

func ExampleChain() {
	c := kv.NewChain(4)
	prompt := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8}
	for i, d := range c.Digests(prompt, len(prompt)) {
		fmt.Printf("chunk %d: %s…\n", i, d.String()[:16])
	}
	// The request goes on; only the new chunk is hashed.
	prompt = append(prompt, 9, 10, 11)
	fmt.Println(len(c.Digests(prompt, len(prompt))), "chunks")
	// Output:
	// chunk 0: a2981a4d792b45f7…
	// chunk 1: f76a7280af54e664…
	// 3 chunks
}

func ExampleChunkLayout_Bytes() {
	// 32 layers, 8 KV heads of dimension 128, 256 tokens, K and V.
	l := kv.ChunkLayout{Shape: []int{2, 32, 256, 8 * 128}, DType: kv.BFloat16}
	n, err := l.Bytes()
	fmt.Println(l, n>>20, "MiB", err)
	// Output: bfloat16[2,32,256,1024] 32 MiB <nil>
}

func ExampleObjectKey_FileName() {
	rank, err := kv.NewRank(1, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	k := kv.ObjectKey{Chunk: kv.Root, Model: "Qwen/Qwen3-8B", Rank: rank}
	fmt.Println(k.FileName())
	// Output: Qwen-SEP-Qwen3-8B@0x02010201@0@7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b.data <nil>
}
