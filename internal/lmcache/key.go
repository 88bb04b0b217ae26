package lmcache

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// maxSalt is the longest cache_salt, in characters.
const maxSalt = 128

// Key is the cache key (wire specification §3.1).
type Key struct {
	Model      string
	World      int      // KV-distinct ranks, from 1 to 4096
	Worker     int      // rank, below World, or -1 for nil: the scheduler, all ranks
	Tokens     []uint32 // the whole token list of the request so far
	Start, End int      // token range; 0 ≤ Start ≤ End ≤ len(Tokens)
	Request    string
	Salt       string
	Readers    int      // num_kv_readers; 0 from older clients
	Mask       [][]bool // null_chunk_mask; nil for nil
}

const (
	keyModel = 1 << iota
	keyWorld
	keyWorker
	keyTokens
	keyStart
	keyEnd
	keyRequest
)

// Decode reads one key frame. Tokens reuses its capacity. Fields are checked: ranges
// as stated above, salt at most 128 characters without @ / \ NUL, model without @.
// After an error only Request means anything: what was read of it, or nothing.
func (k *Key) Decode(frame []byte) error {
	d := decoder{b: frame}
	k.Salt, k.Readers, k.Mask = "", 0, nil
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		seen |= k.field(&d, d.key())
	}
	if seen&keyRequest == 0 {
		k.Request = ""
	}
	d.require(seen, "model_name", "world_size", "worker_id", "token_ids", "start", "end", "request_id")
	if d.err == nil {
		k.check(&d)
	}
	return d.finish("key")
}

// field reads the value of the field name and returns its bit, if it must be there.
func (k *Key) field(d *decoder, name []byte) uint {
	switch string(name) {
	case "model_name":
		d.strTo(&k.Model)
		return keyModel
	case "world_size":
		k.World = int(d.int(1, maxWorld))
		return keyWorld
	case "worker_id":
		if k.Worker = -1; !d.null() {
			k.Worker = int(d.int(0, maxWorld-1))
		}
		return keyWorker
	case "token_ids":
		k.Tokens = d.tokens(k.Tokens)
		return keyTokens
	case "start":
		k.Start = int(d.int(0, maxTokens))
		return keyStart
	case "end":
		k.End = int(d.int(0, maxTokens))
		return keyEnd
	case "request_id":
		if d.strTo(&k.Request); d.err != nil {
			return 0
		}
		return keyRequest
	case "cache_salt":
		d.strTo(&k.Salt)
	case "num_kv_readers":
		k.Readers = int(d.int(0, maxWorld))
	case "null_chunk_mask":
		k.Mask = d.mask()
	default:
		d.skip()
	}
	return 0
}

// check applies the rules between fields.
func (k *Key) check(d *decoder) {
	if k.Worker >= k.World {
		d.fail("worker_id %d in a world of %d", k.Worker, k.World)
	}
	if k.Start > k.End || k.End > len(k.Tokens) {
		d.fail("range %d to %d of %d tokens", k.Start, k.End, len(k.Tokens))
	}
	if strings.IndexByte(k.Model, '@') >= 0 {
		d.fail("model_name %q contains @", k.Model)
	}
	if strings.ContainsAny(k.Salt, "@/\\\x00") {
		d.fail("cache_salt contains one of @ / \\ NUL")
	}
	if n := utf8.RuneCountInString(k.Salt); n > maxSalt {
		d.fail("cache_salt has %d characters, at most %d are allowed", n, maxSalt)
	}
}

// mask reads null_chunk_mask.
func (d *decoder) mask() [][]bool {
	if d.null() {
		return nil
	}
	groups := d.arrayLen()
	if groups > maxGroups {
		d.fail("null_chunk_mask of %d groups, at most %d are read", groups, maxGroups)
	}
	if d.err != nil {
		return nil
	}
	mask := make([][]bool, groups)
	for g := range mask {
		mask[g] = make([]bool, d.arrayLen())
		for i := range mask[g] {
			mask[g][i] = d.bool()
		}
	}
	return mask
}

