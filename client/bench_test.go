package client_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// barePingPong returns a round trip of one small write each way between two goroutines over
// a unix socket: the floor under every request.
func barePingPong(b *testing.B) func() {
	l, err := net.Listen("unix", filepath.Join(b.TempDir(), "bare"))
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 16)
		for {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return
			}
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close(); l.Close(); <-done })
	buf := make([]byte, 16)
	return func() {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// medians lets the calls take turns, in bursts, so that all see the same machine, and
// returns the median duration of each.
func medians(b *testing.B, burst int, calls ...func()) []time.Duration {
	times := make([][]time.Duration, len(calls))
	for done := 0; done < b.N; done += burst {
		for i, call := range calls {
			for range min(burst, b.N-done) {
				start := time.Now()
				call()
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	return p50(times)
}

func p50(times [][]time.Duration) []time.Duration {
	all := make([]time.Duration, len(times))
	for i := range times {
		slices.Sort(times[i])
		all[i] = times[i][len(times[i])/2]
	}
	return all
}

// BenchmarkNoop is a round trip of the client to a whole server over a unix socket, as a ratio to a bare ping-pong over the same kind of socket in the same run.
func BenchmarkNoop(b *testing.B) {
	for _, bc := range []struct {
		name string
		ctx  func() (context.Context, context.CancelFunc)
	}{
		{"background", func() (context.Context, context.CancelFunc) {
			return context.Background(), func() {}
		}},
		{"cancellable", func() (context.Context, context.CancelFunc) {
			return context.WithCancel(context.Background())
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := start(b, "pool", 1<<20)
			ctx, cancel := bc.ctx()
			defer cancel()
			c := s.dial(b, s.unix, false)
			bare := barePingPong(b)
			noop := func() {
				if err := c.Noop(ctx); err != nil {
					b.Fatal(err)
				}
			}
			noop()
			b.ReportAllocs()
			b.ResetTimer()
			p50 := medians(b, 50, bare, noop)
			b.ReportMetric(float64(p50[0].Nanoseconds()), "bare-p50-ns")
			b.ReportMetric(float64(p50[1].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(p50[1])/float64(p50[0]), "x-bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}
