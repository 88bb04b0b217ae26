package host

import (
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
)

// TestCheckNotices damages the reference counts of a memory that enqueued work refers to.
func TestCheckNotices(t *testing.T) {
	for name, damage := range map[string]func(m *Memory){
		"lost":      func(m *Memory) { m.queued-- },
		"forgotten": func(m *Memory) { m.queued++ },
		"running":   func(m *Memory) { m.running = m.queued + 1 },
		"freed":     func(m *Memory) { m.freed = true },
	} {
		d := New(Options{Mode: Deferred})
		s, err := d.NewStream("s")
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Alloc("kv", 8)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := s.Copy(device.Span{Mem: m, Len: 4}, device.Span{Mem: m, Off: 4, Len: 4}); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		own := m.(*Memory)
		before := *own
		damage(own)
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), "books of kv") {
			t.Errorf("%s: check says %v", name, err)
		}
		*own = before
		drain := func() error { return s.Synchronize(t.Context()) }
		for _, free := range []func() error{drain, s.Close, m.Free, d.Close} {
			if err := free(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
