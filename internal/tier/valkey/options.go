package valkey

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// Options say where the servers are and how they are used.
type Options struct {
	// Addresses, host:port: of one server; of some nodes of a cluster; of the sentinels. One
	// server is asked whether it is a cluster's; several are taken for nodes of one.
	Addresses []string
	Cluster   bool // it must be a cluster
	// Sentinel is the name of the master that the sentinels watch; "" without sentinels.
	Sentinel                           string
	SentinelUsername, SentinelPassword string
	Username, Password                 string
	TLS                                *remote.TLS // nil: no TLS
	DB                                 int         // not in a cluster
	// Prefix begins every key; "" is DefaultPrefix. Braces are refused: they would put all
	// objects of a cluster on one node.
	Prefix string
	// TTL after which the server drops an object, 0 for none; whole milliseconds. With
	// Refresh it begins anew with every read (GETEX: Redis 6.2, Valkey).
	TTL     time.Duration
	Refresh bool
	// Timeout bounds one exchange with a server, of some objects of 8 MiB together; an object
	// that is longer gets more in proportion. 0 is DefaultTimeout.
	Timeout time.Duration
	// Connections is how many transfers may run at once, and with it the connections to
	// each server; 0 is DefaultConnections.
	Connections int
	Log         *slog.Logger // nil: none
}

// Defaults of Options.
const (
	DefaultPrefix      = "holdfast:"
	DefaultTimeout     = 5 * time.Second
	DefaultConnections = 4
)

// ErrOptions is wrapped by errors about settings that cannot work.
var ErrOptions = errors.New("cannot use valkey")

func (o Options) complete() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Connections == 0 {
		o.Connections = DefaultConnections
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, address := range o.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return o, fmt.Errorf("%w: address %q is not host:port", ErrOptions, address)
		}
	}
	switch {
	case len(o.Addresses) == 0:
		return o, fmt.Errorf("%w: no address is given", ErrOptions)
	case o.Cluster && o.Sentinel != "":
		return o, fmt.Errorf("%w: sentinels watch single masters, not a cluster", ErrOptions)
	case o.DB < 0, o.DB > 0 && (o.Cluster || len(o.Addresses) > 1 && o.Sentinel == ""):
		return o, fmt.Errorf("%w: database %d; a cluster has database 0 only", ErrOptions, o.DB)
	case len(o.Prefix) > 256 || strings.ContainsAny(o.Prefix, "{}"):
		return o, fmt.Errorf("%w: prefix %.300q is longer than 256 bytes or has braces", ErrOptions, o.Prefix)
	case o.TTL < 0, o.TTL%time.Millisecond != 0:
		return o, fmt.Errorf("%w: a TTL of %s is not a whole number of milliseconds", ErrOptions, o.TTL)
	case o.Timeout < time.Millisecond:
		return o, fmt.Errorf("%w: a timeout of %s is less than a millisecond", ErrOptions, o.Timeout)
	case o.Connections < 1 || o.Connections > 1024:
		return o, fmt.Errorf("%w: %d connections; 1 to 1024 are possible", ErrOptions, o.Connections)
	}
	return o, nil
}
