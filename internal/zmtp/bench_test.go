package zmtp

import (
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bareSockets returns both ends of a unix connection without any protocol.
func bareSockets(b *testing.B, network string) (near, far net.Conn) {
	address := map[string]string{"unix": filepath.Join(b.TempDir(), "bare"), "tcp": "127.0.0.1:0"}[network]
	ln, err := net.Listen(network, address)
	must(b, err)
	defer ln.Close()
	near, err = net.Dial(network, ln.Addr().String())
	must(b, err)
	far, err = ln.Accept()
	must(b, err)
	b.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// echoBare answers every n bytes with n bytes.
func echoBare(sock net.Conn, n int) {
	for buf := make([]byte, n); ; {
		if _, err := io.ReadFull(sock, buf); err != nil {
			return
		}
		if _, err := sock.Write(buf); err != nil {
			return
		}
	}
}

// echoSmall answers messages of two small frames.
func echoSmall(c *Conn) {
	var uid, op [16]byte
	for {
		n, _, err := readFrame(c, uid[:])
		if err != nil {
			return
		}
		m, _, err := readFrame(c, op[:])
		if err != nil || c.Send(uid[:n], op[:m]) != nil {
			return
		}
	}
}

func readFrame(c *Conn, dst []byte) (n int, more bool, err error) {
	size, more, err := c.NextFrame()
	if err == nil {
		_, err = io.ReadFull(c, dst[:size])
	}
	return int(size), more, err
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2])
}

// BenchmarkPingPong is a request and its reply, of two frames each, as NOOP has, over a
// unix socket and tcp. It reports the median and its ratio to that of bare sockets which
// move the same bytes; the two take turns, so that other load strikes both.
func BenchmarkPingPong(b *testing.B) {
	for _, network := range []string{"unix", "tcp"} {
		b.Run(network, func(b *testing.B) {
			endpoint := map[string]string{"unix": "ipc://" + filepath.Join(b.TempDir(), "s"), "tcp": "tcp://127.0.0.1:0"}[network]
			dealer, router := pair(b, endpoint, Options{})
			go echoSmall(router)
			near, far := bareSockets(b, network)
			message := join(frameBytes(flagMore, "\x07"), frameBytes(0, "\x15"))
			go echoBare(far, len(message))

			uid, op := []byte{7}, []byte{0x15}
			reply := make([]byte, 16)
			var ours, bare []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				must(b, dealer.Send(uid, op))
				for more := true; more; {
					var err error
					_, more, err = readFrame(dealer, reply)
					must(b, err)
				}
				ours = append(ours, time.Since(start))

				start = time.Now()
				_, err := near.Write(message)
				must(b, err)
				_, err = io.ReadFull(near, message)
				must(b, err)
				bare = append(bare, time.Since(start))
			}
			b.ReportMetric(median(ours), "p50-ns")
			b.ReportMetric(median(bare), "bare-p50-ns")
			b.ReportMetric(median(ours)/median(bare), "x-bare")
		})
	}
}

// BenchmarkLargeFrames moves frames of 64 MiB one way, each acknowledged, and reports the
// throughput as a share of that of bare sockets.
func BenchmarkLargeFrames(b *testing.B) {
	const size = 64 << 20
	for _, network := range []string{"unix", "tcp"} {
		b.Run(network, func(b *testing.B) {
			endpoint := map[string]string{"unix": "ipc://" + filepath.Join(b.TempDir(), "s"), "tcp": "tcp://127.0.0.1:0"}[network]
			dealer, router := pair(b, endpoint, Options{})
			slot, uid := make([]byte, size), make([]byte, 1)
			go func() {
				for {
					if _, _, err := readFrame(router, uid); err != nil {
						return
					}
					if _, _, err := readFrame(router, slot); err != nil || router.Send(uid) != nil {
						return
					}
				}
			}()
			near, far := bareSockets(b, network)
			bareSlot := make([]byte, size)
			go func() {
				for {
					if _, err := io.ReadFull(far, bareSlot); err != nil {
						return
					}
					if _, err := far.Write(bareSlot[:1]); err != nil {
						return
					}
				}
			}()
			payload := []byte(strings.Repeat("p", size))
			var ours, bare []time.Duration
			for b.Loop() {
				start := time.Now()
				must(b, dealer.Send([]byte{1}, payload))
				_, _, err := readFrame(dealer, []byte{0})
				must(b, err)
				ours = append(ours, time.Since(start))

				start = time.Now()
				_, err = near.Write(payload)
				must(b, err)
				_, err = io.ReadFull(near, []byte{0})
				must(b, err)
				bare = append(bare, time.Since(start))
			}
			b.ReportMetric(size/median(ours), "GB/s")
			b.ReportMetric(size/median(bare), "bare-GB/s")
			b.ReportMetric(median(bare)/median(ours), "of-bare")
		})
	}
}
