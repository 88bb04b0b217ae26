package server_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// clientProcess is what a re-executed test binary does: it connects, does what its role
// says, reports, and then lives until its standard input ends.
func clientProcess(role string) {
	z, err := zmtp.Dial(context.Background(), os.Getenv("HOLDFAST_TEST_SERVER"), zmtp.Options{SocketType: zmtp.Dealer})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	uid := uint64(0)
	call := func(op lmcache.Op, args ...[]byte) {
		if err := z.Send(append([][]byte{num(uid), num(uint64(op))}, args...)...); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		uid++
		if _, err := readMessage(z); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	r, key := model(7), keyOf("s", 1, 0, 4, 0)
	attach := func() { // as clients do when they have registered
		f, err := os.OpenFile(os.Getenv("HOLDFAST_TEST_POOL"), os.O_RDWR, 0)
		if err == nil {
			_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	switch role {
	case "writer": // dies, or disconnects, between PREPARE and COMMIT
		call(lmcache.OpRegisterEngineDriven, r.Append(nil))
		attach()
		call(lmcache.OpPrepareStore, key.Append(nil), num(7))
	case "proxy": // the same for a client that only it can see
		call(lmcache.OpRegisterEngineDriven, r.Append(nil))
		call(lmcache.OpPrepareStore, key.Append(nil), num(7))
	case "copier": // says that it copies, as a client does that cannot map the pool
		call(lmcache.OpRegisterEngineDriven, r.Append(nil))
		nothing := key
		nothing.Tokens, nothing.Start, nothing.End = nil, 0, 0
		call(lmcache.OpCommitStore, nothing.Append(nil), num(7), []byte{0xc4, 4, 0x80, 4, ']', '.'})
		call(lmcache.OpPrepareStore, key.Append(nil), num(7))
	case "reader": // the same between PREPARE and COMMIT of a retrieve
		call(lmcache.OpRegisterEngineDriven, r.Append(nil))
		attach()
		key.Request = "r"
		call(lmcache.OpPrepareRetrieve, key.Append(nil), num(7))
	case "stranger": // names an instance of another process
		call(lmcache.OpUnregisterEngineDriven, num(7))
		call(lmcache.OpCommitStore, key.Append(nil), num(7), emptyBin)
		bad := r
		bad.DType = "float3"
		call(lmcache.OpRegisterEngineDriven, bad.Append(nil))
	case "twin": // registers under the id of another process
		call(lmcache.OpRegisterEngineDriven, r.Append(nil))
	case "scheduler": // with a lease
		key.Worker = -1
		key.Request = "q"
		call(lmcache.OpLookup, key.Append(nil), num(1))
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if in.Text() == "disconnect" {
			z.Close()
			fmt.Println("disconnected")
		}
	}
}

// child is a client in a process of its own.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface {
		Write([]byte) (int, error)
		Close() error
	}
	out *bufio.Scanner
}

func (h *house) child(t *testing.T, role, endpoint string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE="+role, "HOLDFAST_TEST_SERVER="+endpoint,
		"HOLDFAST_TEST_POOL="+filepath.Join(h.dir, h.pool.Name()))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t, cmd, in, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	c.await("ready")
	return c
}

func (c *child) await(word string) {
	c.t.Helper()
	if !c.out.Scan() || c.out.Text() != word {
		c.t.Fatalf("client process said %q, not %q", c.out.Text(), word)
	}
}

// disconnect makes the client close its connection and live on.
func (c *child) disconnect() {
	c.t.Helper()
	fmt.Fprintln(c.in, "disconnect")
	c.await("disconnected")
}

func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

func transports(t *testing.T, run func(t *testing.T, h *house, endpoint string)) {
	for _, name := range []string{"unix", "tcp"} {
		t.Run(name, func(t *testing.T) {
			h := open(t, plan{})
			endpoint := h.unix
			if name == "tcp" {
				endpoint = h.tcp
			}
			run(t, h, endpoint)
		})
	}
}

// TestWriterProcess: the end of a known process, and nothing less, is the proof that frees
// what it was writing.
func TestWriterProcess(t *testing.T) {
	transports(t, func(t *testing.T, h *house, endpoint string) {
		c := h.child(t, "writer", endpoint)
		if n := h.cache.Stats().Reservations; n != 1 {
			t.Fatalf("%d reservations", n)
		}
		if in := h.Status().Instances; len(in) != 1 || in[0].PID != c.cmd.Process.Pid {
			t.Fatalf("instances %+v, want pid %d", in, c.cmd.Process.Pid)
		}
		c.disconnect()
		eventually(t, "the disconnect", func() bool { return !h.Status().Instances[0].Connected })
		st := h.cache.Stats()
		if st.Reservations != 1 || st.Arena.ReservedSlots != 4 {
			t.Fatalf("a live process lost what it may write: %+v", st)
		}
		c.kill()
		eventually(t, "the process's end", func() bool { return h.cache.Stats().Reservations == 0 })
		st = h.cache.Stats()
		if st.Arena.FreeBytes != st.Arena.Size || st.Objects != 0 {
			t.Fatalf("after the process has ended: %+v", st)
		}
		if n := len(h.Status().Instances); n != 0 {
			t.Fatalf("%d instances", n)
		}
	})
}

