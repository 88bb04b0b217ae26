package server_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

type line struct {
	Seq    int
	Peer   int
	Dir    string
	Frames []string
}

func (l line) decode(t *testing.T) (frames [][]byte) {
	for _, f := range l.Frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, b)
	}
	return frames
}

func conversation(t *testing.T, name string) (out []line) {
	f, err := os.Open(filepath.Join("../lmcache/testdata/frames", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

// TestRecordedConversations plays the client side of what a stock client said and compares
// every reply with the recorded one.
func TestRecordedConversations(t *testing.T) {
	for name, private := range map[string]bool{"shm-session.jsonl": false, "pickle-session.jsonl": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t, plan{private: private})
			peers := map[int]*peer{}
			var committed []byte // data of the last commit that had some
			replies := 0
			for _, l := range conversation(t, name) {
				frames := l.decode(t)
				p := peers[l.Peer]
				if p == nil {
					p = h.dial(t, h.unix)
					peers[l.Peer] = p
				}
				if l.Dir == "request" {
					if bytes.Equal(frames[1], num(uint64(lmcache.OpCommitStore))) && len(frames[4]) > 2 {
						committed = frames[4]
					}
					p.send(frames...)
					continue
				}
				got := p.recv()
				replies++
				if len(got) != len(frames) || !bytes.Equal(got[0], frames[0]) || !bytes.Equal(got[1], frames[1]) {
					t.Fatalf("seq %d: reply %x, recorded %x", l.Seq, got, frames)
				}
				if len(frames) == 3 {
					op, err := lmcache.ParseOp(frames[1])
					if err != nil {
						t.Fatal(err)
					}
					if name == "shm-session.jsonl" && l.Seq == 95 {
						servedFromPickle(t, got[2], committed)
						continue
					}
					compare(t, l.Seq, op, got[2], frames[2])
				}
			}
			if replies < 50 {
				t.Fatalf("only %d replies were compared", replies)
			}
			// One commit of the pickle session has one tensor where two belong.
			if m := h.Status().Malformed; m != 0 && !(private && m == 1) {
				t.Fatalf("%d malformed messages in a recorded conversation", m)
			}
		})
	}
}

// compare demands the same value, offsets and names of the pool apart.
func compare(t *testing.T, seq int, op lmcache.Op, got, want []byte) {
	t.Helper()
	switch op {
	case lmcache.OpRegisterEngineDriven:
		var g, w lmcache.RegistrationReply
		decode(t, seq, g.Decode(got), w.Decode(want))
		if (g.ShmName == "") != (w.ShmName == "") || (g.PoolSize == 0) != (w.PoolSize == 0) || g.Error != w.Error {
			t.Fatalf("seq %d: registration reply %+v, recorded %+v", seq, g, w)
		}
	case lmcache.OpPrepareStore:
		var g, w lmcache.StoreReply
		decode(t, seq, g.Decode(got), w.Decode(want))
		blank(g.Slots, w.Slots)
		if !reflect.DeepEqual(g, w) {
			t.Fatalf("seq %d: prepare store reply %+v, recorded %+v", seq, g, w)
		}
	case lmcache.OpPrepareRetrieve:
		var g, w lmcache.RetrieveReply
		decode(t, seq, g.Decode(got), w.Decode(want))
		blank(g.Slots, w.Slots)
		if g.Success != w.Success || !reflect.DeepEqual(g.Slots, w.Slots) {
			t.Fatalf("seq %d: prepare retrieve reply %v %+v, recorded %v %+v", seq, g.Success, g.Slots, w.Success, w.Slots)
		}
		if len(w.Data) > 0 {
			sameTensors(t, seq, g.Data, w.Data)
		}
	default:
		if !bytes.Equal(got, want) {
			t.Fatalf("seq %d: %v answered %x, recorded %x", seq, op, got, want)
		}
	}
}

func decode(t *testing.T, seq int, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("seq %d: %v", seq, err)
		}
	}
}

func blank(slots ...[]lmcache.SlotRef) {
	for _, s := range slots {
		for i := range s {
			s[i].Offset = 0
		}
	}
}

// servedFromPickle is seq 95: the client could not map the pool, and what it had stored by
// pickle must come back by pickle. The recording server could not do that.
func servedFromPickle(t *testing.T, reply, committed []byte) {
	t.Helper()
	var got lmcache.RetrieveReply
	if err := got.Decode(reply); err != nil || !got.Success || got.Slots != nil {
		t.Fatalf("retrieve of a client without shared memory: %+v, %v", got, err)
	}
	size, err := lmcache.ReadBinHeader(bytes.NewReader(committed), int64(len(committed)))
	if err != nil {
		t.Fatal(err)
	}
	sameTensors(t, 95, got.Data, committed[int64(len(committed))-size:])
}

func sameTensors(t *testing.T, seq int, got, want []byte) {
	t.Helper()
	g, err := lmcache.DecodeTensors(got, 1000)
	if err != nil {
		t.Fatalf("seq %d: our tensors: %v", seq, err)
	}
	w, err := lmcache.DecodeTensors(want, 1000)
	if err != nil {
		t.Fatalf("seq %d: recorded tensors: %v", seq, err)
	}
	if len(g) != len(w) || len(w) == 0 {
		t.Fatalf("seq %d: %d tensors, recorded %d", seq, len(g), len(w))
	}
	for i := range w {
		if !g[i].Layout.Equal(w[i].Layout) || !bytes.Equal(g[i].Data, w[i].Data) {
			t.Fatalf("seq %d: tensor %d differs", seq, i)
		}
	}
}
