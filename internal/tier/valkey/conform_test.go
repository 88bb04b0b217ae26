package valkey

import (
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// TestConformance: one server, behind a proxy.
func TestConformance(t *testing.T) {
	conform.Run(t, conform.Subject{Ambiguous: true, Big: 16 << 20, Open: func(t testing.TB) conform.Opened {
		server := testserver.Redis(t)
		proxy := testserver.NewProxy(t, server.Addr)
		o := Options{Addresses: []string{proxy.Addr}}
		return conform.Opened{
			Store:   open(t, o),
			Reopen:  func(t testing.TB) tier.Store { return open(t, o) },
			Corrupt: corrupt(server),
			Hold:    proxy.Hold,
			Cut:     proxy.CutAfter,
			Full: func() (restore func()) {
				server.Do("CONFIG", "SET", "maxmemory", "1")
				return func() { server.Do("CONFIG", "SET", "maxmemory", "0") }
			},
		}
	}})
}

// corrupt changes a value behind the store's back.
func corrupt(server *testserver.RedisServer) func(testing.TB, tier.Key, func([]byte) []byte) {
	return func(t testing.TB, key tier.Key, edit func(raw []byte) []byte) {
		name := DefaultPrefix + key.String()
		raw := server.Do("GET", name)
		if raw == "" {
			t.Fatalf("%s is not there", name)
		}
		if edited := edit([]byte(raw)); edited == nil {
			server.Do("DEL", name)
		} else {
			server.Do("SET", name, string(edited))
		}
	}
}

// TestConformanceCluster: three nodes, spoken to directly.
func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisCluster(t, 3)
	conform.Run(t, conform.Subject{
		Ambiguous: true, Light: true, Big: 8 << 20,
		Without: []conform.Hook{conform.Reopen, conform.Corrupt, conform.Hold, conform.Cut, conform.Full},
		Open: func(t testing.TB) conform.Opened {
			for _, node := range nodes {
				node.Do("FLUSHALL")
			}
			return conform.Opened{Store: open(t, Options{Addresses: addresses(nodes[1]), TTL: time.Hour, Refresh: true})}
		},
	})
}

// TestConformanceTLS: one server, TLS, a password.
func TestConformanceTLS(t *testing.T) {
	t.Parallel()
	cert := testserver.NewCertificate(t)
	server := testserver.RedisTLS(t, cert, "secret")
	proxy := testserver.NewProxy(t, server.Addr)
	client := Options{Addresses: []string{proxy.Addr}, Password: "secret", TLS: &remote.TLS{CAFile: cert.CertFile}}
	conform.Run(t, conform.Subject{
		Ambiguous: true, Light: true, Big: 8 << 20,
		Without: []conform.Hook{conform.Reopen, conform.Corrupt, conform.Full},
		Open: func(t testing.TB) conform.Opened {
			server.Do("FLUSHALL")
			return conform.Opened{Store: open(t, client), Hold: proxy.Hold, Cut: proxy.CutAfter}
		},
	})
}
