package lmcache

import (
	"math"

	"github.com/tinylib/msgp/msgp"
)

// Hello is the reply of "holdfast.hello". Fields are only ever added.
type Hello struct {
	Protocol  int      // of Holdfast's additions; 1
	BootID    string   // changes with every start of the server
	Version   string   // of the server program
	PID       int      // of the server
	ChunkSize int      // tokens
	Features  []string // names of additions the server has
}

// FeatureSums is a server that knows "holdfast.commit_store".
const FeatureSums = "sums"

// Append encodes the reply: a map with the keys protocol, boot_id, version, pid,
// chunk_size and features.
func (h *Hello) Append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 6)
	dst = appendInt(dst, "protocol", h.Protocol)
	dst = appendStr(dst, "boot_id", h.BootID)
	dst = appendStr(dst, "version", h.Version)
	dst = appendInt(dst, "pid", h.PID)
	dst = appendInt(dst, "chunk_size", h.ChunkSize)
	dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "features"), uint32(len(h.Features)))
	for _, name := range h.Features {
		dst = msgp.AppendString(dst, name)
	}
	return dst
}

// Decode reads a reply; unknown fields are ignored, and only protocol must be there.
func (h *Hello) Decode(frame []byte) error {
	*h = Hello{}
	d := decoder{b: frame}
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "protocol":
			h.Protocol = int(d.int(0, math.MaxInt32))
			seen |= 1
		case "boot_id":
			d.strTo(&h.BootID)
		case "version":
			d.strTo(&h.Version)
		case "pid":
			h.PID = int(d.int(0, math.MaxInt32))
		case "chunk_size":
			h.ChunkSize = int(d.int(0, maxTokens))
		case "features":
			h.Features = each(&d, func(d *decoder) string { return string(d.str()) })
		default:
			d.skip()
		}
	}
	d.require(seen, "protocol")
	return d.finish("reply of " + helloName)
}
