package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Status is a picture of the server for /status and /metrics.
type Status struct {
	BootID    string         `json:"boot_id"`
	Started   time.Time      `json:"started"`
	ChunkSize int            `json:"chunk_size"`
	Draining  bool           `json:"draining"`
	Sessions  int            `json:"sessions"`
	Peers     []PeerRow      `json:"peers"`
	Instances []InstanceRow  `json:"instances"`
	OldPeers  []OldPeerRow   `json:"old_peers"` // of an earlier server
	Requests  []RequestRow   `json:"requests"`  // per operation
	Malformed uint64         `json:"malformed"` // messages that could not be answered or decoded
	Panics    uint64         `json:"panics"`    // requests that ended in a panic; each is a defect
	Ledger    []transfer.Row `json:"ledger"`    // requests and the cache's kinds
}

// PeerRow is one connection.
type PeerRow struct {
	Address   string    `json:"address"` // HOST:PORT, or "unix"
	PID       int       `json:"pid,omitempty"`
	Connected time.Time `json:"connected"`
	Requests  uint64    `json:"requests"`
}

// InstanceRow is one registered worker.
type InstanceRow struct {
	Instance  uint64    `json:"instance"`
	Model     string    `json:"model"`
	World     int       `json:"world_size"`
	Layout    []string  `json:"layout"`
	Transport string    `json:"transport"` // "shm" or "pickle"
	PID       int       `json:"pid,omitempty"`
	LastSeen  time.Time `json:"last_seen"`
	Connected bool      `json:"connected"`
}

// RequestRow counts one operation.
type RequestRow struct {
	Op      string  `json:"op"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"` // handling time, total
}

// Status returns it.
func (s *Server) Status() Status {
	st := Status{
		BootID: s.boot, Started: s.started, ChunkSize: s.cfg.ChunkSize,
		Draining:  s.draining.Load(),
		Peers:     []PeerRow{},
		Instances: []InstanceRow{},
		OldPeers:  s.oldPeers(),
		Requests:  s.stats.list(),
		Malformed: s.malformed.Load(),
		Panics:    s.panics.Load(),
		Ledger:    append([]transfer.Row{s.requests()}, s.cfg.Cache.Stats().Ledger...),
	}
	s.sessionMu.Lock()
	st.Sessions = len(s.sessions.byRequest)
	s.sessionMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		st.Peers = append(st.Peers, c.row())
	}
	for _, in := range s.registry.byID {
		if in.registered {
			st.Instances = append(st.Instances, s.instanceRow(in))
		}
	}
	slices.SortFunc(st.Peers, func(a, b PeerRow) int { return a.Connected.Compare(b.Connected) })
	slices.SortFunc(st.Instances, func(a, b InstanceRow) int { return cmp.Compare(a.Instance, b.Instance) })
	return st
}

// requests sums the books of all connections.
func (s *Server) requests() transfer.Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.past
	for c := range s.conns {
		sum = add(sum, c.books.read())
	}
	return sum
}

func (c *conn) row() PeerRow {
	r := PeerRow{Connected: c.since, Requests: c.books.read().Dispatched}
	select {
	case <-c.known: // and with it peer
		if r.Address = c.peer.Network; r.Address == "tcp" {
			r.Address = c.peer.Remote.String()
		}
		r.PID = c.peer.PID
		if c.proc != nil {
			r.PID = c.proc.pid
		}
	default:
	}
	return r
}

func (s *Server) instanceRow(in *instance) InstanceRow {
	r := InstanceRow{
		Instance: in.id, Model: in.shape.model, World: in.shape.world,
		Transport: "pickle", LastSeen: in.seen, Connected: in.conn != 0,
	}
	for _, l := range in.shape.layouts {
		r.Layout = append(r.Layout, l.String())
	}
	if s.shared() && !in.pickles {
		r.Transport = "shm"
	}
	if in.proc != nil {
		r.PID = in.proc.pid
	}
	return r
}
