package cache

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// restarts is a cache whose server ends and begins anew at any step, and what must hold whatever
// came before: memory that somebody may still write to is nobody else's, what somebody may be
// reading does not change, and what is served is what was stored.
type restarts struct {
	*rig
	compare func()
	clients map[Holder]*lifelong
	next    int
}

// lifelong is a client that does not end with the server.
type lifelong struct {
	lost    bool
	writing []Placed // may still write, with its own pattern
	open    *Range   // of writing, in this life of the server
	reading []Placed
	seen    [][]byte
	read    *Range
	request string
}

func TestRestartsAtAnyStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pool := recordedPool(t, 4096, objectSize)
		m := &restarts{clients: make(map[Holder]*lifelong), compare: func() {}}
		m.rig = newRig(quiet{t}, verify(VerifyAlways), func(c *Config) { c.Pool = pool })
		rt.Cleanup(func() {
			m.Close()
			pool.Close()
			for _, p := range m.adopted {
				p.Close()
			}
		})
		rt.Repeat(map[string]func(*rapid.T){
			"":       m.verify,
			"begin":  m.begin,
			"commit": m.commit,
			"read":   m.beginRead,
			"end":    m.endRead,
			"lost": func(t *rapid.T) {
				m.some(t, func(h Holder, c *lifelong) { m.Lost(h); c.lost, c.open, c.read = true, nil, nil })
			},
			"gone":    func(t *rapid.T) { m.some(t, func(h Holder, _ *lifelong) { m.Gone(h); delete(m.clients, h) }) },
			"clear":   func(*rapid.T) { m.Clear() },
			"restart": m.restartStep,
		})
	})
}

// some picks a client.
func (m *restarts) some(t *rapid.T, f func(Holder, *lifelong)) {
	if all := slices.Sorted(maps.Keys(m.clients)); len(all) > 0 {
		h := rapid.SampledFrom(all).Draw(t, "client")
		f(h, m.clients[h])
	}
}

func (m *restarts) prompts(t *rapid.T) Range {
	name := rapid.SampledFrom([]byte("abcdefgh")).Draw(t, "prompt")
	return m.rng(prompt(name, rapid.IntRange(1, 20).Draw(t, "chunks")), 0)
}

// begin lets a new client begin a store.
func (m *restarts) begin(t *rapid.T) {
	m.next++
	h := m.NewPeer(fmt.Sprint("client ", m.next), Peer{PID: m.next, Start: 1})
	c := &lifelong{}
	m.clients[h] = c
	rg := m.prompts(t)
	if placed, err := m.Prepare(h, 0, rg, m.size); err == nil && len(placed) > 0 {
		c.writing, c.open = placed, &rg
		fill(rg, 0, placed)
	}
}

func (m *restarts) commit(t *rapid.T) {
	m.some(t, func(h Holder, c *lifelong) {
		if c.open != nil {
			if !m.Commit(h, 0, *c.open) {
				t.Fatal("commit is false")
			}
			c.writing, c.open = nil, nil
		}
	})
}

func (m *restarts) beginRead(t *rapid.T) {
	m.some(t, func(h Holder, c *lifelong) {
		if c.lost || c.reading != nil {
			return
		}
		rg := m.prompts(t)
		m.next++
		c.request = fmt.Sprint("request ", m.next)
		n := m.lookup(h, c.request, rg)
		rg.Chain = rg.Chain[:n]
		if n == 0 {
			return
		}
		placed, ok := m.BeginRead(h, c.request, 0, rg)
		if err := differ(rg, 0, placed); !ok || err != nil {
			t.Fatalf("read %t, %v", ok, err)
		}
		c.reading, c.read, c.seen = placed, &rg, nil
		for _, p := range placed {
			c.seen = append(c.seen, bytes.Clone(p.Mem))
		}
	})
}

func (m *restarts) endRead(t *rapid.T) {
	m.some(t, func(h Holder, c *lifelong) {
		if c.read != nil {
			m.EndRead(h, c.request, 0, *c.read)
			m.EndSession(c.request)
			c.reading, c.read = nil, nil
		}
	})
}

func (m *restarts) restartStep(t *rapid.T) {
	m.compare()
	m.compare = m.restart()
	listed := make(map[Holder]bool)
	for _, p := range m.OldPeers() {
		listed[p.Holder] = true
	}
	for h, c := range m.clients {
		if !listed[h] && (len(c.writing) > 0 || len(c.reading) > 0) {
			t.Fatalf("client %d is forgotten", h)
		}
		// Its memory is where it was in its own mapping, and in the next server's.
		for _, slots := range [][]Placed{c.writing, c.reading} {
			for i := range slots {
				slots[i].Mem = m.cfg.Pool.Mem()[slots[i].Offset:][:len(slots[i].Mem)]
			}
		}
		c.lost, c.open, c.read = true, nil, nil
	}
	if rapid.Bool().Draw(t, "compare at once") {
		m.compare()
		m.compare = func() {}
	}
}

// verify lets every client do what it still may, and looks at what the others see.
func (m *restarts) verify(t *rapid.T) {
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for h, c := range m.clients {
		if c.open == nil {
			scribble(c.writing)
		}
		for i, p := range c.reading {
			if !bytes.Equal(p.Mem, c.seen[i]) {
				t.Fatalf("what client %d reads at %d has changed", h, p.Offset)
			}
		}
	}
	if n := m.Stats().Mismatches; n > 0 {
		t.Fatalf("%d mismatches", n)
	}
}
