package lmcache

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/kv"
)

// seedFrames adds the recorded frames that pick returns.
func seedFrames(f *testing.F, pick func(m message, op Op) frame) {
	for name := range recordings {
		for _, m := range recording(f, name) {
			op, err := ParseOp(m.Frames[1])
			if err != nil {
				f.Fatal(err)
			}
			if b := pick(m, op); b != nil && len(b) < 64<<10 {
				f.Add([]byte(b))
			}
		}
	}
}

// stable demands that what was decoded can be encoded and decoded to the same.
func stable[T any, C interface {
	*T
	codec
}](t *testing.T, frame []byte) {
	var v, again T
	if err := C(&v).Decode(frame); err != nil {
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("an error that is not ErrMalformed: %v", err)
		}
		return
	}
	b := C(&v).Append(nil)
	if err := C(&again).Decode(b); err != nil {
		t.Fatalf("encoded and decoded: %v\n%x", err, b)
	}
	if b2 := C(&again).Append(nil); !bytes.Equal(b, b2) {
		t.Errorf("encoded again\n%x\n%x", b, b2)
	}
}

func FuzzKey(f *testing.F) {
	f.Add(pack(plainKey.with("null_chunk_mask", []any{[]any{true}})))
	seedFrames(f, func(m message, op Op) frame {
		if m.Dir == "request" && keyed[op] {
			return m.Frames[2]
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		stable[Key](t, b)
		ParseUID(b)
		ParseOp(b)
		d := decoder{b: b}
		if d.skip(); d.err == nil && len(d.b) > len(b) {
			t.Error("skipped backwards")
		}
	})
}

func FuzzRegistration(f *testing.F) {
	f.Add(pack(plainReg.with("engine_group_infos", []any{group(0, -1, 0, 2), group(1, -1, 1)}).
		with("group_layout_descs", []any{desc("torch.bfloat16", 2, 2, 64, 16), desc("torch.uint8", 1, 64, 32)})))
	seedFrames(f, func(m message, op Op) frame {
		if m.Dir == "request" && op == OpRegisterEngineDriven {
			return m.Frames[2]
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		stable[Registration](t, b)
		var r Registration
		if r.Decode(b) != nil {
			return
		}
		layouts, err := r.ChunkLayouts(256)
		if err == nil && len(layouts) == 0 || err != nil && !errors.Is(err, ErrLayout) {
			t.Errorf("layouts %v, %v", layouts, err)
		}
		for _, l := range layouts {
			if _, err := l.Bytes(); err != nil {
				t.Error(err)
			}
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add((&Hello{Protocol: 1, BootID: "b", Features: []string{"x"}}).Append(nil))
	f.Add((&RegistrationReply{Error: "refused"}).Append(nil))
	seedFrames(f, func(m message, op Op) frame {
		if m.Dir == "reply" && len(m.Frames) > 2 {
			return m.Frames[2]
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		stable[RegistrationReply](t, b)
		stable[StoreReply](t, b)
		stable[RetrieveReply](t, b)
		stable[Hello](t, b)
		stable[sumsFrame](t, b)
	})
}

func FuzzTensors(f *testing.F) {
	for _, s := range samples(f) {
		if b := s.file(f, ".pickle"); len(b) < 32<<10 {
			f.Add(b)
		}
	}
	f.Add(plainForged().pickle())
	f.Add(bytes.Join(TensorSegments([]kv.ChunkLayout{{Shape: []int{2, 3}, DType: kv.UInt64}}, [][]byte{pattern(48, 0)}), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, err := DecodeTensors(b, 64)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("an error that is not ErrMalformed: %v", err)
			}
			l := kv.ChunkLayout{Shape: []int{2, 3, 16, 8}, DType: kv.BFloat16}
			dst := make([]byte, 1536)
			dest := func(int) (kv.ChunkLayout, []byte) { return l, dst }
			ReadTensors(bytes.NewReader(b), int64(len(b)), 2, dest)
			return
		}
		layouts, raw := split(tensors)
		total := 0
		for _, r := range raw {
			total += len(r)
		}
		if total > len(b) {
			t.Errorf("%d bytes out of %d", total, len(b))
		}
		if got, err := read(bytes.NewReader(b), len(b), layouts); err != nil || !slices.EqualFunc(got, raw, bytes.Equal) {
			t.Errorf("streamed: %v", err)
		}
		again, err := DecodeTensors(bytes.Join(TensorSegments(layouts, raw), nil), len(raw))
		if err != nil || !same(tensors, again) {
			t.Errorf("written and read: %v", err)
		}
	})
}
