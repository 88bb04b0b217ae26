package dense_test

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload/dense"
)

func ExampleNew() {
	spec := dense.Spec{
		Model: "meta-llama/Llama-3.1-8B", Family: dense.GQA, Layers: 32, KVHeads: 8, HeadDim: 128,
		KVDType: kv.BFloat16, BlockSize: 16, ChunkTokens: 256, TensorParallel: 1,
	}
	tensors, err := spec.Tensors()
	if err != nil {
		panic(err)
	}
	dev := host.New(host.Options{})
	const blocks = 20
	var pools []dense.Pool
	for _, t := range tensors {
		mem, err := dev.Alloc("kv", t.BlockBytes*blocks)
		if err != nil {
			panic(err)
		}
		segment, err := dense.SegmentOf(mem, 0, mem.Bytes(), blocks)
		if err != nil {
			panic(err)
		}
		pools = append(pools, dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: segment})
	}
	layout, err := dense.New(spec, pools)
	if err != nil {
		panic(err)
	}
	fmt.Println(len(tensors), "tensors,", layout.ChunkBytes(256)>>20, "MiB per chunk")
	// Output: 64 tensors, 32 MiB per chunk
}
