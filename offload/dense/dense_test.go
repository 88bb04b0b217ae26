package dense

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
)

func gqa() Spec {
	return Spec{
		Model: "org/model", Family: GQA, Layers: 3, KVHeads: 4, HeadDim: 8, KVDType: kv.BFloat16,
		BlockSize: 4, ChunkTokens: 16, TensorParallel: 2,
	}
}

func fp8() Spec {
	s := gqa()
	s.KVDType, s.Scales = kv.Float8E4M3, TokenScales
	return s
}

func mla() Spec {
	return Spec{
		Model: "org/mla", Family: MLA, Layers: 2, DraftLayers: 1, LatentDim: 12, KVDType: kv.Float8E4M3,
		IndexDim: 5, IndexDType: kv.UInt8, BlockSize: 4, ChunkTokens: 8, TensorParallel: 4,
	}
}

func TestTensors(t *testing.T) {
	mqa := gqa()
	mqa.KVHeads, mqa.Layers, mqa.TensorParallel = 1, 1, 8
	plain := mla()
	plain.IndexDim, plain.IndexDType, plain.Layers, plain.DraftLayers = 0, "", 1, 0
	perBlock := fp8()
	perBlock.Scales, perBlock.Layers = BlockScales, 1
	perToken := fp8()
	perToken.Layers = 1
	for name, c := range map[string]struct {
		spec Spec
		want string
	}{
		"mqa, a head shared by all ranks": {mqa, "[{0 k_cache 64} {0 v_cache 64}]"},
		"fp8, a scale per token":          {perToken, "[{0 k_cache 64} {0 v_cache 64} {0 k_scale 32} {0 v_scale 32}]"},
		"fp8, a scale per block":          {perBlock, "[{0 k_cache 64} {0 v_cache 64} {0 k_scale 8} {0 v_scale 8}]"},
		"mla":                             {plain, "[{0 k_cache 48}]"},
		"mla with index and draft": {mla(), "[{0 k_cache 48} {0 index_cache 20} {1 k_cache 48} {1 index_cache 20} " +
			"{2 k_cache 48} {2 index_cache 20}]"},
	} {
		tensors, err := c.spec.Tensors()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var parts []string
		for _, x := range tensors {
			parts = append(parts, fmt.Sprintf("{%d %s %d}", x.Layer, x.Kind, x.BlockBytes))
		}
		if got := "[" + strings.Join(parts, " ") + "]"; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestInvariant46BadGeometryIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		base   func() Spec
		change func(*Spec)
		want   string
	}{
		{gqa, func(s *Spec) { s.Model = "" }, "Model"},
		{gqa, func(s *Spec) { s.Model = "a@b" }, "Model"},
		{gqa, func(s *Spec) { s.Model = "a\x00" }, "Model"},
		{gqa, func(s *Spec) { s.Family = "" }, "Family"},
		{gqa, func(s *Spec) { s.Family = "dsv4" }, "Family"},
		{gqa, func(s *Spec) { s.Layers = 0 }, "Layers 0"},
		{gqa, func(s *Spec) { s.Layers = math.MaxInt }, "Layers"},
		{gqa, func(s *Spec) { s.DraftLayers = -1 }, "DraftLayers -1"},
		{gqa, func(s *Spec) { s.KVHeads = 0 }, "KVHeads 0"},
		{gqa, func(s *Spec) { s.KVHeads = 5 }, "KVHeads 5"},
		{gqa, func(s *Spec) { s.HeadDim = -8 }, "HeadDim -8"},
		{gqa, func(s *Spec) { s.HeadDim = math.MaxInt }, "HeadDim"},
		{gqa, func(s *Spec) { s.Scales = "tensor" }, "Scales"},
		{gqa, func(s *Spec) { s.LatentDim = 1 }, "LatentDim 1"},
		{gqa, func(s *Spec) { s.IndexDim = 1 }, "IndexDim 1"},
		{gqa, func(s *Spec) { s.IndexDType = kv.Int8 }, "IndexDType"},
		{gqa, func(s *Spec) { s.KVDType = "fp8" }, "KVDType"},
		{gqa, func(s *Spec) { s.KVDType = "" }, "KVDType"},
		{gqa, func(s *Spec) { s.BlockSize = 0 }, "BlockSize 0"},
		{gqa, func(s *Spec) { s.ChunkTokens = 0 }, "ChunkTokens 0"},
		{gqa, func(s *Spec) { s.ChunkTokens = 18 }, "ChunkTokens 18"},
		{gqa, func(s *Spec) { s.ChunkTokens = 2 }, "ChunkTokens 2"},
		{gqa, func(s *Spec) { s.TensorParallel = 0 }, "TensorParallel 0"},
		{gqa, func(s *Spec) { s.TensorParallel, s.KVHeads = 256, 256 }, "TensorParallel 256"},
		{gqa, func(s *Spec) { s.TensorParallel = 3 }, "TensorParallel 3"},
		{gqa, func(s *Spec) { s.ChunkTokens, s.HeadDim, s.Layers = maxDim, maxDim, maxLayers }, "chunk"},
		{mla, func(s *Spec) { s.ChunkTokens, s.LatentDim = maxDim, maxDim }, "chunk"},
		{mla, func(s *Spec) { s.LatentDim = 0 }, "LatentDim 0"},
		{mla, func(s *Spec) { s.IndexDim = -1 }, "IndexDim -1"},
		{mla, func(s *Spec) { s.IndexDType = "" }, "IndexDType"},
		{mla, func(s *Spec) { s.IndexDim = 0 }, "IndexDType"},
		{mla, func(s *Spec) { s.KVHeads = 1 }, "KVHeads 1"},
		{mla, func(s *Spec) { s.HeadDim = 1 }, "HeadDim 1"},
		{mla, func(s *Spec) { s.Scales = TokenScales }, "Scales"},
	} {
		s := c.base()
		c.change(&s)
		_, tensors := s.Tensors()
		name, namespace := s.Namespace()
		_, layout := New(s, nil)
		for _, err := range []error{tensors, namespace, layout} {
			if !errors.Is(err, ErrGeometry) || !strings.Contains(err.Error(), c.want) || name != "" {
				t.Errorf("%+v: %v, want %s", s, err, c.want)
			}
		}
	}
}

