package s3

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// TestConformance: a gateway over a folder, behind a proxy; objects above 5 MiB go in parts.
func TestConformance(t *testing.T) {
	server := testserver.S3(t, nil)
	proxy := testserver.NewProxy(t, server.Addr)
	base := options(server, "http://"+proxy.Addr)
	base.Timeout, base.PartBytes = time.Minute, minPartBytes
	conform.Run(t, conform.Subject{
		Ambiguous: true, Light: true, Big: 12 << 20,
		Without: []conform.Hook{conform.Full},
		Open: func(t testing.TB) conform.Opened {
			o := base
			o.Prefix = t.Name() + "/" // an empty store in the same bucket
			return conform.Opened{
				Store:   open(t, o),
				Reopen:  func(t testing.TB) tier.Store { return open(t, o) },
				Corrupt: corrupt(server, o.Prefix),
				Hold:    proxy.Hold,
				Cut:     proxy.CutAfter,
			}
		},
	})
}

// corrupt changes an object's file behind the gateway's back.
func corrupt(server *testserver.S3Server, prefix string) func(testing.TB, tier.Key, func([]byte) []byte) {
	return func(t testing.TB, key tier.Key, edit func(raw []byte) []byte) {
		file := filepath.Join(server.Data, server.Bucket, prefix, key.String())
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if edited := edit(raw); edited == nil {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, edited, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestConformanceTLS: https.
func TestConformanceTLS(t *testing.T) {
	cert := testserver.NewCertificate(t)
	server := testserver.S3(t, &cert)
	proxy := testserver.NewProxy(t, server.Addr)
	base := options(server, "https://"+proxy.Addr)
	base.TLS, base.Timeout = remote.TLS{CAFile: cert.CertFile}, time.Minute
	conform.Run(t, conform.Subject{
		Ambiguous: true, Light: true, Big: 12 << 20,
		Without: []conform.Hook{conform.Full, conform.Corrupt, conform.Reopen},
		Open: func(t testing.TB) conform.Opened {
			o := base
			o.Prefix = t.Name() + "/"
			return conform.Opened{Store: open(t, o), Hold: proxy.Hold, Cut: proxy.CutAfter}
		},
	})
}
