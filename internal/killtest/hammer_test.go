package killtest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-kv/holdfast/client"
)

// hammer is one engine that stores and loads prompts at random.
type hammer struct {
	client *client.Client
	worker *client.Worker
	name   string
	random *rand.Rand

	round, stores, loads, mismatches int
}

func newHammer(ctx context.Context, endpoint, shmDir string, instance uint64) (*hammer, error) {
	c, err := client.Dial(ctx, endpoint, client.Options{ShmDir: shmDir})
	if err != nil {
		return nil, err
	}
	w, err := c.Register(ctx, registration(instance))
	if err == nil && !w.SHM() {
		err = fmt.Errorf("the pool could not be mapped")
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &hammer{
		client: c, worker: w, name: fmt.Sprint("hammer ", instance),
		random: rand.New(rand.NewPCG(instance, 1)),
	}, nil
}

// storeSummed is a store whose checksums the client takes.
func (h *hammer) storeSummed(ctx context.Context, key *client.Key, fill func(int, []byte) error) (bool, error) {
	return h.worker.StoreSummed(ctx, key, func(index int, dst []byte) (client.Sum, error) {
		src := make([]byte, len(dst))
		err := fill(index, src)
		return client.CopySum(dst, src), err
	})
}

// trip is one request from lookup to end: what is hit is loaded and compared, what is
// missing is stored.
func (h *hammer) trip(ctx context.Context) error {
	h.round++
	prompt, request := h.random.IntN(prompts), fmt.Sprintf("%s round %d", h.name, h.round)
	key := keyOf(prompt, 0, chunks, request)
	if err := h.client.Lookup(ctx, key); err != nil {
		return err
	}
	hits, _, err := h.client.PrefetchStatus(ctx, request)
	if err != nil {
		return err
	}
	if hits > 0 {
		ok, err := h.worker.Retrieve(ctx, keyOf(prompt, 0, hits, request), compare(prompt, &h.mismatches))
		if err != nil {
			return err
		}
		if ok {
			h.loads += hits
		}
	}
	if hits < chunks {
		store := h.worker.Store
		if h.round%2 == 0 {
			store = h.storeSummed
		}
		ok, err := store(ctx, keyOf(prompt, hits, chunks, request), fill(prompt, hits))
		if err != nil {
			return err
		}
		if ok {
			h.stores += chunks - hits
		}
	}
	return h.client.EndSession(ctx, request)
}
