package server

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// Reap runs the reaper as if now had come.
func (s *Server) Reap(now time.Time) { s.reap(now) }

// BlindTo makes every peer's process unknown, as it is across pid namespaces. It must be
// called before Serve.
func (s *Server) BlindTo() { s.pidsOf = func(p []zmtp.Peer) []int { return make([]int, len(p)) } }

// SlowTo makes every search for processes wait for a value of turn, and counts it.
func (s *Server) SlowTo(turn <-chan struct{}, searches *atomic.Int64) {
	find := s.pidsOf
	s.pidsOf = func(p []zmtp.Peer) []int {
		<-turn
		searches.Add(1)
		return find(p)
	}
}

// LimitLarge bounds the memory that large requests take in all. It must be called before
// Serve.
func (s *Server) LimitLarge(bytes int64) { s.budget.most = bytes }

// Large is the memory that they take.
func (s *Server) Large() int64 { return s.budget.used.Load() }
