package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier/testserver/gateway"
)

// S3Server is an S3 server over a folder.
type S3Server struct {
	*Process
	// Endpoint is the server's URL.
	Endpoint string
	// Data has one folder per bucket; an object is the file of its name.
	Data                 string
	AccessKey, SecretKey string
	Bucket               string // there is one
}

// S3 starts an S3 server on loopback, with TLS if a certificate is given.
func S3(t testing.TB, cert *Certificate) *S3Server {
	t.Helper()
	binary, err := gateway.Install()
	if err != nil {
		t.Fatal(err)
	}
	s := &S3Server{AccessKey: "holdfast", SecretKey: "not-a-secret-of-anyone", Bucket: "kv-cache", Data: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.Data, s.Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Process = run(t, func(p *Process, port int) *exec.Cmd {
		args := []string{"--port", p.Addr, "--keep-alive", "--quiet"}
		if cert != nil {
			args = append(args, "--cert", cert.CertFile, "--key", cert.KeyFile)
		}
		cmd := exec.Command(binary, append(args, "posix", s.Data)...)
		cmd.Dir = p.Dir
		cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
		return cmd
	}, func(p *Process, o *output) error { return p.listens(o) })
	s.Endpoint = "http://" + s.Addr
	if cert != nil {
		s.Endpoint = "https://" + s.Addr
	}
	return s
}

// listens waits until the process takes connections.
func (p *Process) listens(o *output) error {
	var err error
	Await(p.t, "the server", func() bool {
		var conn net.Conn
		if conn, err = net.Dial("tcp", p.Addr); err == nil {
			conn.Close()
			return true
		}
		select {
		case <-o.ended:
			return true
		default:
			return false
		}
	})
	return err
}

// AwaitIdle waits until the server has no connection but those that wait for a request: none
// has bytes that the server has not read, or is closed at the other end only.
func (s *S3Server) AwaitIdle() {
	_, port, _ := net.SplitHostPort(s.Addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		s.t.Fatal(err)
	}
	local := fmt.Sprintf("0100007F:%04X", n)
	Await(s.t, "the server being idle", func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			// sl local remote state tx:rx …
			f := strings.Fields(line)
			if len(f) > 4 && f[1] == local && (f[3] == closeWait || f[3] == established && !strings.HasSuffix(f[4], ":00000000")) {
				return false
			}
		}
		return true
	})
}

// States of a connection in /proc/net/tcp.
const (
	established = "01"
	closeWait   = "08"
)