// TestProxyProcess: a process that has not mapped the pool speaks for another one. Its end
// frees nothing; the other one's own word, over another connection, does.
func TestProxyProcess(t *testing.T) {
	transports(t, func(t *testing.T, h *house, endpoint string) {
		c := h.child(t, "proxy", endpoint)
		c.kill()
		eventually(t, "the proxy's end", func() bool { return h.cache.Stats().Arena.QuarantinedSlots == 4 })
		if st := h.cache.Stats(); st.Reservations != 0 || st.Objects != 0 || st.Arena.FreeBytes == st.Arena.Size {
			t.Fatalf("after the proxy has ended: %+v", st)
		}
		p := h.dial(t, endpoint)
		if p.commitStore(keyOf("s", 1, 0, 4, 0), 7, emptyBin) {
			t.Fatal("a commit of a store that was given up")
		}
		if st := h.cache.Stats(); st.Arena.FreeBytes != st.Arena.Size {
			t.Fatalf("after the writer's own word: %+v", st)
		}
	})
}

// TestProxyIsToldOf: a process that could map the pool and has not is worth a warning, but not one
// that copies.
func TestProxyIsToldOf(t *testing.T) {
	for role, told := range map[string]bool{"proxy": true, "copier": false} {
		h := open(t, plan{})
		c := h.child(t, role, h.unix)
		if n := h.log.count("has not mapped the pool"); (n > 0) != told {
			t.Errorf("%s: told %d times", role, n)
		}
		c.kill()
	}
}

func TestReaderProcess(t *testing.T) {
	transports(t, func(t *testing.T, h *house, endpoint string) {
		p := h.dial(t, h.unix)
		p.register(model(8))
		h.store(p, keyOf("s", 1, 0, 4, 0), 8)
		p.lookup("r", 1, 4)
		c := h.child(t, "reader", endpoint)
		if n := h.cache.Stats().Reading; n == 0 {
			t.Fatal("nobody reads")
		}
		p.void(lmcache.OpEndSession, str("r"))
		c.kill()
		eventually(t, "the end of the read", func() bool { return h.cache.Stats().Reading == 0 })
		if st := h.cache.Stats(); st.Leases != 0 || st.Objects != 4 {
			t.Fatalf("after the process has ended: %+v", st)
		}
	})
}

func TestSchedulerProcess(t *testing.T) {
	transports(t, func(t *testing.T, h *house, endpoint string) {
		p := h.dial(t, h.unix)
		p.register(model(8))
		h.store(p, keyOf("s", 1, 0, 4, 0), 8)
		c := h.child(t, "scheduler", endpoint)
		c.disconnect()
		eventually(t, "the disconnect", func() bool { return len(h.Status().Peers) == 1 })
		if n := h.cache.Stats().Leases; n != 1 {
			t.Fatalf("%d leases while the process lives", n)
		}
		c.kill()
		eventually(t, "the release of the lease", func() bool { return h.cache.Stats().Leases == 0 })
	})
}

// TestStrangers: a process can neither end nor commit what another one has open, even
// under its id.
func TestStrangers(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 4, 0)
	p.prepareStore(key, 7)
	h.child(t, "stranger", h.unix)
	st := h.cache.Stats()
	if st.Reservations != 1 || st.Arena.ReservedSlots != 4 || len(h.Status().Instances) != 1 {
		t.Fatalf("after a stranger's words: %+v", st)
	}
	// One that registers under the id is another life. The first one's memory waits for the
	// first one's end, which is the end of this test.
	twin := h.child(t, "twin", h.unix)
	if in := h.Status().Instances; len(in) != 1 || in[0].PID != twin.cmd.Process.Pid {
		t.Fatalf("instances %+v", in)
	}
	if p.commitStore(key, 7, emptyBin) {
		t.Fatal("a commit under an id that is another's now")
	}
	twin.kill()
	eventually(t, "the end of the twin", func() bool { return len(h.Status().Instances) == 0 })
	if st := h.cache.Stats(); st.Arena.ReservedSlots != 4 {
		t.Fatalf("the first process's slots were freed by another's end: %+v", st)
	}
}
