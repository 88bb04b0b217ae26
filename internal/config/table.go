package config

import (
	"slices"
	"time"
)

const day = 24 * 60 * 60

// Table returns every setting of `holdfast serve`, by group, in the order of the
// documentation.
func Table() []Setting {
	return slices.Concat(
		grouped(GroupProtocol, protocolSettings()),
		grouped(GroupMemory, memorySettings()),
		grouped(GroupTiers, tierSettings()),
		grouped(GroupLimits, limitSettings()),
		grouped(GroupAdmin, adminSettings()),
		grouped(GroupIgnored, ignoredSettings()),
		grouped(GroupRefused, refusedSettings()),
	)
}

func grouped(group string, settings []Setting) []Setting {
	for i := range settings {
		s := &settings[i]
		s.Group = group
		if s.hidden() {
			s.LMCache = true
		}
	}
	return settings
}

func protocolSettings() []Setting {
	return []Setting{
		{Name: "host", Default: "localhost", LMCache: true,
			Doc:   "Address on which engines connect. 0.0.0.0 or * is every address; the protocol has no authentication, so bind wide only inside a trusted network.",
			value: text{field: func(c *Serve) *string { return &c.Host }}},
		{Name: "port", Default: "5555", LMCache: true,
			Doc:   "TCP port on which engines connect; 0 takes any free one.",
			value: integer{func(c *Serve) *int { return &c.Port }, 0, 65535}},
		{Name: "socket",
			Doc: "Path of a unix socket on which engines of this host can connect too (ipc://PATH). The file is created with mode 0600.",
			value: text{func(c *Serve) *string { return &c.Socket }, "at most 107 bytes (a limit of the kernel)",
				func(s string) bool { return len(s) <= 107 }}},
		{Name: "chunk-size", Default: "256", Unit: "tokens", LMCache: true,
			Doc:   "Size of a chunk, the unit of caching, in tokens; a multiple of the engine's block size.",
			value: integer{func(c *Serve) *int { return &c.ChunkSize }, 1, 65536}},
		{Name: "hash-algorithm", Default: "blake3", LMCache: true,
			Doc: "How chunks are named.",
			value: choice{allowed: []string{"blake3"}, refused: map[string]string{
				"builtin":     "depends on CPython's hash, which only CPython has",
				"sha256_cbor": "is a function of vLLM that runs inside Python",
			}}},
		{Name: "supported-transfer-mode", Default: "auto", LMCache: true,
			Doc: "Which side copies. Holdfast serves engine-driven transfers, in which the engine copies; auto means the same.",
			value: choice{allowed: []string{"auto", "engine_driven"}, refused: map[string]string{
				"lmcache_driven": "needs device IPC (the server maps the engine's GPU memory), which this server does not have; set lmcache.mp.mp_transfer_mode=engine_driven in the engine",
			}}},
		{Name: "engine-type", Default: "default", LMCache: true,
			Doc: "Kind of cache.",
			value: choice{allowed: []string{"default"}, refused: map[string]string{
				"blend":        "blending is not served yet",
				"blend_legacy": "blending is not served yet",
			}}},
		{Name: "transport", Default: "zmq", LMCache: true,
			Doc: "Message transport.",
			value: choice{allowed: []string{"zmq"}, refused: map[string]string{
				"grpc": "gRPC is not served; clients with a tcp:// address use ZMQ",
			}}},
		{Name: "instance-id", LMCache: true,
			Doc:   "A name for this server, shown in /status. By it, if there is no --shm-name, the next server finds the pool of this one.",
			value: text{field: func(c *Serve) *string { return &c.InstanceID }}},
	}
}

