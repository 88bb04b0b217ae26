package server

import (
	"fmt"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/process"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// watch waits for the end of one client process.
type watch struct {
	proc   *proc
	handle *process.Process
	stop   chan struct{}
}

// pidsOf finds the processes at the other ends, 0 for one that cannot be seen.
func pidsOf(peers []zmtp.Peer) []int {
	pids := make([]int, len(peers))
	var at []int
	var tcp []process.Ends
	for i, p := range peers {
		if pids[i] = p.PID; p.Network == "tcp" {
			at, tcp = append(at, i), append(tcp, process.Ends{Local: p.Local, Remote: p.Remote})
		}
	}
	for i, pid := range process.OfTCP(tcp...) {
		pids[at[i]] = pid
	}
	return pids
}

// search finds out who is at the other end of connections over tcp. A search of /proc takes
// milliseconds on a busy host, so one serves everybody who has come since the last began:
// a thousand connections at once do not keep a worker's registration waiting for a thousand
// searches.
type search struct {
	mu      sync.Mutex
	waiting []*conn
	running bool
}

// identify finds out who is at the other end. A search does not hold up what needs no
// answer: c.known closes when there is one.
func (s *Server) identify(c *conn) {
	c.peer = c.z.Peer()
	c.log = c.log.With("peer", c.peer.String())
	if c.peer.Network != "tcp" {
		s.identified([]*conn{c})
		return
	}
	s.search.mu.Lock()
	defer s.search.mu.Unlock()
	s.search.waiting = append(s.search.waiting, c)
	if !s.search.running {
		s.search.running = true
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			for batch := s.search.next(); len(batch) > 0; batch = s.search.next() {
				s.identified(batch)
			}
		}()
	}
}

// next takes everybody who waits; nobody is the end of the search.
func (f *search) next() []*conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	batch := f.waiting
	f.waiting, f.running = nil, len(batch) > 0
	return batch
}

// identified tells connections what a search has found.
func (s *Server) identified(conns []*conn) {
	peers := make([]zmtp.Peer, len(conns))
	for i, c := range conns {
		peers[i] = c.peer
	}
	for i, pid := range s.pidsOf(peers) {
		conns[i].proc = s.watch(pid)
		close(conns[i].known)
	}
}

// watch returns the process with this pid for one more connection, nil if its end cannot
// be seen.
func (s *Server) watch(pid int) *proc {
	if pid <= 0 {
		return nil
	}
	handle, err := process.Open(pid)
	if err != nil {
		return nil
	}
	start, _ := process.Start(pid)
	return s.watchProcess(handle, start)
}

// watchProcess takes the handle over.
func (s *Server) watchProcess(handle *process.Process, start uint64) *proc {
	pid := handle.PID()
	s.mu.Lock()
	w := s.watches[pid]
	if w != nil && w.ended() {
		// The pid is used again; the watcher has not come to it yet.
		s.mu.Unlock()
		s.exited(w)
		s.mu.Lock()
		w = s.watches[pid]
	}
	defer s.mu.Unlock()
	if w != nil {
		handle.Close()
		w.proc.conns++
		return w.proc
	}
	w = &watch{proc: &proc{pid: pid, start: start, conns: 1}, handle: handle, stop: make(chan struct{})}
	s.watches[pid] = w
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer handle.Close()
		select {
		case <-handle.Exited():
			s.exited(w)
		case <-w.stop:
		case <-s.ctx.Done():
		}
	}()
	return w.proc
}

func (w *watch) ended() bool {
	select {
	case <-w.handle.Exited():
		return true
	default:
		return false
	}
}

// mayTouch is asked before a worker gets slots: will the end of the connection's process be
// proof that nobody touches them? Only if that process has the pool mapped; else it is a
// proxy, and the worker counts as one whose process nobody knows. Clients map the pool when
// they register, so one look settles it. A process that cannot be looked at because it has
// ended gets nothing: its answer would reach nobody.
func (c *conn) mayTouch(w worker) error {
	p := c.process()
	if p == nil || p.maps.Load() && !w.relayed {
		return nil
	}
	var err error
	if !p.maps.Load() {
		var maps bool
		if maps, err = process.Maps(p.pid, c.s.pool); maps {
			p.maps.Store(true)
		}
	}
	var news, ended bool
	c.s.with(func(r *registry) {
		news = r.relay(w.id, !p.maps.Load())
		watched := c.s.watches[p.pid]
		ended = p.ended || watched != nil && watched.proc == p && watched.ended()
	})
	switch {
	case ended && !p.maps.Load():
		return fmt.Errorf("%w: process %d has ended", errRefused, p.pid)
	case news && !p.maps.Load() && !w.pickles: // who copies has no reason to map it
		attrs := []any{"pid", p.pid, "instance", w.id}
		if err != nil {
			attrs = append(attrs, "error", err)
		}
		c.log.Warn("the process at the other end has not mapped the pool: a proxy? Its end will free nothing", attrs...)
	}
	return nil
}

// exited carries out what the end of a process proves.
func (s *Server) exited(w *watch) {
	s.mu.Lock()
	var verdicts []verdict
	if !w.proc.ended {
		verdicts = s.registry.exited(w.proc)
		delete(s.watches, w.proc.pid)
	}
	s.mu.Unlock()
	if len(verdicts) > 0 {
		s.cfg.Log.Info("client process ended", "pid", w.proc.pid, "holders", len(verdicts))
	}
	s.carryOut(verdicts)
}

// disconnected is called when a connection has ended and its last request was answered.
func (s *Server) disconnected(c *conn) {
	if c.copied.Load() {
		s.cfg.Cache.Gone(c.copies())
	}
	s.mu.Lock()
	verdicts := s.registry.disconnected(c.id)
	if c.owner != 0 {
		verdicts = append(verdicts, verdict{c.owner, false})
	}
	if p := c.proc; p != nil {
		p.conns--
		s.unwatch(p)
	}
	s.mu.Unlock()
	s.carryOut(verdicts)
	s.forget(c)
}

// unwatch stops watching a process that has nothing of ours any more. Server.mu is held.
func (s *Server) unwatch(p *proc) {
	if w := s.watches[p.pid]; w != nil && w.proc == p && !s.registry.needs(p) {
		delete(s.watches, p.pid)
		close(w.stop)
	}
}

// ownerOf returns the holder of the connection's lookups: its process's, or its own.
func (s *Server) ownerOf(c *conn) (cache.Holder, error) {
	p := c.process()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p == nil:
		if c.owner == 0 {
			c.owner = s.cfg.Cache.NewLocal(fmt.Sprintf("scheduler connection %d", c.id))
		}
		return c.owner, nil
	case p.ended:
		return 0, fmt.Errorf("%w: process %d has ended", errRefused, p.pid)
	case p.owner == 0:
		p.owner = s.cfg.Cache.NewLocal(fmt.Sprintf("scheduler process %d", p.pid))
	}
	return p.owner, nil
}
