package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/arena"
)

// population backs the pool's pages in the background.
type population struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	now admin.Population
}

// startPopulation begins the work. If memory runs out the reason goes to failed, which has
// room for it: who served on would, at some store, kill the client that writes, or itself.
func startPopulation(pool *arena.Pool, log *slog.Logger, failed chan<- error) *population {
	ctx, cancel := context.WithCancel(context.Background())
	p := &population{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(ctx, pool, log, failed)
	}()
	return p
}

func (p *population) run(ctx context.Context, pool *arena.Pool, log *slog.Logger, failed chan<- error) {
	start := time.Now()
	report := reporter{size: pool.Size(), log: log, last: start}
	err := pool.Populate(ctx, func(done int64) {
		p.mu.Lock()
		p.now.Bytes = done
		p.mu.Unlock()
		report.progress(done, time.Now())
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, context.Canceled):
	case errors.Is(err, errors.ErrUnsupported):
		p.now.Done = true
		log.Info("this kernel cannot back the pool ahead of its use", "error", err)
	case err != nil:
		p.now.Err = err
		failed <- fmt.Errorf("%w; others took the memory since the pool was made: lower --l1-size-gb, or give this server more room", err)
	default:
		p.now.Done = true
		log.Info("pool is backed by memory", "bytes", pool.Size(), "seconds", float64(time.Since(start).Milliseconds())/1000)
	}
}

// state is a snapshot.
func (p *population) state() admin.Population {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// stop ends the work and waits for it: the memory may be unmapped afterwards.
func (p *population) stop() {
	p.cancel()
	<-p.done
}

// reporter logs progress: at every tenth, but not more than once a second, and at least
// every five seconds.
type reporter struct {
	size   int64
	log    *slog.Logger
	last   time.Time
	logged int64
}

func (r *reporter) progress(done int64, now time.Time) {
	since := now.Sub(r.last)
	tenth := done-r.logged >= r.size/10
	if done == r.size || since < time.Second || !tenth && since < 5*time.Second {
		return
	}
	r.last, r.logged = now, done
	r.log.Info("backing the pool with memory", "bytes", done, "of", r.size, "percent", 100*done/r.size)
}