func memorySettings() []Setting {
	return []Setting{
		{Name: "l1-size-gb", Unit: "GiB", LMCache: true,
			Doc:   "Size of the pool. Default: a quarter of what the cgroup, the node and /dev/shm allow. A size that does not fit is refused with the numbers.",
			value: gibibytes{func(c *Serve) *int64 { return &c.L1Bytes }}},
		{Name: "l1-align-bytes", Default: "4096", Unit: "bytes", LMCache: true,
			Doc:   "Alignment of objects in the pool.",
			value: powerOfTwo{func(c *Serve) *int64 { return &c.AlignBytes }, 64, 2 << 20}},
		{Name: "shm-name", LMCache: true, EmptyCounts: true,
			Doc:   "Name of the shared-memory object, behind " + ShmPrefix + ". Default: the process id and a random part, so that no name is ever used twice. An empty value (--shm-name \"\") turns shared memory off: every byte then travels through the socket.",
			value: shmName{}},
		{Name: "l1-keep", Negatable: true,
			Doc: "Whether the pool stays in shared memory at the end, for the next server with the same --shm-name, or --instance-id, or address, which then serves what is in it. Default: true at SIGTERM, false at an interrupt or a hang-up of the terminal. A pool that no other server would find again (--port 0 and neither name) never stays.",
			value: toggle{func(c *Serve, on bool) {
				if c.L1Keep = KeepNever; on {
					c.L1Keep = KeepAlways
				}
			}}},
		{Name: "l1-fresh", Default: "false", Negatable: true,
			Doc:   "Start empty: a pool that an earlier server left is removed.",
			value: toggle{func(c *Serve, on bool) { c.L1Fresh = on }}},
		{Name: "take-over", Default: "false", Negatable: true, NotInFile: true,
			Doc:   "Take the place of the running server of the same identity: it is asked over its admin HTTP to drain and end, its address and its pool are taken over. For upgrades; clients notice a pause.",
			value: toggle{func(c *Serve, on bool) { c.TakeOver = on }}},
		{Name: "l1-use-lazy", Default: "true", LMCache: true, Negatable: true,
			Doc:   "Accepted for compatibility. LMCache offers shared memory only with --no-l1-use-lazy; Holdfast always does, serves at once, and fills the pool's pages in the background either way.",
			value: ignoredBool()},
		{Name: "eviction-policy", Default: "LRU", LMCache: true,
			Doc: "What leaves when memory is needed.",
			value: choice{allowed: []string{"LRU"}, refused: map[string]string{
				"IsolatedLRU": "quotas per tenant are not served yet (tenants never share hits under LRU either)",
				"ARC":         "is not served yet",
				"noop":        "keeps nothing in memory but what is on its way to a second level, and the pool is a cache here",
			}}},
		{Name: "verify", Default: VerifySampled,
			Doc:   "Which retrieved objects are compared with the checksum taken when they were stored. A mismatch is a miss; it is counted and logged, and the object is dropped: its memory is in quarantine as long as its writer may still write to it, and is used again when that writer is gone. Where mismatches are of bad memory, the node has to be checked. sampled compares a share of the loads, always every one; with both, every object has its checksum before it is served: from a client that took it while copying, or taken by the server before the store is answered. off compares nothing and takes no checksums; what comes from a tier or an earlier server is compared all the same.",
			value: choice{field: func(c *Serve) *string { return &c.Verify }, allowed: []string{VerifyOff, VerifySampled, VerifyAlways}}},
		{Name: "verify-rate", Default: "0.01", Tuning: true,
			Doc:   "With --verify sampled: share of the loads that is compared, object by object, drawn by chance.",
			value: share{func(c *Serve) *float64 { return &c.VerifyRate }}},
	}
}

func limitSettings() []Setting {
	return []Setting{
		{Name: "l1-write-ttl-seconds", Default: "600", Unit: "seconds", LMCache: true,
			Doc:   "Age at which a store that was begun and not finished is aborted. Its memory is quarantined, not reused, until its writer is proved to have stopped.",
			value: seconds{func(c *Serve) *time.Duration { return &c.WriteLimit }, 1, 7 * day, false}},
		{Name: "l1-read-ttl-seconds", Default: "300", Unit: "seconds", LMCache: true,
			Doc:   "Age at which a lease is reported as overdue. Time alone never ends it.",
			value: seconds{func(c *Serve) *time.Duration { return &c.ReadLimit }, 1, 7 * day, false}},
		{Name: "worker-reap-timeout-seconds", Default: "120", Unit: "seconds", LMCache: true,
			Doc:   "Silence after which a worker that has pinged counts as lost: it has to register again, and what it was writing is quarantined until it is proved gone.",
			value: seconds{func(c *Serve) *time.Duration { return &c.ReapTimeout }, 30, day, true}},
		{Name: "worker-registration-grace-seconds", Default: "3600", Unit: "seconds", LMCache: true,
			Doc:   "Silence after which a worker that registered and never pinged counts as lost, with the same effect.",
			value: seconds{func(c *Serve) *time.Duration { return &c.RegistrationGrace }, 30, 7 * day, false}},
		{Name: "drain-seconds", Default: "10", Unit: "seconds",
			Doc:   "How long a shutdown waits for open stores and reads, and then for tiers to take what was stored.",
			value: seconds{func(c *Serve) *time.Duration { return &c.Drain }, 0, 3600, false}},
	}
}

