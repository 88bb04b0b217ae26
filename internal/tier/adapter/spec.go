package adapter

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/s3"
	"github.com/holdfast-kv/holdfast/internal/tier/valkey"
)

// Kind is a kind of store.
type Kind string

// The kinds.
const (
	Disk   Kind = "disk"
	Valkey Kind = "valkey"
	S3     Kind = "s3"
)

// Spec says which store to open and how. It may have secrets: it prints without them.
type Spec struct {
	Kind Kind
	Name string // of the tier, for people and metrics; "" = its kind

	// Of these, the one of the kind.
	Disk   disk.Options
	Valkey valkey.Options
	S3     s3.Options

	// PasswordEnv and SentinelPasswordEnv name the variables from which a Valkey server's
	// passwords are read when it is opened, "" = none.
	PasswordEnv, SentinelPasswordEnv string

	Retries     int           // attempts after the first of what may pass
	RateLimit   float64       // bytes per second, 0 = none
	Concurrency int           // calls at once, 0 = no limit of its own
	Timeout     time.Duration // of one attempt of a call, 0 = none

	scratch
}

// scratch is what the fields of a specification say on the way to what they mean; Parse leaves
// it empty.
type scratch struct {
	host       string
	port       int
	tls        bool
	tlsOptions remote.TLS
	endpoint   string
	bucketHost string
	secure     *bool
}

// String tells what people need to know of the store, without secrets.
func (s Spec) String() string {
	switch s.Kind {
	case Disk:
		return fmt.Sprintf("disk at %s", s.Disk.Path)
	case Valkey:
		return fmt.Sprintf("valkey at %v", s.Valkey.Addresses)
	case S3:
		return fmt.Sprintf("s3 at %s/%s", s.S3.Endpoint, s.S3.Bucket)
	}
	return "no store"
}

// GoString is String: %#v shows no secret either.
func (s Spec) GoString() string { return s.String() }

// LogValue is String.
func (s Spec) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON is String.
func (s Spec) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Names gives each tier a name of its own: its own, or its kind, with a number from the second
// on.
func Names(specs []Spec) []string {
	names := make([]string, len(specs))
	taken := make(map[string]bool)
	for _, s := range specs {
		taken[s.Name] = true
	}
	for i, s := range specs {
		names[i] = s.Name
		if s.Name != "" {
			continue
		}
		name := string(s.Kind)
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", s.Kind, n)
		}
		names[i], taken[name] = name, true
	}
	return names
}
