package kv

import (
	"errors"
	"fmt"
	"strings"
)

// ErrKey is wrapped by the error for an object key that has no wire or file form.
var ErrKey = errors.New("bad object key")

// MaxWorld is the most ranks that a packed rank can tell apart.
const MaxWorld = 255

// MaxSalt is the longest tenant salt in characters.
const MaxSalt = 128

// Rank is a tensor-parallel rank as object keys have it (wire specification §3.2):
// world size, rank, local world size and local rank in one byte each, from the top. The
// local pair equals the global one.
type Rank uint32

// NewRank packs rank of world; world is 1 to MaxWorld, rank 0 to world-1.
func NewRank(rank, world int) (Rank, error) {
	if world < 1 || world > MaxWorld || rank < 0 || rank >= world {
		return 0, fmt.Errorf("%w: rank %d of %d, which is not 1 to %d", ErrKey, rank, world, MaxWorld)
	}
	pair := Rank(world)<<8 | Rank(rank)
	return pair<<16 | pair, nil
}

// Rank returns the rank.
func (r Rank) Rank() int { return int(r>>16) & 0xff }

// World returns the world size.
func (r Rank) World() int { return int(r >> 24) }

// ObjectKey names one stored object: the KV of one chunk for one rank and one object
// group, of one model and tenant. Its JSON form is the one of LMCache's tools and events.
type ObjectKey struct {
	Chunk Digest `json:"chunk_hash_hex"`
	Model string `json:"model_name"` // without '@'
	Rank  Rank   `json:"kv_rank"`
	Group uint32 `json:"object_group_id"` // 0 is the only one of most models
	Salt  string `json:"cache_salt"`      // the tenant, "" for none: see CheckSalt
}

// CheckSalt returns an error unless the salt has at most MaxSalt characters, and none of
// '@', '/', '\' and NUL.
func CheckSalt(salt string) error {
	if n := len([]rune(salt)); n > MaxSalt {
		return fmt.Errorf("%w: a salt of %d characters, more than %d", ErrKey, n, MaxSalt)
	}
	if strings.ContainsAny(salt, "@/\\\x00") {
		return fmt.Errorf("%w: salt %q has one of @ / \\ NUL", ErrKey, salt)
	}
	return nil
}

// FileName returns the name of the object's file in a directory of LMCache's `fs`
// adapter. It has no slash; whether it is too long for a file system depends on the model.
// An error means that the model or the salt has a character that the form cannot carry.
func (k ObjectKey) FileName() (string, error) {
	if strings.ContainsAny(k.Model, "@\x00") {
		return "", fmt.Errorf("%w: model %q has '@' or NUL", ErrKey, k.Model)
	}
	if err := CheckSalt(k.Salt); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s@0x%08x@%x@%s", strings.ReplaceAll(k.Model, "/", "-SEP-"), uint32(k.Rank), k.Group, k.Chunk)
	if k.Salt != "" {
		name += "@" + k.Salt
	}
	return name + ".data", nil
}
