package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/workload"
)

// trip is one request on its way through the server. It is used for one after another.
type trip struct {
	player *player
	number int
	id     string
	tokens []uint32
	chunks []prefix // of every whole chunk of the prompt
	hit    int      // chunks
	waited bool     // for second-level stores
}

func (t *trip) prepare(number int, r *workload.Request) {
	p := t.player
	t.number = number
	t.id = fmt.Sprintf("%s-%d", p.name, number)
	t.tokens = r.Prompt(t.tokens[:0])
	t.chunks = prefixes(t.chunks[:0], p.o.Seed, t.tokens, p.chunkSize)
	t.hit, t.waited = 0, false
}

// key names chunks first … end-1 of the request. Rank -1 is the scheduler.
func (t *trip) key(rank, first, end int) client.Key {
	p := t.player
	return client.Key{
		Model:   p.model,
		World:   p.o.Ranks,
		Worker:  rank,
		Tokens:  t.tokens,
		Start:   first * p.chunkSize,
		End:     end * p.chunkSize,
		Request: t.id,
		Readers: 1,
	}
}

// run is what an engine does with a request: ask what is there, load it on every rank,
// compute the rest (which costs nothing here), store it, and end the session. A load
// that fails is recomputed, on all ranks, as an engine must.
func (t *trip) run(ctx context.Context) error {
	p := t.player
	if len(t.chunks) > 0 {
		if err := t.through(ctx); err != nil {
			return err
		}
	}
	p.tally.requests.Add(1)
	p.tally.tokens.Add(int64(len(t.tokens)))
	p.progress.ended(len(t.chunks), t.hit)
	return nil
}

func (t *trip) through(ctx context.Context) error {
	p := t.player
	if err := t.bounded(ctx, t.ask); err != nil {
		return err
	}
	p.tally.askedChunks.Add(int64(len(t.chunks)))
	p.tally.hitChunks.Add(int64(t.hit))
	first := t.hit
	if t.hit > 0 {
		var failed atomic.Bool
		err := t.onAllRanks(ctx, func(ctx context.Context, k *rank) error {
			ok, err := k.load(ctx, t)
			if !ok {
				failed.Store(true)
			}
			return err
		})
		if err != nil {
			return err
		}
		if failed.Load() {
			first = 0
		}
	}
	if first < len(t.chunks) {
		err := t.onAllRanks(ctx, func(ctx context.Context, k *rank) error { return k.save(ctx, t, first) })
		if err != nil {
			return err
		}
	}
	return t.bounded(ctx, t.end)
}

// bounded gives f the time of one operation.
func (t *trip) bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.player.o.Timeout)
	defer cancel()
	return f(ctx)
}

// onAllRanks does f on every rank at the same time and waits for all.
func (t *trip) onAllRanks(ctx context.Context, f func(context.Context, *rank) error) error {
	ranks := t.player.ranks
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, k := range ranks {
		all.Go(func() {
			errs[i] = t.bounded(ctx, func(ctx context.Context) error { return f(ctx, k) })
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// ask looks the prompt up and waits for the answer, as a scheduler does at each step.
func (t *trip) ask(ctx context.Context) error {
	p := t.player
	begin := time.Now()
	op := p.books.dispatch(opLookup)
	key := t.key(-1, 0, len(t.chunks))
	err := p.scheduler.Lookup(ctx, &key)
	if err == nil {
		t.hit, err = t.answer(ctx)
	}
	p.books.settle(op, true, err)
	if err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	took := time.Since(begin)
	p.lookup.add(took)
	if t.waited {
		p.waited.add(took)
	}
	return nil
}

const (
	// waitStep is how long one request for an answer waits at the server.
	waitStep = time.Second
	// schedulerStep is the pause before the next one; a server may not let all of them wait.
	schedulerStep = time.Millisecond
)

// answer asks for the lookup's answer. While there is none, because the server is loading
// from second-level stores, the request waits for it, and the others go on.
func (t *trip) answer(ctx context.Context) (int, error) {
	hit, done, err := t.player.scheduler.PrefetchStatus(ctx, t.id)
	for ; ; hit, done, err = t.player.scheduler.WaitPrefetch(ctx, t.id, waitStep) {
		switch {
		case err != nil:
			return 0, err
		case done && (hit < 0 || hit > len(t.chunks)):
			return 0, fmt.Errorf("the server says that it has %d chunks of %d", hit, len(t.chunks))
		case done:
			return hit, nil
		}
		t.waited = true
		select {
		case <-time.After(schedulerStep):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// end tells the server that the request is over.
func (t *trip) end(ctx context.Context) error {
	p := t.player
	op := p.books.dispatch(opEnd)
	err := p.scheduler.EndSession(ctx, t.id)
	p.books.settle(op, true, err)
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}
