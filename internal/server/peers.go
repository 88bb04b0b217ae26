package server

import (
	"fmt"

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

// pidOf finds the process at the other end, 0 if it cannot be seen.
func pidOf(p zmtp.Peer) int {
	if p.Network == "tcp" {
		return process.OfTCP(p.Local, p.Remote)
	}
	return p.PID
}

// identify finds out who is at the other end. A search of /proc does not hold up what
// needs no answer: c.known closes when there is one.
func (s *Server) identify(c *conn) {
	c.peer = c.z.Peer()
	c.log = c.log.With("peer", c.peer.String())
	find := func() {
		defer close(c.known)
		c.proc = s.watch(s.pidOf(c.peer))
	}
	if c.peer.Network != "tcp" {
		find()
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.scan.Lock()
		defer s.scan.Unlock()
		find()
	}()
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
	w = &watch{proc: &proc{pid: pid, conns: 1}, handle: handle, stop: make(chan struct{})}
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
			c.owner = s.cfg.Cache.NewHolder(fmt.Sprintf("scheduler connection %d", c.id))
		}
		return c.owner, nil
	case p.ended:
		return 0, fmt.Errorf("%w: process %d has ended", errRefused, p.pid)
	case p.owner == 0:
		p.owner = s.cfg.Cache.NewHolder(fmt.Sprintf("scheduler process %d", p.pid))
	}
	return p.owner, nil
}