// tokens reads token_ids into the capacity of dst. A key carries the whole prompt each
// time, so this is most of the cost of decoding one: the encodings that token ids have
// are read in runs, everything else as any int.
func (d *decoder) tokens(dst []uint32) []uint32 {
	n := d.arrayLen()
	if cap(dst) < n {
		dst = make([]uint32, n)
	}
	dst = dst[:n]
	for i := 0; i < n && d.err == nil; {
		run, size := tokenRun(dst[i:], d.b)
		d.b = d.b[size:]
		if i += run; i < n {
			dst[i] = uint32(d.int(0, math.MaxUint32))
			i++
		}
	}
	if d.err != nil {
		return dst[:0]
	}
	return dst
}

// tokenRun decodes ints of one, three and five bytes from b until dst is full, and
// returns their number and size. It stops at any other value and shortly before the
// end of b.
//
// Vocabularies above 65,536 mix three and five bytes at random, and a branch on the
// size that cannot be predicted costs three times as much as the rest of the loop.
// So the size is computed, and the next value's lead byte taken out of this value's
// word, which keeps the loads of two values in flight.
func tokenRun(dst []uint32, b []byte) (n, size int) {
	if len(b) < 8 {
		return 0, 0
	}
	lead := uint64(b[0]) // in its low byte
	for i := range dst {
		if size > len(b)-8 {
			return i, size
		}
		word := binary.LittleEndian.Uint64(b[size:])
		switch c := uint8(lead); {
		case c-0xcd < 2: // uint 16 and uint 32
			wide := lead & 2 // 0 and 2
			dst[i] = bits.ReverseBytes32(uint32(word>>8)) >> ((16 - 8*wide) & 31)
			lead = word >> ((24 + 8*wide) & 63)
			size += int(3 + wide)
		case c < 0x80: // fixint
			dst[i] = uint32(c)
			lead = word >> 8
			size++
		default:
			return i, size
		}
	}
	return len(dst), size
}

// Append encodes the key as stock clients do (same field order, shortest ints).
func (k *Key) Append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 11)
	dst = appendStr(dst, "model_name", k.Model)
	dst = appendInt(dst, "world_size", k.World)
	dst = msgp.AppendString(dst, "worker_id")
	if k.Worker < 0 {
		dst = msgp.AppendNil(dst)
	} else {
		dst = msgp.AppendUint64(dst, uint64(k.Worker))
	}
	dst = msgp.AppendString(dst, "token_ids")
	dst = msgp.AppendArrayHeader(dst, uint32(len(k.Tokens)))
	dst = appendTokens(dst, k.Tokens)
	dst = appendInt(dst, "start", k.Start)
	dst = appendInt(dst, "end", k.End)
	dst = appendStr(dst, "request_id", k.Request)
	dst = appendStr(dst, "cache_salt", k.Salt)
	dst = msgp.AppendString(dst, "request_configs")
	dst = msgp.AppendNil(dst)
	dst = appendInt(dst, "num_kv_readers", k.Readers)
	dst = msgp.AppendString(dst, "null_chunk_mask")
	return appendMask(dst, k.Mask)
}

// appendTokens encodes token ids in their shortest forms. As in tokenRun, the size of a
// value of three or five bytes is computed, because a branch on it would be mispredicted
// every other time; bytes that a shorter value leaves over are overwritten by the next.
func appendTokens(dst []byte, tokens []uint32) []byte {
	const longest = 5
	at := len(dst)
	dst = slices.Grow(dst, longest*len(tokens))
	dst = dst[:cap(dst)]
	for _, t := range tokens {
		if t < 1<<8 {
			dst[at], dst[at+1] = 0xcc, byte(t)
			size := 2
			if t < 1<<7 {
				dst[at], size = byte(t), 1
			}
			at += size
			continue
		}
		short := (int64(t) - 1<<16) >> 63 // -1: uint 16, 0: uint 32
		value := dst[at : at+longest]
		value[0] = byte(0xce + short)
		binary.BigEndian.PutUint32(value[1:], t<<(uint(short)&16))
		at += int(longest + 2*short)
	}
	return dst[:at]
}

func appendMask(dst []byte, mask [][]bool) []byte {
	if mask == nil {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(mask)))
	for _, group := range mask {
		dst = msgp.AppendArrayHeader(dst, uint32(len(group)))
		for _, null := range group {
			dst = msgp.AppendBool(dst, null)
		}
	}
	return dst
}
