package server

import (
	"errors"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/process"
)

// inherit makes the clients of an earlier server known, whose memory the cache keeps until each
// is proved to touch it no more: by the end of its process, which is watched from now on, or on
// its own word, by the rules that hold for every instance that was lost.
func (s *Server) inherit() {
	gone := 0
	old := s.cfg.Cache.OldPeers()
	for _, peer := range old {
		p, ended := s.find(peer)
		s.with(func(r *registry) {
			if ended = ended || p != nil && p.ended; !ended {
				r.inherit(peer, p, s.cfg.Now())
			}
			if p != nil {
				p.conns--
				s.unwatch(p)
			}
		})
		if ended {
			s.cfg.Cache.Gone(peer.Holder)
			gone++
		}
	}
	if len(old) > 0 {
		s.cfg.Log.Info("clients of an earlier server", "known", len(old), "gone", gone)
	}
}

// find returns the process of a client of an earlier server, nil if nobody sees it, or that it
// has ended. The caller counts as one of its connections.
func (s *Server) find(peer cache.OldPeer) (p *proc, ended bool) {
	if peer.PID <= 0 {
		return nil, false
	}
	handle, err := process.Open(peer.PID)
	if err != nil {
		return nil, errors.Is(err, process.ErrGone)
	}
	start, err := process.Start(peer.PID)
	select {
	case <-handle.Exited():
		err = process.ErrGone
	default:
	}
	if err != nil || start != peer.Start {
		handle.Close()
		return nil, err == nil || errors.Is(err, process.ErrGone)
	}
	return s.watchProcess(handle, start), false
}

// OldPeerRow is a client of an earlier server that may still touch memory.
type OldPeerRow struct {
	Holder   string  `json:"holder"`
	PID      int     `json:"pid,omitempty"`      // whose end is waited for
	Instance *uint64 `json:"instance,omitempty"` // whose word would do
}

func (s *Server) oldPeers() []OldPeerRow {
	rows := []OldPeerRow{}
	for _, p := range s.cfg.Cache.OldPeers() {
		row := OldPeerRow{Holder: p.Desc, PID: p.PID}
		if p.HasInstance {
			row.Instance = &p.Instance
		}
		rows = append(rows, row)
	}
	return rows
}
