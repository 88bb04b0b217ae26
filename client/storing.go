package client

import "context"

// storeID tells stores of one worker apart. Two stores with equal ids are nearly always of
// one range; that they wait for each other when they are not does no harm.
type storeID struct {
	start, end int
	salt       string
	tail       uint64 // of the tokens before end
}

// tailTokens is how many tokens before the end of a range tell it from others.
const tailTokens = 256

func idOf(key *Key) storeID {
	const prime = 1099511628211 // FNV-1a, by token
	h := uint64(14695981039346656037)
	for _, t := range key.Tokens[max(0, key.End-tailTokens):key.End] {
		h = (h ^ uint64(t)) * prime
	}
	return storeID{key.Start, key.End, key.Salt, h}
}

// beginStore is begin for a store. It waits until no other store of the same range is open
// in this worker: the server knows a store by worker and range, adds what a second one
// prepares to the first, and would publish with the first one's commit what the second has
// not written yet.
func (w *Worker) beginStore(ctx context.Context, key *Key) (*operation, error) {
	for {
		o, err := w.begin(ctx, key)
		if err != nil {
			return nil, err
		}
		id := idOf(key) // begin has checked the range
		w.mu.Lock()
		other := w.storing[id]
		if other == nil {
			if w.storing == nil {
				w.storing = make(map[storeID]chan struct{})
			}
			o.alone = make(chan struct{})
			o.id = id
			w.storing[id] = o.alone
			w.mu.Unlock()
			return o, nil
		}
		w.mu.Unlock()
		o.leave()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// endStore lets the next store of the range in.
func (o *operation) endStore() {
	if o.alone == nil {
		return
	}
	o.w.mu.Lock()
	delete(o.w.storing, o.id)
	o.w.mu.Unlock()
	close(o.alone)
}
