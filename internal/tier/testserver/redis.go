package testserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// RedisServer is one redis-server that keeps nothing on disk.
type RedisServer struct {
	*Process
	control rueidis.ClientOption // how Do connects
}

// redisBinary is found in the search path; Debian's package is redis-server.
func redisBinary(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("redis-server is not installed: apt-get install --no-install-recommends redis-server")
	return ""
}

// Redis starts a server on loopback. The arguments are settings as on redis-server's command
// line, e.g. "--maxmemory", "10mb".
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return redis(t, "Ready to accept connections", args...)
}

func redis(t testing.TB, ready string, args ...string) *RedisServer {
	t.Helper()
	binary := redisBinary(t)
	p := run(t, func(p *Process, port int) *exec.Cmd {
		all := []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", p.Dir, "--save", "", "--appendonly", "no"}
		return exec.Command(binary, append(all, args...)...)
	}, func(_ *Process, o *output) error { return o.await(ready) })
	return newRedis(p)
}

func newRedis(p *Process) *RedisServer {
	return &RedisServer{p, rueidis.ClientOption{InitAddress: []string{p.Addr}, DisableCache: true, ForceSingleClient: true, DisableRetry: true}}
}

// RedisTLS starts a server that takes TLS connections only and wants a password; clients need
// no certificate.
func RedisTLS(t testing.TB, cert Certificate, password string, args ...string) *RedisServer {
	t.Helper()
	binary := redisBinary(t)
	p := run(t, func(p *Process, port int) *exec.Cmd {
		all := []string{"--bind", "127.0.0.1", "--port", "0", "--tls-port", strconv.Itoa(port), "--dir", p.Dir, "--save", "",
			"--tls-cert-file", cert.CertFile, "--tls-key-file", cert.KeyFile, "--tls-ca-cert-file", cert.CertFile, "--tls-auth-clients", "no", "--requirepass", password}
		return exec.Command(binary, append(all, args...)...)
	}, func(_ *Process, o *output) error { return o.await("Ready to accept connections") })
	r := newRedis(p)
	r.control.Password = password
	r.control.TLSConfig = &tls.Config{InsecureSkipVerify: true}
	return r
}

// Do sends one command and returns its reply as text; the elements of an array are joined
// by spaces. A key that is absent, or any other nil, is "".
func (r *RedisServer) Do(args ...string) string {
	r.t.Helper()
	reply, err := r.Try(args...)
	if err != nil {
		r.t.Fatalf("%s: %v", strings.Join(args[:1], " "), err)
	}
	return reply
}

// Try is Do for commands that may fail.
func (r *RedisServer) Try(args ...string) (string, error) {
	client, err := rueidis.NewClient(r.control)
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	message, err := client.Do(ctx, client.B().Arbitrary(args[0]).Args(args[1:]...).Build()).ToMessage()
	switch {
	case rueidis.IsRedisNil(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return text(message), nil
}

func text(m rueidis.RedisMessage) string {
	if parts, err := m.ToArray(); err == nil {
		all := make([]string, len(parts))
		for i, part := range parts {
			all[i] = text(part)
		}
		return strings.Join(all, " ")
	}
	if n, err := m.AsInt64(); err == nil && m.IsInt64() {
		return strconv.FormatInt(n, 10)
	}
	s, _ := m.ToString()
	return s
}

// RedisCluster starts a cluster of n servers that share the slots, without replicas.
func RedisCluster(t testing.TB, n int) []*RedisServer {
	t.Helper()
	nodes := make([]*RedisServer, n)
	// A node that has not answered for that long is lost, and one that was just met is forgotten;
	// neither shall happen because the machine is slow.
	const timeout = "600000"
	buses := make([]int, n)
	for i := range nodes {
		buses[i] = Reserve(t)
		nodes[i] = Redis(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i]), "--cluster-node-timeout", timeout,
			"--cluster-config-file", "nodes.conf", "--cluster-require-full-coverage", "no")
	}
	const slots = 16384
	for i, node := range nodes {
		node.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n), strconv.Itoa((i+1)*slots/n-1))
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i > 0 {
			host, port, _ := strings.Cut(nodes[0].Addr, ":")
			node.Do("CLUSTER", "MEET", host, port, strconv.Itoa(buses[0]))
		}
	}
	for _, node := range nodes {
		Await(t, "the cluster", func() bool {
			info := node.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)) &&
				strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(n))
		})
	}
	return nodes
}

// RedisSentinel starts a sentinel that watches master, which it knows by name. It takes a
// master for dead after ten minutes, so that no slow machine makes it do so; tests that
// kill the master shorten that.
func RedisSentinel(t testing.TB, master *RedisServer, name string) *RedisServer {
	t.Helper()
	binary := redisBinary(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	p := run(t, func(p *Process, own int) *exec.Cmd {
		conf := filepath.Join(p.Dir, "sentinel.conf")
		settings := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\nsentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %s 600000\nsentinel failover-timeout %s 5000\n",
			own, p.Dir, name, host, port, name, name)
		if err := os.WriteFile(conf, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.Command(binary, conf, "--sentinel")
	}, func(_ *Process, o *output) error { return o.await("+monitor master") })
	return newRedis(p)
}

// Await asks until the answer is yes, and fails the test if that takes too long.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-late.C:
			t.Fatalf("%s does not come true in %s", what, startTimeout)
		case <-again.C:
		}
	}
}
