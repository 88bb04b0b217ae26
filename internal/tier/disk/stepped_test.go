package disk

import (
	"log/slog"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// oneTask does everything in order, and is killed after so many halts.
type oneTask struct {
	t     *testing.T
	scan  func()
	halts int
}

// killed is the panic that ends it.
type killed struct{}

func (o *oneTask) Start(f func()) { o.scan = f }

func (o *oneTask) Halt(waits bool) {
	if waits {
		o.t.Fatal("it waits, and there is nobody else")
	}
	if o.halts--; o.halts == 0 {
		panic(killed{})
	}
}

// live opens a store over the model, works with it, and says whether that was killed.
func (o *oneTask) live(m *Model, work func(s *Store)) (died bool) {
	defer func() {
		if p := recover(); p == (killed{}) {
			died = true
		} else if p != nil {
			panic(p)
		}
	}()
	s, err := OpenModel(Options{Path: "model", LimitBytes: 3 * 8192, ReserveFree: -1, Log: slog.New(slog.DiscardHandler)}, m, o)
	if err != nil {
		o.t.Fatal(err)
	}
	o.scan()
	work(s)
	return false
}

// TestKilledAtAnyHalt: wherever a store is killed in its puts, evictions, gets and deletions, the next one has what its
// files say, no more files than the limit allows, and nothing unfinished.
func TestKilledAtAnyHalt(t *testing.T) {
	died := true
	for halts := 1; died; halts++ {
		m := NewModel()
		died = (&oneTask{t: t, halts: halts}).live(m, func(s *Store) {
			for n := range 6 {
				mustPut(t, s, object(n, 700, 0))
			}
			mustGet(t, s, object(5, 700, 0))
			if err := s.Delete(t.Context(), []tier.Key{number(4)})[0]; err != nil {
				t.Error(err)
			}
		})
		(&oneTask{t: t}).live(m, func(s *Store) {
			for n := range 6 {
				if s.Has(number(n)) {
					mustGet(t, s, object(n, 700, 0))
				}
			}
			if err := m.Check(s); err != nil || m.Taken() > 3*8192 {
				t.Errorf("killed at halt %d: %d bytes are taken, %v", halts, m.Taken(), err)
			}
		})
		if !died && halts < 20 {
			t.Errorf("there were %d halts", halts)
		}
	}
}
