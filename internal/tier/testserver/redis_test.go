package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRedis: it answers, keeps its address over a kill, and forgets.
func TestRedis(t *testing.T) {
	r := Redis(t)
	r.Do("SET", "k", "v")
	if v := r.Do("GET", "k"); v != "v" {
		t.Fatalf("GET is %q", v)
	}
	r.Kill()
	if _, err := r.Try("GET", "k"); err == nil {
		t.Fatal("a killed server answers")
	}
	r.Start()
	if v := r.Do("GET", "k"); v != "" {
		t.Fatalf("after a kill GET is %q", v)
	}
}

// TestReserve: nobody else is given a port that is kept, and a server may listen there again
// and again.
func TestReserve(t *testing.T) {
	port := Reserve(t)
	other, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	if err := unix.Bind(other, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another program has the port, too: %v", err)
	}
	for range 2 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// TestRedisCluster: every slot is served, by three nodes.
func TestRedisCluster(t *testing.T) {
	nodes := RedisCluster(t, 3)
	served := 0
	for _, node := range nodes {
		if _, err := node.Try("SET", "k", "v"); err == nil {
			served++
		} else if !strings.HasPrefix(err.Error(), "MOVED") {
			t.Error(err)
		}
	}
	if served != 1 {
		t.Errorf("%d nodes serve one key", served)
	}
}

// TestProxy: bytes pass, wait at the bound until the next rule, and are cut.
func TestProxy(t *testing.T) {
	r := Redis(t)
	p := NewProxy(t, r.Addr)
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	ping := func() (string, error) {
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return "", err
		}
		return lines.ReadString('\n')
	}
	if s, err := ping(); err != nil || s != "+PONG\r\n" {
		t.Fatalf("%q, %v", s, err)
	}
	p.Set(Rule{Down: 3})
	go func() {
		<-p.Stuck()
		p.Set(Rule{})
	}()
	if s, err := ping(); err != nil || s != "+PONG\r\n" {
		t.Fatalf("%q, %v", s, err)
	}
	p.Set(Rule{Down: 3, Cut: true})
	if s, err := ping(); err == nil {
		t.Fatalf("a cut connection says %q", s)
	}
	p.Set(Rule{Refuse: true})
	if conn, err := net.Dial("tcp", p.Addr); err == nil {
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Fatalf("a refused connection reads %d bytes", n)
		}
	}
}