func adminSettings() []Setting {
	return []Setting{
		{Name: "http-host", Default: "127.0.0.1", LMCache: true,
			Doc:   "Address of the admin HTTP server. It has no authentication and can clear the cache.",
			value: text{field: func(c *Serve) *string { return &c.HTTPHost }}},
		{Name: "http-port", Default: "8080", LMCache: true,
			Doc:   "Port of the admin HTTP server; 0 takes any free one.",
			value: integer{func(c *Serve) *int { return &c.HTTPPort }, 0, 65535}},
		{Name: "log-level", Default: "info", Tuning: true,
			Doc:   "Least important lines that are logged.",
			value: choice{field: func(c *Serve) *string { return &c.LogLevel }, allowed: []string{"debug", "info", "warn", "error"}}},
		{Name: "log-format", Default: LogText, Tuning: true,
			Doc:   "Form of a log line.",
			value: choice{field: func(c *Serve) *string { return &c.LogFormat }, allowed: []string{LogText, LogJSON}}},
		{Name: "config", NotInFile: true,
			Doc:   "YAML file with settings by these names, one level deep (port: 5555).",
			value: text{field: func(c *Serve) *string { return &c.File }}},
	}
}

// ignoredSettings have no meaning here; each Doc says why nothing is lost.
func ignoredSettings() []Setting {
	return []Setting{
		{Name: "max-workers", Doc: "Requests are served per connection, without worker pools to size.", value: ignored{}},
		{Name: "max-gpu-workers", Doc: "Requests are served per connection, without worker pools to size.", value: ignored{}},
		{Name: "max-cpu-workers", Doc: "Requests are served per connection, without worker pools to size.", value: ignored{}},
		{Name: "separate-object-groups", Negatable: true, Doc: "Object groups are always separate.", value: ignoredBool()},
		{Name: "isolated-ipc", Doc: "No device IPC is used.", value: ignoredBool()},
		{Name: "l1-init-size-gb", Doc: "The pool has its full size from the start.", value: ignored{}},
		{Name: "l1-use-hugepages", Doc: "The pool uses ordinary pages.", value: ignoredBool()},
		{Name: "l1-manager", Doc: "There is one kind of pool.", value: ignored{}},
		{Name: "eviction-trigger-watermark", Doc: "Memory is freed when a store needs it, not ahead of time.", value: ignored{}},
		{Name: "eviction-ratio", Doc: "Memory is freed when a store needs it, not ahead of time.", value: ignored{}},
		{Name: "coordinator-url", Doc: "There is no coordinator.", value: ignored{}},
		{Name: "disable-observability", Doc: "Counters cost nothing worth switching off.", value: ignoredBool()},
		{Name: "disable-metrics", Doc: "Counters cost nothing worth switching off.", value: ignoredBool()},
		{Name: "disable-logging", Doc: "Use --log-level error.", value: ignoredBool()},
		{Name: "enable-tracing", Doc: "There are no traces.", value: ignoredBool()},
		{Name: "otlp-endpoint", Doc: "There are no traces.", value: ignored{}},
		{Name: "prometheus-port", Doc: "/metrics is on --http-port.", value: ignored{}},
		{Name: "event-bus-queue-size", Doc: "There is no event bus.", value: ignored{}},
	}
}

// refusedSettings ask for something whose absence the user has to know of.
func refusedSettings() []Setting {
	return []Setting{
		{Name: "l1-devdax-path", Doc: "A pool on a DAX device is not served.",
			value: refused{"a pool on a DAX device is not served; without this setting the pool is in shared memory"}},
	}
}

// ignoredBool is an ignored switch.
func ignoredBool() value { return ignored{isSwitch: true} }

// Defaults returns the configuration without any source.
func Defaults() Serve {
	c := Serve{SHM: true}
	for _, s := range Table() {
		if s.Default == "" {
			continue
		}
		if err := s.value.set(&c, s.Default); err != nil {
			panic("config: the default of --" + s.Name + " " + err.Error())
		}
	}
	return c
}
