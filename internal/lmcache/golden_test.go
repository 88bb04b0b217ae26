package lmcache

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/kv"
)

// message is one line of a recorded conversation.
type message struct {
	Seq    int
	Peer   int
	Dir    string
	Frames []frame
}

type frame []byte

func (f *frame) UnmarshalText(text []byte) error {
	*f = make([]byte, hex.DecodedLen(len(text)))
	_, err := hex.Decode(*f, text)
	return err
}

func recording(t testing.TB, name string) []message {
	t.Helper()
	f, err := os.Open("testdata/frames/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []message
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

var recordings = map[string]int{"pickle-session.jsonl": 120, "shm-session.jsonl": 102}

// keyed are the operations whose first payload frame is a key.
var keyed = map[Op]bool{
	OpLookup: true, OpFreeLookupLocks: true, OpPrepareStore: true, OpCommitStore: true,
	OpPrepareRetrieve: true, OpCommitRetrieve: true,
}

// codec is what requests and replies have in common.
type codec interface {
	Decode([]byte) error
	Append([]byte) []byte
}

// roundTrip decodes a frame of a stock client and demands the same bytes back.
func roundTrip(t *testing.T, seq int, c codec, frame []byte) {
	t.Helper()
	if err := c.Decode(frame); err != nil {
		t.Fatalf("seq %d: %v\n%x", seq, err, frame)
	}
	if got := c.Append(nil); !bytes.Equal(got, frame) {
		t.Fatalf("seq %d: encoded again\n%x, was\n%x", seq, got, frame)
	}
}

func TestRecordedConversations(t *testing.T) {
	for name, lines := range recordings {
		t.Run(name, func(t *testing.T) {
			all := recording(t, name)
			if len(all) != lines {
				t.Fatalf("%d messages, recorded were %d", len(all), lines)
			}
			replies := map[[2]uint64]message{}
			for _, m := range all {
				if uid := parseUID(t, m); m.Dir == "reply" {
					replies[[2]uint64{uint64(m.Peer), uid}] = m
				}
			}
			c := conversation{layouts: map[int]kv.ChunkLayout{}}
			for _, m := range all {
				if m.Dir == "request" {
					c.exchange(t, m, replies[[2]uint64{uint64(m.Peer), parseUID(t, m)}])
				}
			}
			if c.keys == 0 || c.registrations == 0 || c.contexts == 0 {
				t.Errorf("the recording has %+v", c)
			}
			if name == "pickle-session.jsonl" && c.tensors == 0 {
				t.Error("the recording has no tensors")
			}
		})
	}
}

func parseUID(t *testing.T, m message) uint64 {
	uid, err := ParseUID(m.Frames[0])
	if err != nil {
		t.Fatalf("seq %d: %v", m.Seq, err)
	}
	return uid
}

// conversation checks one exchange after the other.
type conversation struct {
	layouts                                map[int]kv.ChunkLayout // by peer
	keys, registrations, contexts, tensors int
}

func (c *conversation) exchange(t *testing.T, req, reply message) {
	op, err := ParseOp(req.Frames[1])
	if err != nil || op.String()[:3] == "UNK" {
		t.Fatalf("seq %d: op %v, %v", req.Seq, op, err)
	}
	if !bytes.Equal(req.Frames[1], reply.Frames[1]) {
		t.Fatalf("seq %d: another op in the reply", req.Seq)
	}
	if keyed[op] {
		c.keys++
		roundTrip(t, req.Seq, new(Key), req.Frames[2])
	}
	switch op {
	case OpRegisterEngineDriven:
		c.registrations++
		var r Registration
		roundTrip(t, req.Seq, &r, req.Frames[2])
		layouts, err := r.ChunkLayouts(64)
		if err != nil || len(layouts) != 1 {
			t.Fatalf("seq %d: layouts %v, %v", req.Seq, layouts, err)
		}
		c.layouts[req.Peer] = layouts[0]
		roundTrip(t, reply.Seq, new(RegistrationReply), reply.Frames[2])
	case OpPrepareStore:
		c.contexts++
		var r StoreReply
		roundTrip(t, reply.Seq, &r, reply.Frames[2])
		for _, s := range r.Slots {
			if !s.Layout.Equal(c.layouts[req.Peer]) {
				t.Errorf("seq %d: a slot of %v for %v", reply.Seq, s.Layout, c.layouts[req.Peer])
			}
		}
	case OpPrepareRetrieve:
		c.contexts++
		var r RetrieveReply
		roundTrip(t, reply.Seq, &r, reply.Frames[2])
		if len(r.Data) > 0 {
			c.pickled(t, reply.Seq, req.Peer, r.Data, true)
		}
	case OpCommitStore:
		data := req.Frames[4]
		r := bytes.NewReader(data)
		n, err := ReadBinHeader(r, int64(len(data)))
		if err != nil {
			t.Fatalf("seq %d: %v", req.Seq, err)
		}
		if n > 0 {
			c.pickled(t, req.Seq, req.Peer, data[len(data)-r.Len():], reply.Frames[2][0] == 0xc3)
		}
	}
}

// pickled checks a tensor list, and that ours says the same.
func (c *conversation) pickled(t *testing.T, seq, peer int, data []byte, accepted bool) {
	tensors, err := DecodeTensors(data, 100)
	if err != nil {
		t.Fatalf("seq %d: %v", seq, err)
	}
	c.tensors += len(tensors)
	for _, tensor := range tensors {
		if accepted && !tensor.Layout.Equal(c.layouts[peer]) {
			t.Errorf("seq %d: a tensor of %v for %v", seq, tensor.Layout, c.layouts[peer])
		}
	}
	layouts, raw := split(tensors)
	again, err := DecodeTensors(bytes.Join(TensorSegments(layouts, raw), nil), 100)
	if err != nil || !same(tensors, again) {
		t.Errorf("seq %d: written and read again: %v", seq, err)
	}
}

func split(tensors []Tensor) (layouts []kv.ChunkLayout, raw [][]byte) {
	for _, tensor := range tensors {
		layouts = append(layouts, tensor.Layout)
		raw = append(raw, tensor.Data)
	}
	return layouts, raw
}

// TestGoldenFrames has the table of §1.8, as far as messages of this package are in it.
func TestGoldenFrames(t *testing.T) {
	const keyHex = "8baa6d6f64656c5f6e616d65a16daa776f726c645f73697a6501a9776f726b65725f6964c0a9746f6b656e5f69647394010203" +
		"04a5737461727400a3656e6404aa726571756573745f6964a27231aa63616368655f73616c74a0af726571756573745f636f6e" +
		"66696773c0ae6e756d5f6b765f7265616465727301af6e756c6c5f6368756e6b5f6d61736bc0"
	tests := []struct {
		name, hex string
		c, got    codec
	}{
		{"key", keyHex, &Key{Model: "m", World: 1, Worker: -1, Tokens: []uint32{1, 2, 3, 4}, End: 4,
			Request: "r1", Readers: 1}, new(Key)},
		{"pickle context", "81a7636f6e7465787480", &StoreReply{Pickle: true}, new(StoreReply)},
		{"slot context", "81a7636f6e7465787482a5736c6f74739184a66f666673657400a66c656e67746840a573686170659402020402a56474797065" +
			"a862666c6f61743136ad6368756e6b5f696e64696365739100",
			&StoreReply{Slots: []SlotRef{{Length: 64, Layout: kv.ChunkLayout{Shape: []int{2, 2, 4, 2}, DType: kv.BFloat16}}},
				Indices: []int{0}}, new(StoreReply)},
		{"miss", "83a773756363657373c2a464617461c400a7636f6e7465787480", &RetrieveReply{Data: []byte{}}, new(RetrieveReply)},
		{"pickle registration", "82a873686d5f6e616d65a0a9706f6f6c5f73697a6500", &RegistrationReply{}, new(RegistrationReply)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want, _ := hex.DecodeString(tt.hex)
			if got := tt.c.Append(nil); !bytes.Equal(got, want) {
				t.Errorf("encoded %x, want %x", got, want)
			}
			if err := tt.got.Decode(want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.c, tt.got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
