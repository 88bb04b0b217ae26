package killtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/daemon"
)

// The environment of a daemon child, beside the endpoint.
const (
	nameVariable     = "HOLDFAST_KILLTEST_NAME"
	takeOverVariable = "HOLDFAST_KILLTEST_TAKE_OVER"
)

// runDaemon is `holdfast serve` in a child: it stops and keeps its pool at SIGTERM and for a
// successor, and lets it go at an interrupt.
func runDaemon() {
	if err := serveDaemon(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// unsafe takes away the safety that the environment names, in builds that can.
var unsafe = func() {}

func serveDaemon() error {
	unsafe()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	cfg := config.Defaults()
	cfg.Host, cfg.Port, cfg.HTTPPort = "127.0.0.1", 0, 0
	cfg.Socket = strings.TrimPrefix(os.Getenv(endpointVariable), "ipc://")
	cfg.ShmName = os.Getenv(nameVariable)
	cfg.L1Bytes, cfg.ChunkSize = poolBytes, chunkTokens
	cfg.TakeOver, _ = strconv.ParseBool(os.Getenv(takeOverVariable))
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("HOLDFAST_KILLTEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	d, err := daemon.Start(context.Background(), cfg, "killtest", log)
	if err != nil {
		return err
	}
	fmt.Println("admin", d.AdminAddr())
	keep := true
	select {
	case s := <-signals:
		keep = s == syscall.SIGTERM
	case <-d.TakenOver():
	case err := <-d.Failed():
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Stop(ctx, keep); err != nil {
		return err
	}
	fmt.Println("stopped")
	return nil
}

// lives is a series of servers, each of which adopts its predecessor's pool.
type lives struct {
	endpoint, name string
	now            *child
	admin          string
}

func newLives(t *testing.T) *lives {
	l := &lives{
		endpoint: "ipc://" + filepath.Join(t.TempDir(), "socket"),
		name:     fmt.Sprintf("lmcache_l1_pool_killtest-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
	t.Cleanup(func() { os.Remove(filepath.Join("/dev/shm", l.name)) })
	return l
}

// next starts the next server and returns when it serves, or, with mayDie, false when it has
// been killed before.
func (l *lives) next(t *testing.T, mayDie bool, environment ...string) bool {
	t.Helper()
	c := startChild(t, "daemon", append(environment, endpointVariable+"="+l.endpoint, nameVariable+"="+l.name)...)
	line, err := c.out.ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "admin ")
	if !ok || err != nil {
		if mayDie && errors.Is(err, io.EOF) && line == "" {
			c.kill()
			return false
		}
		t.Fatalf("server: %q %v", line, err)
	}
	l.now, l.admin = c, address
	return true
}

// ended waits for the server's own end.
func (l *lives) ended(t *testing.T) {
	t.Helper()
	if line, err := l.now.out.ReadString('\n'); strings.TrimSpace(line) != "stopped" {
		t.Errorf("the server says %q, %v", line, err)
	}
	l.now.kill()
}

func (l *lives) status(t *testing.T) admin.Picture {
	t.Helper()
	p, err := admin.AskStatus(testContext(t), l.admin)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// finish demands that nothing is wrong or lost when the clients have gone, and that nothing is
// left in /dev/shm.
func (l *lives) finish(t *testing.T, crew *crew) {
	t.Helper()
	crew.stop()
	if n := crew.mismatches.Load(); n != 0 {
		t.Errorf("%d chunks with wrong bytes", n)
	}
	eventually(t, "no client of an earlier server is waited for", func() bool { return len(l.status(t).OldPeers) == 0 })
	response, err := http.Post("http://"+l.admin+"/clear-cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	p := l.status(t)
	// A request that was cut between lookup and end holds what it found as long as its process
	// lives, which is this one.
	held := p.Pool.Settled > 0 && p.Leases.Open == 0
	if held || p.Pool.Free+p.Pool.Settled != p.Pool.Size || p.Violations != 0 || p.Cache.Mismatches != 0 || !p.Ledger.Balanced {
		t.Errorf("%d of %d bytes are free, %d violations, %d mismatches; quarantined %+v", p.Pool.Free, p.Pool.Size,
			p.Violations, p.Cache.Mismatches, p.Quarantine)
	}
	l.now.signal(syscall.SIGINT)
	l.ended(t)
	if _, err := os.Stat(filepath.Join("/dev/shm", l.name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pool is left behind (%v)", err)
	}
}

// A server is killed again and again at random moments while clients store and load. Each next
// one serves what is proved; no client ever loads wrong bytes, none has to be started again, and
// no memory is lost.
func TestServerIsKilledAndAdopted(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	crew := startCrew(t, "/dev/shm", l.endpoint)
	random := rand.New(rand.NewPCG(1, 7))
	inherited := 0
	for range 8 {
		crew.work(t)
		<-time.After(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		l.now.kill()
		l.next(t, false)
		inherited += l.status(t).Cache.Objects
	}
	if inherited == 0 {
		t.Error("nothing was ever inherited: the test does not test")
	}
	crew.work(t)
	l.finish(t, crew)
}

// A server that is stopped leaves everything that it serves.
func TestServerIsStoppedAndAdopted(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	crew := startCrew(t, "/dev/shm", l.endpoint)
	for range 3 {
		crew.work(t)
		l.now.signal(syscall.SIGTERM)
		l.ended(t)
		l.next(t, false)
	}
	crew.work(t)
	l.finish(t, crew)
}

// Two servers of a node are killed together. The first one back leaves the other's pool alone,
// and the other finds it.
func TestTwoServersAreKilledTogether(t *testing.T) {
	a, b := newLives(t), newLives(t)
	a.next(t, false)
	b.next(t, false)
	crews := []*crew{startCrew(t, "/dev/shm", a.endpoint), startCrew(t, "/dev/shm", b.endpoint)}
	for i := range 2 {
		crews[i].work(t)
		crews[i].stop()
	}
	a.now.kill()
	b.now.kill()
	for i, l := range []*lives{a, b} {
		l.next(t, false)
		if l.status(t).Cache.Objects == 0 {
			t.Errorf("server %d comes back to nothing", i)
		}
	}
	for i, l := range []*lives{a, b} {
		l.finish(t, crews[i])
	}
}

// A server whose pool can never fit removes nobody's pool in the attempt.
func TestHopelessStartRemovesNothing(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	l.now.kill()
	cfg := config.Defaults()
	cfg.Host, cfg.Port, cfg.HTTPPort, cfg.L1Bytes = "127.0.0.1", 0, 0, 1<<50
	if _, err := daemon.Start(testContext(t), cfg, "killtest", slog.New(slog.DiscardHandler)); !errors.Is(err, arena.ErrNoRoom) {
		t.Errorf("a pool of a PiB: %v", err)
	}
	if _, err := os.Stat(filepath.Join("/dev/shm", l.name)); err != nil {
		t.Error(err)
	}
}

// A new server takes the place of the running one while clients work: they notice a pause.
func TestTakeOver(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	crew := startCrew(t, "/dev/shm", l.endpoint)
	for range 3 {
		crew.work(t)
		old, before := l.now, l.status(t)
		l.next(t, false, takeOverVariable+"=true")
		if line, err := old.out.ReadString('\n'); strings.TrimSpace(line) != "stopped" {
			t.Errorf("the old server says %q, %v", line, err)
		}
		old.kill()
		after := l.status(t)
		if after.PID == before.PID || after.BootID == before.BootID || after.Pool.Name != before.Pool.Name {
			t.Errorf("before %d %s %s, after %d %s %s", before.PID, before.BootID, before.Pool.Name, after.PID, after.BootID, after.Pool.Name)
		}
	}
	crew.work(t)
	l.finish(t, crew)
}

// A client stays stopped with a store and a read open while its server is killed and others hammer
// the next one's memory. What is its own is nobody's until it ends.
func TestClientOutlivesItsServer(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	if left := outlive(t, l); left != (survivor{intact: true, unread: true}) {
		t.Errorf("left over: %+v", left)
	}
	crew := startCrew(t, "/dev/shm", l.endpoint)
	crew.work(t)
	l.finish(t, crew)
}

// survivor is what a client that outlived its server sees and leaves.
type survivor struct {
	wrong  int   // chunks with other bytes than they must have, loaded by others
	intact bool  // what it wrote after the server's end is still there
	unread bool  // what it was reading is
	after  int64 // bytes in quarantine after its end
}

func outlive(t *testing.T, l *lives) (left survivor) {
	t.Setenv(endpointVariable, l.endpoint)
	client := func(n int) *child {
		c := startChild(t, "client", dirVariable+"=/dev/shm", poolVariable+"="+l.name, fmt.Sprintf("%s=%d", instanceVariable, n))
		c.want("connect", "connected")
		return c
	}
	writer, reader := client(1), client(2)
	writer.want(fmt.Sprint("prepare ", victimPrompt), fmt.Sprint(chunks))
	reader.want(fmt.Sprint("store ", victimPrompt+1), "true")
	reader.want(fmt.Sprint("read ", victimPrompt+1), fmt.Sprint(chunks))
	writer.stop()
	reader.stop()
	l.now.kill()
	l.next(t, false)
	hammers := []*child{client(3), client(4), client(5)}
	left.wrong = pounding(t, hammers, 40)()
	wait := pounding(t, hammers, 40)
	writer.signal(syscall.SIGCONT)
	writer.want("write", "written")
	left.wrong += wait()
	left.wrong += pounding(t, hammers, 20)()
	left.intact = writer.do("intact") == "true"
	reader.signal(syscall.SIGCONT)
	left.unread = reader.do(fmt.Sprint("compare ", victimPrompt+1)) == "true"
	for _, c := range append(hammers, writer, reader) {
		c.kill()
	}
	eventually(t, "the ends of the clients are seen", func() bool {
		p := l.status(t)
		return len(p.Instances) == 0 && len(p.OldPeers) == 0
	})
	left.after = l.status(t).Pool.Quarantined
	return left
}
