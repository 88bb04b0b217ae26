package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

// served returns how often an operation was served and how long that took, in seconds:
// decoding, hashing and the cache's work, without the socket.
func (h *house) served(op string) (uint64, float64) {
	for _, row := range h.Status().Requests {
		if row.Op == op {
			return row.Count, row.Seconds
		}
	}
	return 0, 0
}

// report gives the server's own time for one operation as a metric.
func (h *house) report(b *testing.B, op string, count uint64, seconds float64) {
	n, s := h.served(op)
	b.ReportMetric((s-seconds)/float64(n-count)*1e9, "server-ns/op")
}

// BenchmarkLookup is a lookup of 100,000 tokens, 390 chunks of 256, all of them stored:
// the first of a request, and one of a request that has grown by a chunk. Limits: 2.5 ms
// and 0.6 ms, server side.
func BenchmarkLookup(b *testing.B) {
	const size, chunks = 256, 390
	prepare := func(b *testing.B) (*house, *peer, lmcache.Key) {
		h := open(b, plan{size: 64 << 20, config: func(c *server.Config) { c.ChunkSize = size }})
		p := h.dial(b, h.unix)
		r := model(7)
		r.Layers, r.Hidden = 1, 2
		p.register(r)
		key := keyOf("s", 1, 0, 0, 0)
		key.Tokens = tokens(1, (chunks+2)*size)
		for i := range key.Tokens {
			key.Tokens[i] %= 150_000 // as large as vocabularies are
		}
		key.End = (chunks + 1) * size
		if n := len(p.prepareStore(key, 7).Slots); n != chunks+1 || !p.commitStore(key, 7, emptyBin) {
			b.Fatal("store")
		}
		p.void(lmcache.OpEndSession, str("s"))
		key.Worker = -1
		return h, p, key
	}
	ask := func(b *testing.B, p *peer, key lmcache.Key, frame []byte, chunks int) {
		p.void(lmcache.OpLookup, frame, num(1))
		if n := p.status(key.Request); n != chunks {
			b.Fatalf("found %d of %d", n, chunks)
		}
	}
	b.Run("first", func(b *testing.B) {
		h, p, key := prepare(b)
		key.Request, key.End = "r", chunks*size
		key.Tokens = key.Tokens[:key.End]
		frame := key.Append(nil)
		n, s := h.served("LOOKUP")
		for b.Loop() {
			ask(b, p, key, frame, chunks)
			p.void(lmcache.OpEndSession, str("r"))
		}
		h.report(b, "LOOKUP", n, s)
	})
	b.Run("grown", func(b *testing.B) {
		h, p, key := prepare(b)
		all := key.Tokens
		short, long := key, key
		short.Request, short.Tokens, short.End = "r", all[:chunks*size], chunks*size
		long.Request, long.Tokens, long.End = "r", all[:(chunks+1)*size], (chunks+1)*size
		before, after := short.Append(nil), long.Append(nil)
		var count uint64
		var seconds float64
		for b.Loop() {
			ask(b, p, short, before, chunks)
			n, s := h.served("LOOKUP")
			ask(b, p, long, after, chunks+1)
			n2, s2 := h.served("LOOKUP")
			count, seconds = count+n2-n, seconds+s2-s
			p.void(lmcache.OpEndSession, str("r"))
		}
		b.ReportMetric(seconds/float64(count)*1e9, "server-ns/op")
	})
}

// BenchmarkStoreOf40 is PREPARE_STORE and COMMIT_STORE of 40 chunks without a payload copy,
// checksums off, over a unix socket. Limit: 250 µs for both.
func BenchmarkStoreOf40(b *testing.B) {
	h := open(b, plan{size: 64 << 20, verify: cache.VerifyOff})
	p := h.dial(b, h.unix)
	p.register(model(7))
	i := 0
	for b.Loop() {
		key := keyOf("s", i, 0, 40, 0)
		i++
		if n := len(p.prepareStore(key, 7).Slots); n != 40 || !p.commitStore(key, 7, emptyBin) {
			b.Fatal("store")
		}
	}
	h.report(b, "PREPARE_STORE", 0, 0)
}

// BenchmarkPing is the round trip of a ping with an instance.
func BenchmarkPing(b *testing.B) {
	h := open(b, plan{})
	p := h.dial(b, h.unix)
	p.register(model(7))
	arg := msgp.AppendUint64(nil, 7)
	for b.Loop() {
		p.want(yes, lmcache.OpPing, arg)
	}
	h.report(b, "PING", 0, 0)
}

// BenchmarkLookupMiss is a lookup of 10,240 tokens that nobody has, with its answer and the end
// of the request: without tiers, and with one that is asked in place, in turns. The ratio is of
// whole round trips.
func BenchmarkLookupMiss(b *testing.B) {
	const size, chunks = 256, 40
	var peers [2]*peer
	for i := range peers {
		p := plan{size: 64 << 20, config: func(c *server.Config) { c.ChunkSize = size }}
		if i == 1 {
			p.tiers = []cache.Tier{{Name: "tier", Store: conform.NewMemory(conform.NewMedium())}}
		}
		h := open(b, p)
		peers[i] = h.dial(b, h.unix)
		peers[i].register(model(7))
	}
	key := keyOf("q", 1, 0, 0, -1)
	key.Tokens, key.End = tokens(1, chunks*size), chunks*size
	frame := key.Append(nil)
	var took [2][]time.Duration
	for b.Loop() {
		for i, p := range peers {
			start := time.Now()
			p.void(lmcache.OpLookup, frame, num(1))
			if n := p.status("q"); n != 0 {
				b.Fatal(n)
			}
			p.void(lmcache.OpEndSession, str("q"))
			took[i] = append(took[i], time.Since(start))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	without, with := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(float64(without.Nanoseconds())/1e3, "µs-without")
	b.ReportMetric(float64(with.Nanoseconds())/1e3, "µs-with")
	b.ReportMetric(float64(with)/float64(without), "of-without")
	b.ReportMetric(0, "ns/op")
}
