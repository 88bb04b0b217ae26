package server

import (
	"time"

	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// Reap runs the reaper as if now had come.
func (s *Server) Reap(now time.Time) { s.reap(now) }

// BlindTo makes every peer's process unknown, as it is across pid namespaces. It must be
// called before Serve.
func (s *Server) BlindTo() { s.pidOf = func(zmtp.Peer) int { return 0 } }
