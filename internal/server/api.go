// Package server answers the protocol: it decodes requests, keeps sessions, worker
// instances and peers, and calls the cache. Everything from which a uid and an operation
// can be read is answered; nothing a client sends stops the loop, another's connection,
// or the process.
package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Config of a server. Cache and Pool are the caller's to close, after Shutdown.
type Config struct {
	Cache             *cache.Cache
	Pool              *arena.Pool   // shared with clients if it has a name
	ChunkSize         int           // tokens
	ReapTimeout       time.Duration // silence after which a worker that has pinged is lost; 0 = never
	RegistrationGrace time.Duration // the same for one that never pinged
	Version           string
	Log               *slog.Logger
	Now               func() time.Time
}

// Server serves any number of listeners.
type Server struct{}

// New returns a server that serves nothing yet.
func New(cfg Config) *Server { panic("stub") }

// Serve accepts from l until Shutdown, then returns nil. It takes ownership of l.
func (s *Server) Serve(l *zmtp.Listener) error { panic("stub") }

// Shutdown stops accepting, answers new stores and lookups with nothing, waits until open
// commits and reads have finished or ctx ends, then closes every connection.
func (s *Server) Shutdown(ctx context.Context) error { panic("stub") }

// BootID changes with every New.
func (s *Server) BootID() string { panic("stub") }

// Status is a picture of the server for /status and /metrics.
type Status struct {
	BootID    string         `json:"boot_id"`
	Started   time.Time      `json:"started"`
	ChunkSize int            `json:"chunk_size"`
	Draining  bool           `json:"draining"`
	Sessions  int            `json:"sessions"`
	Peers     []PeerRow      `json:"peers"`
	Instances []InstanceRow  `json:"instances"`
	Requests  []RequestRow   `json:"requests"`  // per operation
	Malformed uint64         `json:"malformed"` // messages that could not be answered or decoded
	Ledger    []transfer.Row `json:"ledger"`    // requests and the cache's kinds
}

// PeerRow is one connection.
type PeerRow struct {
	Address   string    `json:"address"`
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
func (s *Server) Status() Status { panic("stub") }
