package config

import (
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// Transport modes, verify modes and log formats as they are written.
const (
	VerifyOff     = "off"
	VerifySampled = "sampled"
	VerifyAlways  = "always"

	PrefetchRetain    = "retain"
	PrefetchTemporary = "default" // LMCache's word

	LogText = "text"
	LogJSON = "json"
)

// Keep says whether the pool is left to the next server at the end.
type Keep int

// KeepUnlessInterrupted is the default: kept at SIGTERM, gone when somebody at a terminal ends
// the server.
const (
	KeepUnlessInterrupted Keep = iota
	KeepAlways
	KeepNever
)

// ShmPrefix starts the name of every pool: clients and clean-up tools look for it.
const ShmPrefix = "lmcache_l1_pool_"

// Serve is the configuration of `holdfast serve`, checked.
type Serve struct {
	Host       string // to bind; "*" is every address
	Port       int    // 0 = any free one
	Socket     string // path of an additional unix socket, "" = none
	ChunkSize  int    // tokens
	InstanceID string // shown in /status and logs

	L1Bytes    int64 // pool size; 0 = choose
	AlignBytes int64
	SHM        bool   // offer the pool to clients
	ShmName    string // full name, "" = a unique one
	L1Keep     Keep
	L1Fresh    bool // adopt nothing
	TakeOver   bool // from the running server of the same identity
	Verify     string
	VerifyRate float64

	// The disk tier; without a path there is none.
	DiskPath       string
	DiskBytes      int64 // most that it may take, 0 = no limit
	DiskSync       string
	DiskQueueDepth int
	Adapters       []adapter.Spec // --l2-adapter's

	PrefetchPolicy   string // PrefetchRetain or PrefetchTemporary
	PrefetchTimeout  time.Duration
	PrefetchInFlight int   // calls of tiers' gets at once
	WriteQueueBytes  int64 // that wait for tiers; 0 = choose

	WriteLimit        time.Duration // of a reservation
	ReadLimit         time.Duration // of a lease
	ReapTimeout       time.Duration // 0 = never
	RegistrationGrace time.Duration
	Drain             time.Duration

	HTTPHost  string
	HTTPPort  int // 0 = any free one
	LogLevel  string
	LogFormat string

	File string // the YAML file, "" = none
}

// Tiers are the second-level stores in the order of asking: the disk of --disk-path, then those of
// --l2-adapter.
func (c *Serve) Tiers() []adapter.Spec {
	var specs []adapter.Spec
	if c.DiskPath != "" {
		specs = append(specs, adapter.Spec{Kind: adapter.Disk, Disk: disk.Options{
			Path: c.DiskPath, LimitBytes: c.DiskBytes, Sync: disk.Sync(c.DiskSync), QueueDepth: c.DiskQueueDepth,
		}})
	}
	return append(specs, c.Adapters...)
}
