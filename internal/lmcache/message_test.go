package lmcache

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/kv"
)

// pack encodes a Go value as msgpack; pairs are a map in the order given.
func pack(v any) []byte { return appendAny(nil, v) }

type pairs []any // key, value, key, value, …

func appendAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case pairs:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		for _, e := range v {
			b = appendAny(b, e)
		}
		return b
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = appendAny(b, e)
		}
		return b
	case int:
		return appendNumber(b, int64(v))
	}
	b, err := msgp.AppendIntf(b, v)
	if err != nil {
		panic(err)
	}
	return b
}

// with returns p with name set to v, or without name if v is the value absent.
func (p pairs) with(name string, v any) pairs {
	var q pairs
	found := false
	for i := 0; i < len(p); i += 2 {
		switch {
		case p[i] != name:
			q = append(q, p[i], p[i+1])
		case v != absent:
			q, found = append(q, name, v), true
		}
	}
	if !found && v != absent {
		q = append(q, name, v)
	}
	return q
}

const absent = "\x00absent"

var plainKey = pairs{"model_name", "m", "world_size", 2, "worker_id", 1, "token_ids", []any{1, 200, 70_000, 5, 6},
	"start", 1, "end", 5, "request_id", "r", "cache_salt", "s", "num_kv_readers", 3}

func TestKeyFields(t *testing.T) {
	base := Key{Model: "m", World: 2, Worker: 1, Tokens: []uint32{1, 200, 70_000, 5, 6}, Start: 1, End: 5,
		Request: "r", Salt: "s", Readers: 3}
	change := func(f func(*Key)) Key { k := base; f(&k); return k }
	tests := []struct {
		name string
		in   pairs
		want Key
	}{
		{"plain", plainKey, base},
		{"no salt", plainKey.with("cache_salt", absent), change(func(k *Key) { k.Salt = "" })},
		{"no readers", plainKey.with("num_kv_readers", absent), change(func(k *Key) { k.Readers = 0 })},
		{"scheduler", plainKey.with("worker_id", nil), change(func(k *Key) { k.Worker = -1 })},
		{"bool as int", plainKey.with("worker_id", true), base},
		{"int as bool", plainKey.with("null_chunk_mask", []any{[]any{1, 0, true}}),
			change(func(k *Key) { k.Mask = [][]bool{{true, false, true}} })},
		{"empty mask", plainKey.with("null_chunk_mask", []any{}), change(func(k *Key) { k.Mask = [][]bool{} })},
		{"nil mask", plainKey.with("null_chunk_mask", nil), base},
		{"configs", plainKey.with("request_configs", pairs{"a", []any{1.5, nil, pairs{7, "x"}}}), base},
		{"unknown keys", append(pairs{"zz", []any{pairs{}, []byte("b")}, 17, "int key", "", 1}, plainKey...), base},
		{"widest salt", plainKey.with("cache_salt", strings.Repeat("é", 128)),
			change(func(k *Key) { k.Salt = strings.Repeat("é", 128) })},
		{"odd token encodings", plainKey.with("token_ids", []any{uint64(math.MaxUint32), int64(40_000), int8(7), false, true}),
			change(func(k *Key) { k.Tokens = []uint32{math.MaxUint32, 40_000, 7, 0, 1} })},
	}
	used := Key{Model: "old", World: 9, Worker: 8, Tokens: []uint32{9, 9, 9, 9, 9, 9, 9}, Salt: "old", Readers: 7, Mask: [][]bool{{true}}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for what, k := range map[string]Key{"new": {}, "used": used} {
				if err := k.Decode(pack(tt.in)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, k); diff != "" {
					t.Errorf("%s key: %s", what, diff)
				}
				var again Key
				if err := again.Decode(k.Append(nil)); err != nil || !cmp.Equal(k, again) {
					t.Errorf("%s key encoded and decoded: %v, %v", what, again, err)
				}
			}
		})
	}
}

