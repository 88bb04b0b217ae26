package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
)

// The model of the transfer benchmarks: chunks of 256 tokens, one object of 1 MiB each, 16
// in a range, in a pool that has room for 8 ranges, so that every store evicts.
const (
	benchTokens = 256
	benchObject = 1 << 20
	benchChunks = 16
	benchPool   = 8 * benchChunks * benchObject
)

// bench is a server with one worker, and memory that an engine would copy from and to.
type bench struct {
	*testServer
	b      *testing.B
	client *client.Client
	worker *client.Worker
	memory []byte // of the engine, one range
	round  int
}

// newBench has no shared memory: internal/bench measures that, between two processes.
func newBench(b *testing.B) *bench {
	n := &bench{b: b, testServer: startIn(b, arena.ShmDir, benchTokens, cache.VerifyOff, arena.PoolOptions{Size: benchPool})}
	if err := n.pool.Populate(context.Background(), nil); err != nil {
		b.Fatal(err)
	}
	n.client = n.dial(b, n.unix, false)
	var err error
	n.worker, err = n.client.Register(testContext(b), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 16, Layers: 4, Hidden: 256, DType: "bfloat16",
	})
	if err != nil {
		b.Fatal(err)
	}
	n.memory = make([]byte, benchChunks*benchObject)
	for i := range n.memory {
		n.memory[i] = byte(i)
	}
	return n
}

func (n *bench) key(round int) *client.Key {
	k := &client.Key{Model: "m", World: 1, End: benchChunks * benchTokens, Request: fmt.Sprint(round), Readers: 1}
	k.Tokens = make([]uint32, k.End)
	for i := range k.Tokens {
		k.Tokens[i] = uint32(round<<12 + i)
	}
	return k
}

func (n *bench) must(ok bool, err error) {
	if !ok || err != nil {
		n.b.Fatal(ok, err)
	}
}

// stores looks a new range up, as engines do before they store, and returns the store itself.
func (n *bench) stores() func() {
	n.round++
	key := n.key(n.round)
	lookup(n.b, n.client, key)
	return func() {
		n.must(n.worker.Store(context.Background(), key, func(i int, dst []byte) error {
			copy(dst, n.memory[i*benchObject:])
			return nil
		}))
	}
}

// retrieves looks up what was stored last and returns the retrieve itself.
func (n *bench) retrieves() func() {
	key := n.key(n.round)
	key.Request += " again"
	if found := lookup(n.b, n.client, key); found != benchChunks {
		n.b.Fatalf("%d chunks found", found)
	}
	return func() {
		n.must(n.worker.Retrieve(context.Background(), key, func(i int, src []byte) error {
			copy(n.memory[i*benchObject:(i+1)*benchObject], src)
			return nil
		}))
	}
}

// prepared times only what the prepared calls do.
func prepared(b *testing.B, calls ...func() func()) []time.Duration {
	for range 16 { // touch the whole pool, and fill it
		for _, call := range calls {
			call()()
		}
	}
	b.ResetTimer()
	times := make([][]time.Duration, len(calls))
	for range b.N {
		for i, call := range calls {
			do := call()
			start := time.Now()
			do()
			times[i] = append(times[i], time.Since(start))
		}
	}
	return p50(times)
}

func reportRatio(b *testing.B, p50 []time.Duration, unit string) {
	b.ReportMetric(float64(p50[0].Microseconds()), "limit-p50-µs")
	b.ReportMetric(float64(p50[1].Microseconds()), "p50-µs")
	b.ReportMetric(float64(p50[0])/float64(p50[1]), unit)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStoreCopy stores 16 chunks of 1 MiB over a unix socket, as a ratio to a bare
// socket that moves the same bytes.
func BenchmarkStoreCopy(b *testing.B) {
	n := newBench(b)
	reportRatio(b, prepared(b, n.bareSocket(true), n.stores), "x-bare")
}

// BenchmarkRetrieveCopy is the same for loading.
func BenchmarkRetrieveCopy(b *testing.B) {
	n := newBench(b)
	n.stores()()
	reportRatio(b, prepared(b, n.bareSocket(false), n.retrieves), "x-bare")
}

// bareSocket moves one range over a unix socket, in the one direction or the other, and
// waits until the other side has it.
func (n *bench) bareSocket(out bool) func() func() {
	l, err := net.Listen("unix", filepath.Join(n.b.TempDir(), "bare"))
	if err != nil {
		n.b.Fatal(err)
	}
	size := benchChunks * benchObject
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf, small := make([]byte, size), make([]byte, 1)
		in, back := buf, small
		if !out {
			in, back = small, buf
		}
		for {
			if _, err := io.ReadFull(conn, in); err != nil {
				return
			}
			if _, err := conn.Write(back); err != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		n.b.Fatal(err)
	}
	n.b.Cleanup(func() { conn.Close(); l.Close(); <-done })
	small := make([]byte, 1)
	there, back := n.memory, small
	if !out {
		there, back = small, n.memory
	}
	return func() func() {
		return func() {
			if _, err := conn.Write(there); err != nil {
				n.b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, back); err != nil {
				n.b.Fatal(err)
			}
		}
	}
}

// BenchmarkPrepareCommit is PREPARE and COMMIT of 40 chunks without any copy; the limit is
// 250 µs.
func BenchmarkPrepareCommit(b *testing.B) {
	const chunks = 40
	dir := arena.ShmDir
	name := fmt.Sprintf("holdfast-bench-%d-%d", os.Getpid(), time.Now().UnixNano())
	s := startIn(b, dir, benchTokens, cache.VerifyOff, arena.PoolOptions{Name: name, Size: 400 * chunks * 4096})
	c := s.dial(b, s.unix, false)
	w, err := c.Register(testContext(b), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 16, Layers: 1, Hidden: 4, DType: "bfloat16",
	})
	if err != nil {
		b.Fatal(err)
	}
	round := 0
	next := func() func() {
		round++
		k := &client.Key{Model: "m", World: 1, End: chunks * benchTokens, Request: fmt.Sprint(round), Readers: 1}
		k.Tokens = make([]uint32, k.End)
		for i := range k.Tokens {
			k.Tokens[i] = uint32(round<<14+i) % 150000 // as token ids of a real vocabulary
		}
		k.Tokens[0] = uint32(round)
		lookup(b, c, k) // engines do, and the server hashes the prompt then
		return func() {
			ok, err := w.Store(context.Background(), k, func(int, []byte) error { return nil })
			if !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	}
	p50 := prepared(b, next)
	b.ReportMetric(float64(p50[0].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(p50[0])/float64(250*time.Microsecond), "x-250µs")
	b.ReportMetric(0, "ns/op")
}
