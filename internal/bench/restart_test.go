package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// A pool of 16 GiB with 100,000 objects of 160 KiB, in prompts of 400 chunks.
const (
	restartGiB     = 16
	restartPrompts = 250
	restartChunks  = 400
	restartBytes   = 160 << 10
)

// BenchmarkRestart is the time from the start of the process to its first hit that was compared
// with its checksum, in a pool that an earlier server left: one that was stopped, and one that
// was killed. A client dials, registers, looks up a prompt of 100,000 tokens and loads its first
// chunk.
func BenchmarkRestart(b *testing.B) {
	name := fmt.Sprintf("lmcache_l1_pool_bench-%d", os.Getpid())
	b.Cleanup(func() { os.Remove(filepath.Join("/dev/shm", name)) })
	args := []string{"--shm-name", name, "--l1-size-gb", fmt.Sprint(restartGiB)}
	p := serve(b, args...)
	fillPool(b, p)
	all := b // whose end is the servers' end
	for _, how := range []string{"stopped", "killed"} {
		b.Run(how, func(b *testing.B) {
			var first, ready []time.Duration
			for b.Loop() {
				if how == "killed" {
					p.kill()
				} else {
					p.stop()
				}
				start := time.Now()
				p = serve(all, args...)
				ready = append(ready, p.ready)
				firstHit(b, p)
				first = append(first, time.Since(start))
				p.inherited(b, restartPrompts*restartChunks)
			}
			b.ReportMetric(float64(quantile(first, 0.5).Microseconds())/1e3, "first-hit-ms")
			b.ReportMetric(float64(quantile(ready, 0.5).Microseconds())/1e3, "ready-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// restartKey is the range of a prompt's first chunks.
func restartKey(prompt, chunks int) *client.Key {
	k := &client.Key{
		Model: "m", World: 1, Tokens: make([]uint32, 256*restartChunks), End: 256 * chunks,
		Request: fmt.Sprint("request ", prompt), Readers: 1,
	}
	for i := range k.Tokens {
		k.Tokens[i] = uint32(prompt<<20 + i)
	}
	return k
}

func restartWorker(b *testing.B, p *process) (*client.Client, *client.Worker) {
	c, err := p.answers()
	if err != nil {
		b.Fatal(err)
	}
	w, err := c.Register(b.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 256, Layers: 1, Hidden: restartBytes / 2 / 2 / 256, DType: "float16",
	})
	if err != nil || !w.SHM() {
		b.Fatal("registration: ", err)
	}
	return c, w
}

// restartContent differs from chunk to chunk.
func restartContent(prompt, chunk int, dst []byte) {
	binary.LittleEndian.PutUint64(dst, uint64(prompt)<<32|uint64(chunk))
	binary.LittleEndian.PutUint64(dst[len(dst)-8:], ^(uint64(prompt)<<32 | uint64(chunk)))
}

func fillPool(b *testing.B, p *process) {
	c, w := restartWorker(b, p)
	defer c.Close()
	for prompt := range restartPrompts {
		ok, err := w.Store(b.Context(), restartKey(prompt, restartChunks), func(i int, dst []byte) error {
			if len(dst) != restartBytes {
				return fmt.Errorf("a chunk of %d bytes", len(dst))
			}
			restartContent(prompt, i, dst)
			return nil
		})
		if !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func firstHit(b *testing.B, p *process) {
	c, w := restartWorker(b, p)
	defer c.Close()
	key := restartKey(restartPrompts/2, restartChunks)
	if err := c.Lookup(b.Context(), key); err != nil {
		b.Fatal(err)
	}
	n, done, err := c.PrefetchStatus(b.Context(), key.Request)
	if n != restartChunks || !done || err != nil {
		b.Fatal(n, done, err)
	}
	key.End = 256
	ok, err := w.Retrieve(b.Context(), key, func(i int, src []byte) error {
		want := make([]byte, len(src))
		if restartContent(restartPrompts/2, i, want); !bytes.Equal(src, want) {
			return fmt.Errorf("chunk %d has other bytes", i)
		}
		return nil
	})
	if !ok || err != nil {
		b.Fatal(ok, err)
	}
}

// kill ends the server without a word.
func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // it was killed: that is its error
}

// inherited demands that the server has adopted so many objects.
func (p *process) inherited(b *testing.B, objects int) {
	if n := p.number("objects"); int(n) != objects {
		b.Fatalf("%v objects after a restart, want %d", n, objects)
	}
	if n := p.number("verified_objects"); n < 1 {
		b.Fatal("nothing was verified")
	}
}