func TestKeyRejects(t *testing.T) {
	deep := pack(plainKey.with("request_configs", absent))
	deep[0]++ // one more field
	deep = append(append(deep, pack("request_configs")...), bytes.Repeat([]byte{0x91}, 1<<20)...)
	tests := map[string][]byte{
		"empty":             {},
		"no map":            pack(7),
		"array":             pack([]any{1}),
		"trailing":          append(pack(plainKey), 0xc0),
		"huge map":          {0xdf, 0xff, 0xff, 0xff, 0xff},
		"huge token count":  pack(pairs{"token_ids", nil})[:len(pack(pairs{"token_ids", nil}))-1],
		"negative token":    pack(plainKey.with("token_ids", []any{-1, 2, 3, 4, 5})),
		"wide token":        pack(plainKey.with("token_ids", []any{1 << 32, 2, 3, 4, 5})),
		"text token":        pack(plainKey.with("token_ids", []any{"1", 2, 3, 4, 5})),
		"tokens nil":        pack(plainKey.with("token_ids", nil)),
		"float start":       pack(plainKey.with("start", 1.0)),
		"negative start":    pack(plainKey.with("start", -1)),
		"start behind end":  pack(plainKey.with("start", 5).with("end", 4)),
		"end behind tokens": pack(plainKey.with("end", 6)),
		"huge end":          pack(plainKey.with("end", uint64(math.MaxUint64))),
		"world 0":           pack(plainKey.with("world_size", 0).with("worker_id", nil)),
		"huge world":        pack(plainKey.with("world_size", 1<<20)),
		"worker of no rank": pack(plainKey.with("worker_id", 2)),
		"negative worker":   pack(plainKey.with("worker_id", -1)),
		"negative readers":  pack(plainKey.with("num_kv_readers", -1)),
		"model with @":      pack(plainKey.with("model_name", "m@n")),
		"model as bin":      pack(plainKey.with("model_name", []byte("m"))),
		"salt too long":     pack(plainKey.with("cache_salt", strings.Repeat("x", 129))),
		"salt with @":       pack(plainKey.with("cache_salt", "a@")),
		"salt with /":       pack(plainKey.with("cache_salt", "a/b")),
		"salt with \\":      pack(plainKey.with("cache_salt", `a\b`)),
		"salt with NUL":     pack(plainKey.with("cache_salt", "a\x00")),
		"salt nil":          pack(plainKey.with("cache_salt", nil)),
		"not UTF-8":         pack(plainKey.with("request_id", "\xff")),
		"many mask groups":  pack(plainKey.with("null_chunk_mask", make([]any, 300))),
		"mask of text":      pack(plainKey.with("null_chunk_mask", []any{[]any{"x"}})),
		"deep nesting":      deep,
		"reserved byte":     pack(append(pairs{"x", 0}, plainKey...))[:3],
	}
	tests["huge token count"] = append(tests["huge token count"], 0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2)
	tests["reserved byte"] = append(tests["reserved byte"], 0xc1)
	for _, name := range []string{"model_name", "world_size", "worker_id", "token_ids", "start", "end", "request_id"} {
		tests["no "+name] = pack(plainKey.with(name, absent))
	}
	full := pack(plainKey)
	for i := range full {
		if err := new(Key).Decode(full[:i]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at byte %d: %v", i, err)
		}
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			if err := new(Key).Decode(in); !errors.Is(err, ErrMalformed) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestSkip compares our skipping with msgp's for every lead byte.
func TestSkip(t *testing.T) {
	for lead := range 256 {
		for _, count := range []byte{0, 1, 3, 200} {
			b := append([]byte{byte(lead)}, bytes.Repeat([]byte{count}, 4)...)
			b = append(b, bytes.Repeat([]byte{0x01}, 1000)...)
			for _, n := range []int{1, 2, 3, 5, 9, 20, len(b)} {
				rest, err := msgp.Skip(b[:n])
				d := decoder{b: b[:n]}
				d.skip()
				if (err == nil) != (d.err == nil) || err == nil && len(rest) != len(d.b) {
					t.Errorf("%x: %d bytes left, %v, msgp has %d, %v", b[:min(n, 9)], len(d.b), d.err, len(rest), err)
				}
			}
		}
	}
}

// TestTokenEncodings compares the fast loop with the plain reading of every encoding
// next to every other.
func TestTokenEncodings(t *testing.T) {
	encodings := [][]byte{
		{0x05}, {0x7f}, {0xcc, 0x81}, {0xcd, 0x01, 0x02}, {0xcd, 0xff, 0xff}, {0xce, 0x00, 0x01, 0x02, 0x03},
		{0xce, 0xff, 0xff, 0xff, 0xff}, {0xcf, 0, 0, 0, 0, 1, 2, 3, 4}, {0xd0, 0x11}, {0xd1, 0x11, 0x22}, {0xd2, 1, 2, 3, 4},
	}
	r := uint32(1)
	for range 2000 {
		var frame []byte
		var want []uint32
		for range int(r % 40) {
			r = r*1664525 + 1013904223
			e := encodings[int(r>>16)%len(encodings)]
			n, _, err := msgp.ReadInt64Bytes(e)
			if err != nil {
				t.Fatal(err)
			}
			frame, want = append(frame, e...), append(want, uint32(n))
		}
		r = r*1664525 + 1013904223
		d := decoder{b: append(msgp.AppendArrayHeader(nil, uint32(len(want))), frame...)}
		got := d.tokens(nil)
		if err := d.finish("tokens"); err != nil || !bytes.Equal(u32(got), u32(want)) {
			t.Fatalf("%x: got %v, want %v, %v", frame, got, want, err)
		}
	}
}

func u32(v []uint32) (b []byte) {
	for _, n := range v {
		b = msgp.AppendUint32(b, n)
	}
	return b
}

func TestHostileCountsAllocateNothing(t *testing.T) {
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff}
	field := func(name string) []byte { return append([]byte{0x81}, pack(name)...) }
	tests := map[string]struct {
		c     codec
		frame []byte
	}{
		"tokens":  {new(Key), append(field("token_ids"), huge...)},
		"mask":    {new(Key), append(field("null_chunk_mask"), huge...)},
		"groups":  {new(Registration), append(field("engine_group_infos"), huge...)},
		"slots":   {new(StoreReply), append(field("context"), append(field("slots"), huge...)...)},
		"masks":   {new(Key), pack(pairs{"null_chunk_mask", make([]any, 1<<16)})},
		"nesting": {new(Key), append(field("x"), bytes.Repeat([]byte{0x91}, 1<<20)...)},
		"bytes":   {new(RetrieveReply), append(field("data"), 0xc6, 0xff, 0xff, 0xff, 0xff)},
		"text":    {new(Hello), append(field("boot_id"), 0xdb, 0xff, 0xff, 0xff, 0xff)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var err error
			if n := allocated(func() { err = tt.c.Decode(tt.frame) }); n > 16<<10 {
				t.Errorf("%d bytes were allocated", n)
			}
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestUIDAndOp(t *testing.T) {
	for _, tt := range []struct {
		frame []byte
		want  uint64
		ok    bool
	}{
		{[]byte{0}, 0, true}, {[]byte{0x7f}, 127, true}, {pack(uint64(math.MaxUint64)), math.MaxUint64, true},
		{[]byte{0xff}, 0, false}, {nil, 0, false}, {[]byte{1, 1}, 0, false}, {pack("1"), 0, false}, {[]byte{0xcd, 1}, 0, false},
	} {
		got, err := ParseUID(tt.frame)
		if got != tt.want && tt.ok || (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("uid %x: %d, %v", tt.frame, got, err)
		}
	}
	for _, tt := range []struct {
		in   any
		want Op
	}{
		{8, OpLookup}, {0, OpUnknown}, {25, Op(25)}, {32, OpGetExperimental}, {40, OpGetExperimentalAugust}, {1 << 40, Op(1 << 40)},
		{-1, OpUnknown}, {-8, OpUnknown}, {uint64(math.MaxUint64), OpUnknown}, {int16(8), OpLookup},
		{"prepare_store", OpPrepareStore}, {"PREPARE_STORE", OpUnknown}, {"query_prefetch_lookup_hits", OpQueryPrefetchHits},
		{"register_kv_cache_engine_driven_context", OpRegisterEngineDriven}, {"get_experimental", OpGetExperimental},
		{"holdfast.hello", OpHello}, {"holdfast.commit_store", OpCommitSummed}, {-2, OpUnknown}, {"holdfast.bye", OpUnknown}, {"", OpUnknown},
	} {
		if got, err := ParseOp(pack(tt.in)); got != tt.want || err != nil {
			t.Errorf("op %v: %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, frame := range [][]byte{nil, {0xc0}, {0xc1}, {8, 8}, pack(8.0), pack([]byte("noop")), append(pack("noop"), 0), {0xa4, 'n'}} {
		if got, err := ParseOp(frame); !errors.Is(err, ErrMalformed) || got != OpUnknown {
			t.Errorf("op %x: %v, %v", frame, got, err)
		}
	}
	for op := range opNames {
		got, err := ParseOp(pack(strings.ToLower(op.String())))
		if want := op; err != nil || got != want && want != OpGetExperimentalAugust {
			t.Errorf("%v by name: %v, %v", op, got, err)
		}
	}
	if s := OpHello.String() + " " + Op(33).String(); s != "holdfast.hello UNKNOWN(33)" {
		t.Error(s)
	}
}

func TestReplies(t *testing.T) {
	slot := SlotRef{Offset: 4096, Length: 96, Layout: kv.ChunkLayout{Shape: []int{3, 4, 8}, DType: kv.Float8E4M3}}
	for name, tt := range map[string]struct{ c, got codec }{
		"registration":         {&RegistrationReply{ShmName: "pool", PoolSize: 1 << 34}, new(RegistrationReply)},
		"registration refused": {&RegistrationReply{Error: "no"}, new(RegistrationReply)},
		"store pickle":         {&StoreReply{Pickle: true}, &StoreReply{Slots: []SlotRef{slot}}},
		"store nothing":        {&StoreReply{Slots: []SlotRef{}, Indices: []int{}}, new(StoreReply)},
		"store":                {&StoreReply{Slots: []SlotRef{slot, slot}, Indices: []int{4, 300}}, new(StoreReply)},
		"retrieve slots":       {&RetrieveReply{Success: true, Data: []byte{}, Slots: []SlotRef{slot}}, new(RetrieveReply)},
		"retrieve pickle":      {&RetrieveReply{Success: true, Data: []byte("xyz")}, &RetrieveReply{Slots: []SlotRef{slot}}},
		"hello": {&Hello{Protocol: 1, BootID: "b", Version: "0.1", PID: 70_000, ChunkSize: 256, Features: []string{"a", "b"}},
			&Hello{BootID: "old"}},
	} {
		t.Run(name, func(t *testing.T) {
			frame := tt.c.Append(nil)
			if err := tt.got.Decode(frame); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.c, tt.got); diff != "" {
				t.Error(diff)
			}
			if err := tt.got.Decode(append(frame, 0)); !errors.Is(err, ErrMalformed) {
				t.Errorf("with a byte behind it: %v", err)
			}
			for i := range frame {
				if err := tt.got.Decode(frame[:i]); !errors.Is(err, ErrMalformed) {
					t.Fatalf("cut at byte %d: %v", i, err)
				}
			}
		})
	}
}

func TestRepliesTakeUnknownFields(t *testing.T) {
	var reg RegistrationReply
	if err := reg.Decode(pack(pairs{"pool_size", 9, "scratch_offset", 1, "scratch_size", 2, "error", nil, "shm_name", "p"})); err != nil ||
		reg != (RegistrationReply{ShmName: "p", PoolSize: 9}) {
		t.Errorf("registration: %+v, %v", reg, err)
	}
	var store StoreReply
	if err := store.Decode(pack(pairs{"x", 1, "context", pairs{"slots", []any{}, "chunk_indices", []any{}, "y", pairs{}}})); err != nil || store.Pickle {
		t.Errorf("store: %+v, %v", store, err)
	}
	var hello Hello
	if err := hello.Decode(pack(pairs{"later", []any{1}, "protocol", 2})); err != nil || hello.Protocol != 2 {
		t.Errorf("hello: %+v, %v", hello, err)
	}
}

func TestRepliesRejected(t *testing.T) {
	slot := pairs{"offset", 0, "length", 64, "shape", []any{2, 2, 4, 2}, "dtype", "torch.bfloat16"}
	context := func(slot pairs, indices ...any) []byte {
		return pack(pairs{"context", pairs{"slots", []any{slot}, "chunk_indices", indices}})
	}
	if err := new(StoreReply).Decode(context(slot, 0)); err != nil {
		t.Fatal(err)
	}
	for name, frame := range map[string][]byte{
		"another length":  context(slot.with("length", 63), 0),
		"negative offset": context(slot.with("offset", -1), 0),
		"offset overflow": context(slot.with("offset", int64(math.MaxInt64)), 0),
		"zero dimension":  context(slot.with("shape", []any{0, 2, 4, 2}), 0),
		"huge dimensions": context(slot.with("shape", []any{1 << 39, 1 << 39, 1 << 39}), 0),
		"no shape":        context(slot.with("shape", absent), 0),
		"unknown dtype":   context(slot.with("dtype", "complex64"), 0),
		"no index":        context(slot),
		"negative index":  context(slot, -1),
		"indices missing": pack(pairs{"context", pairs{"slots", []any{slot}}}),
		"no context":      pack(pairs{}),
		"nil context":     pack(pairs{"context", nil}),
	} {
		if err := new(StoreReply).Decode(frame); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
