package kv

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestRank(t *testing.T) {
	for _, c := range []struct {
		rank, world int
		want        Rank
	}{
		{0, 1, 0x01000100}, {0, 2, 0x02000200}, {1, 2, 0x02010201}, {7, 8, 0x08070807}, {254, 255, 0xfffefffe},
	} {
		got, err := NewRank(c.rank, c.world)
		if err != nil || got != c.want || got.Rank() != c.rank || got.World() != c.world {
			t.Errorf("rank %d of %d: %#08x (%d of %d), %v, want %#08x", c.rank, c.world, got, got.Rank(), got.World(), err, c.want)
		}
	}
	for _, c := range [][2]int{{0, 0}, {1, 1}, {-1, 2}, {0, -1}, {0, 256}, {300, 400}} {
		if got, err := NewRank(c[0], c[1]); !errors.Is(err, ErrKey) {
			t.Errorf("rank %d of %d: %#08x, %v", c[0], c[1], got, err)
		}
	}
}

func TestObjectKeyForms(t *testing.T) {
	k := ObjectKey{Chunk: Root, Model: "meta-llama/Llama-3.1-8B", Rank: 0x02010201, Group: 17}
	for salt, want := range map[string]string{
		"":   "meta-llama-SEP-Llama-3.1-8B@0x02010201@11@" + Root.String() + ".data",
		"t1": "meta-llama-SEP-Llama-3.1-8B@0x02010201@11@" + Root.String() + "@t1.data",
	} {
		k.Salt = salt
		if got, err := k.FileName(); err != nil || got != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	k.Salt = "t1" // the loop ends with either
	text, err := json.Marshal(k)
	want := `{"chunk_hash_hex":"` + Root.String() + `","model_name":"meta-llama/Llama-3.1-8B","kv_rank":33620481,"object_group_id":17,"cache_salt":"t1"}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	var back ObjectKey
	if err := json.Unmarshal(text, &back); err != nil || back != k {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestBadKeysHaveNoFileName(t *testing.T) {
	for _, k := range []ObjectKey{
		{Model: "a@b"}, {Model: "a\x00"}, {Salt: "a@b"}, {Salt: "../../etc"}, {Salt: `a\b`}, {Salt: "\x00"},
		{Salt: strings.Repeat("é", MaxSalt+1)},
	} {
		if got, err := k.FileName(); !errors.Is(err, ErrKey) || got != "" {
			t.Errorf("%+v: %q, %v", k, got, err)
		}
	}
	if err := CheckSalt(strings.Repeat("é", MaxSalt)); err != nil {
		t.Errorf("a salt of %d characters: %v", MaxSalt, err)
	}
}
