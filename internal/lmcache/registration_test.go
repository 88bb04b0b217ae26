package lmcache

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/kv"
)

var plainReg = pairs{"instance_id", 1<<62 + 5, "model_name", "m", "world_size", 2, "block_size", 16, "num_layers", 3,
	"hidden_dim_size", 16, "dtype_str", "bfloat16", "use_mla", false, "num_physical_slots", nil,
	"engine_group_infos", []any{}, "group_hidden_dim_sizes", nil}

func group(id, window int, layers ...any) pairs {
	return pairs{"engine_group_id", id, "layer_indices", layers, "tokens_per_block", 16, "sw_size_tokens", window,
		"extra_object_group_tag", 0, "recurrent_state", false, "cache_role", "kv", "page_size_padded", nil}
}

func desc(dtype string, shape ...any) pairs {
	return pairs{"shapes", []any{shape}, "dtypes", []any{dtype}}
}

func TestChunkLayouts(t *testing.T) {
	bf16 := func(shape ...int) kv.ChunkLayout { return kv.ChunkLayout{Shape: shape, DType: kv.BFloat16} }
	two := []any{group(0, -1, 0, 2), group(1, -1, 1)}
	kernel := pairs{"num_layers", 3, "num_physical_slots", nil, "hidden_dim_size", 16, "dtype_str", "bfloat16", "use_mla", false}
	tests := []struct {
		name string
		in   pairs
		want []kv.ChunkLayout // nil: ErrLayout
	}{
		{"plain", plainReg, []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"older, without later fields", plainReg[:16], []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"groups nil", plainReg.with("engine_group_infos", nil), []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"with prefix", plainReg.with("dtype_str", "torch.float16"), []kv.ChunkLayout{{Shape: []int{2, 3, 64, 16}, DType: kv.Float16}}},
		{"one plane", plainReg.with("use_mla", true), []kv.ChunkLayout{bf16(3, 64, 16)}},
		{"one plane as int", plainReg.with("use_mla", 1), []kv.ChunkLayout{bf16(3, 64, 16)}},
		{"physical slots", plainReg.with("num_physical_slots", 80), []kv.ChunkLayout{bf16(2, 3, 80, 16)}},
		{"one plain group", plainReg.with("engine_group_infos", []any{group(0, -1, 0, 1, 2)}), []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"one group of fewer layers", plainReg.with("engine_group_infos", []any{group(0, -1, 0)}), []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"one kernel group", plainReg.with("kernel_groups", []any{kernel}), []kv.ChunkLayout{bf16(2, 3, 64, 16)}},
		{"two groups", plainReg.with("engine_group_infos", two), []kv.ChunkLayout{bf16(2, 2, 64, 16), bf16(2, 1, 64, 16)}},
		{"two groups with hidden sizes", plainReg.with("engine_group_infos", two).with("group_hidden_dim_sizes", []any{16, 8}),
			[]kv.ChunkLayout{bf16(2, 2, 64, 16), bf16(2, 1, 64, 8)}},
		{"hidden sizes alone", plainReg.with("group_hidden_dim_sizes", []any{16, 8}),
			[]kv.ChunkLayout{bf16(2, 3, 64, 16), bf16(2, 3, 64, 8)}},
		{"descriptors", plainReg.with("engine_group_infos", two).with("group_layout_descs",
			[]any{desc("torch.bfloat16", 2, 2, 64, 16), desc("torch.uint8", 1, 64, 32)}),
			[]kv.ChunkLayout{bf16(2, 2, 64, 16), {Shape: []int{1, 64, 32}, DType: kv.UInt8}}},
		{"empty descriptors", plainReg.with("group_layout_descs", []any{}), []kv.ChunkLayout{bf16(2, 3, 64, 16)}},

		{"unknown dtype", plainReg.with("dtype_str", "complex64"), nil},
		{"no layers", plainReg.with("num_layers", 0), nil},
		{"no hidden", plainReg.with("hidden_dim_size", 0), nil},
		{"too large", plainReg.with("hidden_dim_size", 1<<40), nil},
		{"sliding window", plainReg.with("engine_group_infos", []any{group(0, -1, 0), group(1, 1024, 1)}), nil},
		{"sliding window alone", plainReg.with("engine_group_infos", []any{group(0, 128, 0, 1, 2)}), nil},
		{"recurrent", plainReg.with("engine_group_infos", []any{group(0, -1, 0).with("recurrent_state", true)}), nil},
		{"group without layers", plainReg.with("engine_group_infos", []any{group(0, -1, 0), group(1, -1)}), nil},
		{"two kernel groups", plainReg.with("kernel_groups", []any{kernel, kernel}), nil},
		{"quantised", plainReg.with("enable_l1_kvweave_quant", true), nil},
		{"groups disagree", plainReg.with("engine_group_infos", two).with("group_hidden_dim_sizes", []any{16, 8, 4}), nil},
		{"two tensors in an object", plainReg.with("group_layout_descs", []any{pairs{
			"shapes", []any{[]any{2, 64}, []any{2, 64}}, "dtypes", []any{"uint8", "uint8"}}}), nil},
		{"descriptor of unknown dtype", plainReg.with("group_layout_descs", []any{desc("torch.qint8", 2, 64)}), nil},
		{"descriptor without dimensions", plainReg.with("group_layout_descs", []any{desc("torch.uint8")}), nil},
		{"descriptor too large", plainReg.with("group_layout_descs", []any{desc("uint8", 1<<39, 1<<39, 1<<39)}), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r Registration
			if err := r.Decode(pack(tt.in)); err != nil {
				t.Fatal(err)
			}
			got, err := r.ChunkLayouts(64)
			if (tt.want == nil) != errors.Is(err, ErrLayout) {
				t.Fatalf("got %v, %v", got, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			kernels := r.KernelGroups
			again := Registration{KernelGroups: 5}
			if err := again.Decode(r.Append(nil)); err != nil {
				t.Fatal(err)
			}
			if again.KernelGroups = kernels; r.Groups == nil {
				r.Groups = []EngineGroup{}
			}
			for i := range r.Groups {
				if r.Groups[i].Layers == nil {
					r.Groups[i].Layers = []int{}
				}
			}
			if diff := cmp.Diff(r, again); diff != "" {
				t.Errorf("encoded and decoded: %s", diff)
			}
		})
	}
}

func TestRegistrationRejects(t *testing.T) {
	tests := map[string]pairs{
		"negative instance":   plainReg.with("instance_id", -1),
		"instance of 64 bits": plainReg.with("instance_id", uint64(math.MaxUint64)),
		"world 0":             plainReg.with("world_size", 0),
		"block 0":             plainReg.with("block_size", 0),
		"negative layers":     plainReg.with("num_layers", -1),
		"huge hidden":         plainReg.with("hidden_dim_size", 1<<41),
		"float hidden":        plainReg.with("hidden_dim_size", 16.0),
		"dtype nil":           plainReg.with("dtype_str", nil),
		"negative slots":      plainReg.with("num_physical_slots", -1),
		"groups of ints":      plainReg.with("engine_group_infos", []any{1}),
		"group without id":    plainReg.with("engine_group_infos", []any{group(0, -1).with("engine_group_id", absent)}),
		"window of -2":        plainReg.with("engine_group_infos", []any{group(0, -2)}),
		"300 groups":          plainReg.with("kernel_groups", make([]any, 300)),
		"17 dimensions":       plainReg.with("group_layout_descs", []any{desc("uint8", make([]any, 17)...)}),
		"nil shape":           plainReg.with("group_layout_descs", []any{pairs{"shapes", []any{nil}, "dtypes", []any{"uint8"}}}),
	}
	for i := 0; i < 16; i += 2 {
		name := plainReg[i].(string)
		tests["no "+name] = plainReg.with(name, absent)
	}
	for name, in := range tests {
		if err := new(Registration).Decode(pack(in)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
