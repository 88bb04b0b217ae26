package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-kv/holdfast/offload"
)

// memStore is a store whose every call can be made to fail. It keeps count of tickets, and
// gives the slots of a quiet abort to others at once, so that a late write shows.
type memStore struct {
	late  error // BeginLoad fails with it, and has begun
	mu    sync.Mutex
	size  int64
	whole []byte // if not nil, slots lie in it
	taken int
	spare [][]byte
	held  map[string][]byte
	open  map[*memTicket]bool
	calls []string
	fault func(call string) error
	lose  int // chunk of a load that is missing, by position; -1 none
}

type memTicket struct {
	load  bool
	keys  []string // per slot
	slots []offload.Slot
}

func newMemStore(size int64) *memStore {
	return &memStore{size: size, held: make(map[string][]byte), open: make(map[*memTicket]bool), lose: -1}
}

func (s *memStore) ChunkSize() int    { return testChunk }
func (s *memStore) ChunkBytes() int64 { return s.size }
func (s *memStore) Close() error      { return nil }

// begin notes the call and asks for its fault. It returns with the lock held.
func (s *memStore) begin(call string) error {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	if s.fault != nil {
		return s.fault(call)
	}
	return nil
}

func chunkKey(r offload.Request, end int) string {
	return fmt.Sprint(r.Salt, r.Tokens[:end])
}

func (s *memStore) slot() []byte {
	if n := len(s.spare); n > 0 {
		m := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return m
	}
	if s.whole == nil {
		return make([]byte, s.size)
	}
	s.taken++
	return s.whole[int64(s.taken-1)*s.size:][:s.size]
}

func (s *memStore) PrepareSave(_ context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, error) {
	err := s.begin("prepare")
	defer s.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	t := &memTicket{}
	for i := 0; rg.From+i*testChunk < rg.To; i++ {
		key := chunkKey(r, rg.From+(i+1)*testChunk)
		if _, ok := s.held[key]; ok {
			continue
		}
		t.keys = append(t.keys, key)
		t.slots = append(t.slots, offload.Slot{Chunk: i, Mem: s.slot()})
	}
	if len(t.slots) == 0 {
		return nil, nil, nil
	}
	s.open[t] = true
	return t, t.slots, nil
}

func (s *memStore) take(t offload.Ticket) (*memTicket, error) {
	m, ok := t.(*memTicket)
	if !ok || !s.open[m] {
		return nil, fmt.Errorf("ticket %v is not open", t)
	}
	delete(s.open, m)
	return m, nil
}

func (s *memStore) Commit(_ context.Context, t offload.Ticket) (bool, error) {
	fault := s.begin("commit")
	defer s.mu.Unlock()
	m, err := s.take(t)
	if err != nil {
		return false, err
	}
	if fault != nil {
		return false, fault
	}
	for i, slot := range m.slots {
		s.held[m.keys[i]] = slices.Clone(slot.Mem)
	}
	return true, nil
}

func (s *memStore) Abort(_ context.Context, t offload.Ticket, quiet bool) error {
	fault := s.begin(fmt.Sprintf("abort quiet=%v", quiet))
	defer s.mu.Unlock()
	m, err := s.take(t)
	if err != nil {
		return err
	}
	if quiet {
		for _, slot := range m.slots {
			s.spare = append(s.spare, slot.Mem)
		}
	}
	return fault
}

func (s *memStore) BeginLoad(_ context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, bool, error) {
	err := s.begin("begin")
	defer s.mu.Unlock()
	if err != nil {
		return nil, nil, false, err
	}
	t := &memTicket{load: true}
	s.open[t] = true
	if s.late != nil {
		return t, nil, false, s.late
	}
	for i := 0; rg.From+i*testChunk < rg.To; i++ {
		b, ok := s.held[chunkKey(r, rg.From+(i+1)*testChunk)]
		if !ok {
			return t, nil, false, nil
		}
		if i != s.lose {
			t.slots = append(t.slots, offload.Slot{Chunk: i, Mem: b})
		}
	}
	return t, t.slots, true, nil
}

func (s *memStore) EndLoad(_ context.Context, t offload.Ticket) error {
	fault := s.begin("end")
	defer s.mu.Unlock()
	if _, err := s.take(t); err != nil {
		return err
	}
	return fault
}

// count returns the calls that begin with a name.
func (s *memStore) count(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if strings.HasPrefix(c, name) {
			n++
		}
	}
	return n
}

// pooledStore is a memStore whose slots lie in one mapping.
type pooledStore struct{ *memStore }

func (p pooledStore) Pool() []byte { return p.whole }
