package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// The engine's model: chunks of 256 tokens, one object of 1 MiB each. A range of 40 is a prompt
// of 10,240 tokens, a little less than the mean of the field's traces.
const (
	chunkTokens = 256
	objectBytes = 1 << 20
	rangeChunks = 40
	rangeBytes  = rangeChunks * objectBytes
	engineBytes = batch * rangeBytes
)

// engine is a worker of a server and the scheduler beside it, with memory to copy from and to:
// much more than a processor's caches hold, as an engine's is.
type engine struct {
	b      *testing.B
	client *client.Client
	worker *client.Worker
	memory []byte
	next   atomic.Int64  // range in memory
	copies chan<- func() // to the one stream of copies, as an asynchronous engine has it
	round  int           // names prompts
	sums   bool          // takes checksums with the copies
}

func newEngine(b *testing.B, p *process, o client.Options) *engine {
	e := &engine{b: b, memory: make([]byte, engineBytes), copies: stream(b)}
	for i := range e.memory {
		e.memory[i] = byte(i >> 3)
	}
	var err error
	if e.client, err = client.Dial(b.Context(), p.endpoint, o); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.client.Close() })
	e.worker, err = e.client.Register(b.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 16, Layers: 4, Hidden: 256, DType: "bfloat16",
	})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// key is of a prompt that no other round has.
func (e *engine) key(round int, request string) *client.Key {
	k := &client.Key{Model: "m", World: 1, End: rangeChunks * chunkTokens, Request: fmt.Sprint(request, round), Readers: 1}
	k.Tokens = make([]uint32, k.End)
	for i := range k.Tokens {
		k.Tokens[i] = uint32(round<<14+i*37) % 150_000 // as large as vocabularies are
	}
	k.Tokens[0] = uint32(round)
	return k
}

func (e *engine) lookup(k *client.Key, want int) {
	if err := e.client.Lookup(e.b.Context(), k); err != nil {
		e.b.Fatal(err)
	}
	n, done, err := e.client.WaitPrefetch(e.b.Context(), k.Request, time.Second)
	if err != nil || !done || n != want {
		e.b.Fatalf("lookup: %d chunks, want %d; done %t, %v", n, want, done, err)
	}
}

// toStore looks n new prompts up, as engines do before they store.
func (e *engine) toStore(n int) []*client.Key {
	keys := make([]*client.Key, n)
	for i := range keys {
		e.round++
		keys[i] = e.key(e.round, "s")
		e.lookup(keys[i], 0)
	}
	return keys
}

// toLoad looks up what was stored under the keys.
func (e *engine) toLoad(stored []*client.Key) []*client.Key {
	keys := make([]*client.Key, len(stored))
	for i, k := range stored {
		again := *k
		again.Request += " again"
		keys[i] = &again
		e.lookup(keys[i], rangeChunks)
	}
	return keys
}

// end ends the requests.
func (e *engine) end(keys []*client.Key) {
	for _, k := range keys {
		if err := e.client.EndSession(e.b.Context(), k.Request); err != nil {
			e.b.Fatal(err)
		}
	}
}

// each runs one transfer for every key, so many of them at a time.
func (e *engine) each(inFlight int, keys []*client.Key, transfer func(*client.Key) (bool, error)) {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var group sync.WaitGroup
	for range inFlight {
		group.Go(func() {
			for i := next.Add(1); i <= int64(len(keys)); i = next.Add(1) {
				ok, err := transfer(keys[i-1])
				if !ok || err != nil {
					err = fmt.Errorf("transfer %d: %t, %w", i, ok, err)
					failed.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		e.b.Fatal(*err)
	}
}

// store and load are transfers of an engine that waits for them.
func (e *engine) store(k *client.Key) (bool, error) {
	memory := e.part()
	if e.sums {
		return e.worker.StoreSummed(context.Background(), k, func(i int, dst []byte) (client.Sum, error) {
			return client.CopySum(dst, chunk(memory, i)), nil
		})
	}
	return e.worker.Store(context.Background(), k, func(i int, dst []byte) error {
		client.Copy(dst, chunk(memory, i))
		return nil
	})
}

func (e *engine) load(k *client.Key) (bool, error) {
	memory := e.part()
	return e.worker.Retrieve(context.Background(), k, func(i int, src []byte) error {
		client.Copy(chunk(memory, i), src)
		return nil
	})
}

// part is the memory of the next range.
func (e *engine) part() []byte {
	at := int(e.next.Add(1)) * rangeBytes % len(e.memory)
	return e.memory[at : at+rangeBytes]
}

func chunk(memory []byte, i int) []byte { return memory[i*objectBytes : (i+1)*objectBytes] }

// storeAside and loadAside are those of one that does not: the requests are a goroutine's, the
// copies the stream's.
func (e *engine) storeAside(k *client.Key) (bool, error) {
	reply, err := e.worker.PrepareStore(context.Background(), k)
	if err != nil {
		return false, err
	}
	memory := e.part()
	var sums []client.Sum
	e.onStream(func() {
		for i, s := range reply.Slots {
			if dst, src := e.worker.Mem(s), chunk(memory, reply.Indices[i]); e.sums {
				sums = append(sums, client.CopySum(dst, src))
			} else {
				client.Copy(dst, src)
			}
		}
	})
	return e.worker.CommitStore(context.Background(), k, sums...)
}

func (e *engine) loadAside(k *client.Key) (bool, error) {
	reply, err := e.worker.PrepareRetrieve(context.Background(), k)
	if err != nil || !reply.Success {
		return false, err
	}
	memory := e.part()
	e.onStream(func() {
		for i, s := range reply.Slots {
			client.Copy(chunk(memory, i), e.worker.Mem(s))
		}
	})
	return e.worker.CommitRetrieve(context.Background(), k)
}

// stream runs what comes, one after the other, on a thread of its own.
func stream(b *testing.B) chan<- func() {
	work := make(chan func(), 2)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		for f := range work {
			f()
		}
	}()
	b.Cleanup(func() { close(work) })
	return work
}

// onStream has f run on the stream of copies, and waits for it.
func (e *engine) onStream(f func()) {
	done := make(chan struct{})
	e.copies <- func() {
		defer close(done)
		f()
	}
	<-done
}

// quantile of a sample, 0.5 for the median.
func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(q*float64(len(d)))]
}

// ratio of the medians.
func ratio(a, b []time.Duration) float64 {
	return float64(quantile(a, 0.5)) / float64(quantile(b, 0.5))
}

// pairs is the median of the ratios of what was measured one after the other.
func pairs(a, b []time.Duration) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = float64(a[i]) / float64(b[i])
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}
