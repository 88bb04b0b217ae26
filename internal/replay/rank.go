package replay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// rank is one worker: its own connection and its registration.
type rank struct {
	player *player
	number int
	client *client.Client
	worker *client.Worker
	ranges ranges
}

func newRank(ctx context.Context, p *player, endpoint string, co client.Options, number int) (*rank, error) {
	c, err := client.Dial(ctx, endpoint, co)
	if err != nil {
		return nil, err
	}
	g := p.o.Geometry
	w, err := c.Register(ctx, client.Registration{
		Instance:  rand.Uint64() >> 1,
		Model:     p.model,
		World:     p.o.Ranks,
		BlockSize: blockSize(p.chunkSize),
		Layers:    g.Layers,
		Hidden:    g.hidden(),
		DType:     string(g.DType),
	})
	if err == nil && p.o.Transport == SHM && !w.SHM() {
		err = fmt.Errorf("%w: the server's memory cannot be mapped from here; use --transport %s", ErrOptions, Pickle)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &rank{player: p, number: number, client: c, worker: w}, nil
}

// blockSize is an engine's block: 16 tokens if chunks are made of those.
func blockSize(chunkSize int) int {
	if chunkSize%16 == 0 {
		return 16
	}
	return 1
}

func (k *rank) close(ctx context.Context) error {
	err := k.worker.Unregister(ctx)
	if err != nil {
		err = fmt.Errorf("unregister rank %d: %w", k.number, err)
	}
	return errors.Join(err, k.client.Close())
}

// load retrieves the trip's hit and compares every byte of it. False is a miss.
func (k *rank) load(ctx context.Context, t *trip) (bool, error) {
	p := k.player
	var loaded int64
	var wrong []Mismatch // counts only if the server stands by what it served
	begin := time.Now()
	op := p.books.dispatch(opRetrieve)
	key := t.key(k.number, 0, t.hit)
	ok, err := k.worker.Retrieve(ctx, &key, func(i int, src []byte) error {
		if i < 0 || i >= t.hit || int64(len(src)) != p.chunkBytes {
			return fmt.Errorf("chunk %d of %d came with %d bytes, want %d", i, t.hit, len(src), p.chunkBytes)
		}
		c := contentOf(t.chunks[i], k.number)
		if at := c.compare(src); at >= 0 {
			wrong = append(wrong, p.describe(t, k.number, i, c, at, src))
		}
		loaded += int64(len(src))
		return nil
	})
	p.books.settle(op, ok, err)
	if err != nil {
		return false, fmt.Errorf("retrieve chunks 0 to %d on rank %d: %w", t.hit, k.number, err)
	}
	p.retrieve.add(time.Since(begin))
	if ok && loaded != int64(t.hit)*p.chunkBytes {
		return false, fmt.Errorf("retrieve chunks 0 to %d on rank %d: only %d bytes came", t.hit, k.number, loaded)
	}
	if !ok {
		p.tally.loadFailures.Add(1)
		return false, nil
	}
	p.tally.loadedBytes.Add(loaded)
	p.mismatches.add(wrong)
	p.progress.moved(loaded, len(wrong))
	return true, nil
}

// save stores the trip's chunks from first on.
func (k *rank) save(ctx context.Context, t *trip, first int) error {
	p := k.player
	end := len(t.chunks)
	release, err := k.ranges.claim(ctx, span{first, end, t.chunks[end-1]})
	if err != nil {
		return fmt.Errorf("store chunks %d to %d on rank %d: %w", first, end, k.number, err)
	}
	defer release()
	var stored int64
	begin := time.Now()
	op := p.books.dispatch(opStore)
	key := t.key(k.number, first, end)
	ok, err := k.worker.Store(ctx, &key, func(i int, dst []byte) error {
		if i < 0 || first+i >= end || int64(len(dst)) != p.chunkBytes {
			return fmt.Errorf("asked for chunk %d of %d in %d bytes, want %d", i, end-first, len(dst), p.chunkBytes)
		}
		contentOf(t.chunks[first+i], k.number).fill(dst)
		stored += int64(len(dst))
		return nil
	})
	p.books.settle(op, ok, err)
	if err != nil {
		return fmt.Errorf("store chunks %d to %d on rank %d: %w", first, end, k.number, err)
	}
	p.store.add(time.Since(begin))
	if !ok {
		return nil // the ledger has it as rejected
	}
	p.tally.storedBytes.Add(stored)
	p.progress.moved(stored, 0)
	return nil
}

// span is what the server knows a store by, within one worker: not by its request.
type span struct {
	first, end int
	prefix     prefix
}

// ranges keeps stores of the same range in one worker apart. An engine's worker does
// them one after another; two at a time would commit each other's slots.
type ranges struct {
	mu   sync.Mutex
	busy map[span]chan struct{}
}

// claim waits until no other store of the range is in progress.
func (r *ranges) claim(ctx context.Context, s span) (release func(), err error) {
	for {
		r.mu.Lock()
		other, taken := r.busy[s]
		if !taken {
			if r.busy == nil {
				r.busy = make(map[span]chan struct{})
			}
			done := make(chan struct{})
			r.busy[s] = done
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				delete(r.busy, s)
				r.mu.Unlock()
				close(done)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
