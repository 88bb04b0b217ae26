package config

import "time"

// Transport modes, verify modes and log formats as they are written.
const (
	VerifyOff     = "off"
	VerifySampled = "sampled"
	VerifyAlways  = "always"

	LogText = "text"
	LogJSON = "json"
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
	Verify     string
	VerifyRate float64

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