func TestInvariant44NamespaceIsAFunctionOfTheGeometry(t *testing.T) {
	base := fp8()
	first, err := base.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	// These are names that objects are kept under: a change loses all of them.
	if want := "org/model::holdfast-dense-v1-da58a8a0c5ad2fa44068227b5d3ac1b2"; first != want {
		t.Errorf("%s, want %s", first, want)
	}
	if name, err := mla().Namespace(); err != nil || name != "org/mla::holdfast-dense-v1-fc478ada0f10b81b28552838336bdb9b" {
		t.Errorf("%s, %v", name, err)
	}
	again := fp8()
	if second, _ := again.Namespace(); second != first {
		t.Errorf("the same geometry gives %s and %s", first, second)
	}
	seen := map[string]string{first: "itself"}
	for what, change := range map[string]func(*Spec){
		"model":     func(s *Spec) { s.Model = "org/model2" },
		"layers":    func(s *Spec) { s.Layers++ },
		"draft":     func(s *Spec) { s.DraftLayers++ },
		"heads":     func(s *Spec) { s.KVHeads *= 2 },
		"head dim":  func(s *Spec) { s.HeadDim *= 2 },
		"no scales": func(s *Spec) { s.Scales = NoScales },
		"scales":    func(s *Spec) { s.Scales = BlockScales },
		"kv dtype":  func(s *Spec) { s.KVDType = kv.Float8E5M2 },
		"block":     func(s *Spec) { s.BlockSize = 2 },
		"chunk":     func(s *Spec) { s.ChunkTokens = 32 },
		"tp":        func(s *Spec) { s.TensorParallel = 4 },
		"mla":       func(s *Spec) { *s = mla() },
		"latent":    func(s *Spec) { *s = mla(); s.LatentDim++ },
		"index":     func(s *Spec) { *s = mla(); s.IndexDim++ },
		"index type": func(s *Spec) {
			*s = mla()
			s.IndexDType = kv.Int8
		},
		"layers swapped": func(s *Spec) { s.Layers, s.DraftLayers = 2, 1 },
	} {
		s := fp8()
		change(&s)
		name, err := s.Namespace()
		if other, ok := seen[name]; ok || err != nil {
			t.Errorf("%s has the name of %s: %s, %v", what, other, name, err)
		}
		seen[name] = what
	}
}

// rank allocates the pools of a spec on a device that runs nothing by itself.
func rank(t interface {
	Fatal(...any)
	Helper()
}, s Spec, blocks int) (*host.Device, []Pool) {
	t.Helper()
	dev := host.New(host.Options{Mode: host.Deferred})
	tensors, err := s.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	var pools []Pool
	for _, x := range tensors {
		mem, err := dev.Alloc("kv", x.BlockBytes*int64(blocks))
		if err != nil {
			t.Fatal(err)
		}
		g, err := SegmentOf(mem, 0, mem.Bytes(), blocks)
		if err != nil {
			t.Fatal(err)
		}
		pools = append(pools, Pool{x.Layer, x.Kind, g})
	}
	return dev, pools
}

