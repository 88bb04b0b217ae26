package process

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// accepted starts a child that connects to ln and returns our end.
func accepted(t *testing.T, ln net.Listener, part string) (net.Conn, child) {
	t.Helper()
	c := startChild(t, part)
	sock, err := ln.Accept()
	must(t, err)
	t.Cleanup(func() { _ = sock.Close() })
	return sock, c
}

func listen(t testing.TB, network, address string) (ln net.Listener, port string) {
	t.Helper()
	ln, err := net.Listen(network, address)
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	_, port, err = net.SplitHostPort(ln.Addr().String())
	must(t, err)
	return ln, port
}

// loopback6 is the IPv6 loopback; on a machine without, as many containers are, the other one.
func loopback6() string { return ifThere("::1", "127.0.0.1") }

// any6 is every address of IPv6 and IPv4; where the system knows no IPv6 at all, of IPv4.
func any6() string { return ifThere("::", "0.0.0.0") }

func ifThere(ip6, otherwise string) string {
	ln, err := net.Listen("tcp6", net.JoinHostPort(ip6, "0"))
	if err != nil {
		return otherwise
	}
	_ = ln.Close()
	return ip6
}

func ofTCP(local, remote net.Addr) int { return OfTCP(Ends{local, remote})[0] }

func TestOfTCPFindsTheOtherEnd(t *testing.T) {
	for _, tc := range []struct {
		name, network, listen, part string
	}{
		{"IPv4", "tcp4", "127.0.0.1:0", "connect 127.0.0.1:"},
		{"IPv4 to an IPv6 listener", "tcp", net.JoinHostPort(any6(), "0"), "connect 127.0.0.1:"},
		{"IPv4 from an IPv6 socket", "tcp4", "127.0.0.1:0", "mapped "},
		{"IPv4 from an IPv6 socket to an IPv6 listener", "tcp", net.JoinHostPort(any6(), "0"), "mapped "},
		{"IPv6", "tcp", net.JoinHostPort(loopback6(), "0"), "connect " + net.JoinHostPort(loopback6(), "")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ln, port := listen(t, tc.network, tc.listen)
			sock, c := accepted(t, ln, tc.part+port)
			if got := ofTCP(sock.LocalAddr(), sock.RemoteAddr()); got != c.Process.Pid {
				t.Errorf("pid %d, want %d", got, c.Process.Pid)
			}
			// Seen from the other end, it is us.
			if got := ofTCP(sock.RemoteAddr(), sock.LocalAddr()); got != os.Getpid() {
				t.Errorf("from the other end: pid %d, want %d", got, os.Getpid())
			}
			p := open(t, c.Process.Pid)
			must(t, c.Process.Kill())
			<-p.Exited()
			if got := ofTCP(sock.LocalAddr(), sock.RemoteAddr()); got != 0 {
				t.Errorf("after its end: pid %d", got)
			}
		})
	}
}

func TestOfTCPDoesNotGuess(t *testing.T) {
	t.Run("two processes hold the socket", func(t *testing.T) {
		ln, port := listen(t, "tcp4", "127.0.0.1:0")
		sock, _ := accepted(t, ln, "shared 127.0.0.1:"+port)
		if got := ofTCP(sock.LocalAddr(), sock.RemoteAddr()); got != 0 {
			t.Errorf("pid %d", got)
		}
	})
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	for name, ends := range map[string][2]net.Addr{
		"another host":       {tcp("127.0.0.1:80"), tcp("203.0.113.9:4000")},
		"no such connection": {tcp("127.0.0.1:1"), tcp("127.0.0.1:2")},
		"no such in IPv6":    {tcp("[::1]:1"), tcp("[::1]:2")},
		"unix socket":        {&net.UnixAddr{Name: "/x"}, &net.UnixAddr{}},
		"nothing":            {nil, nil},
		"nil address":        {(*net.TCPAddr)(nil), (*net.TCPAddr)(nil)},
	} {
		if got := ofTCP(ends[0], ends[1]); got != 0 {
			t.Errorf("%s: pid %d", name, got)
		}
	}
}

func TestInodesIn(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:15B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1111 1 0000000000000000 100 0 0 10 0
   1: 0100007F:15B3 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2222 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:9C40 0100007F:15B3 01 00000000:00000000 00:00000000 00000000  1000        0 3333 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:9C41 0100007F:15B3 06 00000000:00000000 03:00001770 00000000     0        0 0 3 0000000000000000
   4: 0100007F:9C42 0100007F:15B3
`
	for ends, want := range map[string]string{
		"0100007F:9C40 0100007F:15B3": "3333",
		"0100007F:15B3 0100007F:9C40": "2222",
		"0100007F:9C41 0100007F:15B3": "", // in TIME_WAIT nobody holds it
		"0100007F:9C42 0100007F:15B3": "", // cut line
		"0100007F:9C43 0100007F:15B3": "",
	} {
		got := make([]string, 1)
		inodesIn(strings.NewReader(table), map[string]int{ends: 0}, got)
		if got[0] != want {
			t.Errorf("%s: inode %q, want %q", ends, got[0], want)
		}
	}
}

// TestOfTCPFindsSeveral: each gets its own answer, whatever the others are.
func TestOfTCPFindsSeveral(t *testing.T) {
	ln, port := listen(t, "tcp", net.JoinHostPort(any6(), "0"))
	a, one := accepted(t, ln, "connect 127.0.0.1:"+port)
	b, two := accepted(t, ln, "connect "+net.JoinHostPort(loopback6(), port))
	c, _ := accepted(t, ln, "shared 127.0.0.1:"+port)
	elsewhere := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4000}
	got := OfTCP(
		Ends{a.LocalAddr(), a.RemoteAddr()},
		Ends{a.LocalAddr(), elsewhere},
		Ends{b.LocalAddr(), b.RemoteAddr()},
		Ends{c.LocalAddr(), c.RemoteAddr()},
		Ends{b.RemoteAddr(), b.LocalAddr()},
		Ends{},
	)
	if want := []int{one.Process.Pid, 0, two.Process.Pid, 0, os.Getpid(), 0}; !slices.Equal(got, want) {
		t.Errorf("pids %v, want %v", got, want)
	}
	if got := OfTCP(); len(got) != 0 {
		t.Errorf("pids of nothing: %v", got)
	}
}

// BenchmarkOfTCP is what a registration over tcp pays, with the processes of this host.
func BenchmarkOfTCP(b *testing.B) {
	ln, _ := listen(b, "tcp4", "127.0.0.1:0")
	sock, err := net.Dial("tcp", ln.Addr().String())
	must(b, err)
	defer sock.Close()
	peer, err := ln.Accept()
	must(b, err)
	defer peer.Close()
	elsewhere := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4000}
	b.Run("found", func(b *testing.B) {
		for b.Loop() {
			if ofTCP(peer.LocalAddr(), peer.RemoteAddr()) != os.Getpid() {
				b.Fatal("not found")
			}
		}
	})
	b.Run("another host", func(b *testing.B) {
		for b.Loop() {
			if ofTCP(peer.LocalAddr(), elsewhere) != 0 {
				b.Fatal("found")
			}
		}
	})
}