func TestLayoutSizes(t *testing.T) {
	for _, s := range []Spec{gqa(), fp8(), mla()} {
		_, pools := rank(t, s, 10)
		l, err := New(s, pools)
		if err != nil {
			t.Fatal(err)
		}
		var perBlock int64
		for _, g := range l.Segments() {
			perBlock += g.BlockBytes
		}
		if l.BytesPerBlock() != perBlock || l.Blocks() != 10 || l.Spec() != s || len(l.Segments()) != len(pools) {
			t.Errorf("%+v: %d bytes per block, %d blocks", s, l.BytesPerBlock(), l.Blocks())
		}
		for tokens, blocks := range map[int]int64{-1: 0, 0: 0, 1: 1, 3: 1, 4: 1, 5: 2, 8: 2, 9: 3, 16: 4} {
			if got := l.ChunkBytes(tokens); got != blocks*perBlock {
				t.Errorf("%d tokens have %d bytes, want %d blocks", tokens, got, blocks)
			}
		}
	}
}

func TestInvariant42PoolsMustBeWhatTheGeometryDemands(t *testing.T) {
	s := fp8()
	dev, good := rank(t, s, 8)
	other, err := dev.Alloc("other", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	registered, err := dev.Register("host", make([]byte, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(s, good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(p []Pool) []Pool{
		"0 tensors":             func([]Pool) []Pool { return nil },
		"11 tensors":            func(p []Pool) []Pool { return p[1:] },
		"13 tensors":            func(p []Pool) []Pool { return append(p, p[0]) },
		"tensor 0 is layer 0 v": func(p []Pool) []Pool { p[0], p[1] = p[1], p[0]; return p },
		"tensor 4 is layer 2":   func(p []Pool) []Pool { p[4].Layer = 2; return p },
		"layer 0 kind(200)":     func(p []Pool) []Pool { p[2].Kind = 200; return p },
		"no memory":             func(p []Pool) []Pool { p[3].Segment.Mem = nil; return p },
		"registered host":       func(p []Pool) []Pool { p[3].Segment.Mem = registered; return p },
		"0 blocks":              func(p []Pool) []Pool { p[0].Segment.Blocks = 0; return p },
		"layer 1 v_cache: 7":    func(p []Pool) []Pool { p[5].Segment.Blocks = 7; return p },
		"layer 1 v_cache: 9":    func(p []Pool) []Pool { p[5].Segment.Blocks = 9; return p },
		"63 bytes per block":    func(p []Pool) []Pool { p[4].Segment.BlockBytes = 63; return p },
		"offset -1":             func(p []Pool) []Pool { p[4].Segment.Off = -1; return p },
		"offset 1 ":             func(p []Pool) []Pool { p[4].Segment.Off = 1; return p },
		"offset 9223372036854775807": func(p []Pool) []Pool {
			p[4].Segment.Off = math.MaxInt64
			return p
		},
		"layer 0 v_cache shares memory with layer 0 k_cache": func(p []Pool) []Pool {
			p[0].Segment.Mem, p[1].Segment.Mem = other, other
			p[1].Segment.Off = 8*64 - 1
			return p
		},
	} {
		_, err := New(s, change(slices.Clone(good)))
		if !errors.Is(err, ErrPools) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// Two pools side by side in one memory are fine.
	side := slices.Clone(good)
	side[0].Segment.Mem, side[1].Segment.Mem = other, other
	side[1].Segment.Off = 8 * 64
	if _, err := New(s, side); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ bytes, blocks int64 }{{10, 3}, {0, 1}, {8, 0}, {-8, 2}, {8, -2}} {
		if _, err := SegmentOf(other, 0, c.bytes, int(c.blocks)); !errors.Is(err, ErrPools) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestObjectBytes pins the byte order by hand: segments in order, inside them blocks in the
// order given.
func TestObjectBytes(t *testing.T) {
	s := Spec{Model: "m", Family: GQA, Layers: 1, KVHeads: 1, HeadDim: 1, KVDType: kv.Int8, BlockSize: 2, ChunkTokens: 4, TensorParallel: 1}
	_, pools := rank(t, s, 3)
	l, err := New(s, pools)
	if err != nil {
		t.Fatal(err)
	}
	planes := [][]byte{[]byte("aAbBcC"), []byte("xXyYzZ")}
	object := make([]byte, l.ChunkBytes(4))
	if err := l.Pack(object, planes, []int{2, 0}); err != nil || string(object) != "cCaAzZxX" {
		t.Errorf("%q, %v", object, err)
	}
	if err := l.Unpack(planes, []int{1, 2}, object); err != nil || string(planes[0]) != "aAcCaA" || string(planes[1]) != "xXzZxX" {
		t.Errorf("%q, %v", planes, err)
	}
}

func TestPackRefusesWhatDoesNotFit(t *testing.T) {
	s := mla()
	_, pools := rank(t, s, 4)
	l, err := New(s, pools)
	if err != nil {
		t.Fatal(err)
	}
	planes := make([][]byte, len(pools))
	for i, p := range pools {
		planes[i] = bytes.Repeat([]byte{byte(i)}, int(p.Segment.Mem.Bytes()))
	}
	short := slices.Clone(planes)
	short[1] = short[1][1:]
	object := make([]byte, 2*l.BytesPerBlock())
	for name, c := range map[string]struct {
		object []byte
		planes [][]byte
		blocks []int
	}{
		"too few pools": {object, planes[1:], []int{0, 1}},
		"a short pool":  {object, short, []int{0, 1}},
		"object":        {object[1:], planes, []int{0, 1}},
		"more blocks":   {object, planes, []int{0, 1, 2}},
		"negative":      {object, planes, []int{0, -1}},
		"out of range":  {object, planes, []int{0, 4}},
		"twice":         {object, planes, []int{3, 3}},
	} {
		before := slices.Clone(planes[0])
		pack, unpack := l.Pack(c.object, c.planes, c.blocks), l.Unpack(c.planes, c.blocks, c.object)
		if !errors.Is(pack, ErrPools) || !errors.Is(unpack, ErrPools) || !bytes.Equal(before, planes[0]) {
			t.Errorf("%s: %v, %v", name, pack, unpack)
		}
	}
}

// TestCodecEqualsTheDevice compares Pack and Unpack with a device's Gather and Scatter, for
// any geometry and blocks.
func TestCodecEqualsTheDevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpec(t)
		blocks := rapid.IntRange(1, 9).Draw(t, "blocks")
		dev, pools := rank(t, s, blocks)
		l, err := New(s, pools)
		if err != nil {
			t.Fatal(err)
		}
		planes := make([][]byte, len(pools))
		for i, p := range pools {
			planes[i] = host.Bytes(p.Segment.Mem)
			for j := range planes[i] {
				planes[i][j] = byte(i*31 + j*7)
			}
		}
		perm := rapid.Permutation(seq(blocks)).Draw(t, "order")
		some := perm[:rapid.IntRange(1, blocks).Draw(t, "count")]
		object := make([]byte, l.ChunkBytes(len(some)*s.BlockSize))
		if err := l.Pack(object, planes, some); err != nil {
			t.Fatal(err)
		}
		staging, err := dev.Alloc("staging", int64(len(object)))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := dev.NewStream("s")
		if err != nil {
			t.Fatal(err)
		}
		span := device.Span{Mem: staging, Len: staging.Bytes()}
		run(t, stream, stream.Gather(span, l.Segments(), some))
		if !bytes.Equal(host.Bytes(staging), object) {
			t.Fatal("Gather and Pack differ")
		}
		// Back into other blocks: what is not named stays.
		target := rapid.Permutation(seq(blocks)).Draw(t, "target")[:len(some)]
		want := make([][]byte, len(planes))
		for i := range planes {
			want[i] = slices.Clone(planes[i])
		}
		if err := l.Unpack(want, target, object); err != nil {
			t.Fatal(err)
		}
		run(t, stream, stream.Scatter(l.Segments(), target, span))
		for i := range planes {
			if !bytes.Equal(planes[i], want[i]) {
				t.Fatal("Scatter and Unpack differ")
			}
		}
		again := make([]byte, len(object))
		if err := l.Pack(again, planes, target); err != nil || !bytes.Equal(again, object) {
			t.Fatal("an object changed on the way there and back", err)
		}
		if err := errors.Join(stream.Close(), staging.Free(), dev.Check()); err != nil {
			t.Fatal(err)
		}
	})
}

func run(t *rapid.T, s device.Stream, err error) {
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func drawSpec(t *rapid.T) Spec {
	small := rapid.IntRange(1, 4)
	s := Spec{
		Model: "m", Layers: small.Draw(t, "layers"), DraftLayers: rapid.IntRange(0, 2).Draw(t, "draft"),
		KVDType: rapid.SampledFrom(kv.DTypes()).Draw(t, "dtype"), BlockSize: small.Draw(t, "block"), TensorParallel: small.Draw(t, "tp"),
	}
	s.ChunkTokens = s.BlockSize * small.Draw(t, "chunk")
	if rapid.Bool().Draw(t, "mla") {
		s.Family, s.LatentDim = MLA, small.Draw(t, "latent")
		if s.IndexDim = rapid.IntRange(0, 3).Draw(t, "index"); s.IndexDim > 0 {
			s.IndexDType = kv.UInt8
		}
		return s
	}
	s.Family, s.HeadDim = GQA, small.Draw(t, "dim")
	s.KVHeads = rapid.SampledFrom([]int{1, s.TensorParallel, 2 * s.TensorParallel}).Draw(t, "heads")
	s.Scales = rapid.SampledFrom([]Scales{NoScales, TokenScales, BlockScales}).Draw(t, "scales")
	return s
}
