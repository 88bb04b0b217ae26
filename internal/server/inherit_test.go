package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/process"
	"github.com/holdfast-kv/holdfast/kv"
)

// cat is a process that lives until its input ends, and its start.
func cat(t *testing.T) (c *exec.Cmd, start uint64, end func()) {
	t.Helper()
	c = exec.Command("cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		start, err = process.Start(c.Process.Pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		in.Close()
		_ = c.Wait()
	}
	t.Cleanup(end)
	return c, start, end
}

// TestRestartKnowsOldClients: a client of an earlier server is waited for if its process runs, or
// nobody sees it; by its end or its own word its memory is free. One that is gone is not.
func TestRestartKnowsOldClients(t *testing.T) {
	name := fmt.Sprintf("holdfast-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	pool, err := arena.Create(arena.PoolOptions{Name: name, Size: 1 << 20, Align: 4096, Identity: "test"})
	if err != nil {
		t.Fatal(err)
	}
	running, start, end := cat(t)
	dead, deadStart, endDead := cat(t)
	first, err := cache.New(cache.Config{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	peers := []struct {
		peer   cache.Peer
		listed bool
	}{
		{cache.Peer{PID: running.Process.Pid, Start: start, Instance: 1, HasInstance: true}, true},
		{cache.Peer{PID: running.Process.Pid, Start: start}, true},
		{cache.Peer{PID: running.Process.Pid, Start: start, Instance: 4, HasInstance: true}, true},
		{cache.Peer{PID: running.Process.Pid, Start: start + 1, Instance: 2, HasInstance: true}, false}, // the pid is used again
		{cache.Peer{PID: dead.Process.Pid, Start: deadStart, Instance: 3, HasInstance: true}, false},
		{cache.Peer{Instance: 4, HasInstance: true}, true},
		{cache.Peer{Instance: 5, HasInstance: true}, true},
		{cache.Peer{}, true},
	}
	ns := first.Namespace("m", 1, "", "l")
	for i, p := range peers {
		h := first.NewPeer(fmt.Sprint("peer ", i), p.peer)
		r := cache.Range{NS: ns, Chain: []kv.Digest{{byte(i)}}, Groups: 1}
		if placed, err := first.Prepare(h, 0, r, []int64{4096}); len(placed) != 1 || err != nil {
			t.Fatal(placed, err)
		}
	}
	first.Close()
	endDead()
	if err := pool.Release(); err != nil {
		t.Fatal(err)
	}
	found, err := arena.Find("", name)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	stale, err := found[0].Lock(t.Context())
	if err == nil {
		pool, err = stale.Adopt()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	second, err := cache.New(cache.Config{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	s := New(Config{Cache: second, Pool: pool, ChunkSize: 1, Log: slog.New(slog.DiscardHandler)})
	defer s.Shutdown(context.Background())

	expect := func(when string, slots int, descs ...string) {
		t.Helper()
		var got []string
		for _, p := range s.Status().OldPeers {
			got = append(got, p.Holder)
		}
		held := second.Stats().Arena.QuarantinedSlots
		if fmt.Sprint(got) != fmt.Sprint(descs) || held != slots {
			t.Errorf("%s: old peers %v, want %v; %d slots in quarantine, want %d", when, got, descs, held, slots)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := checkRegistry(&s.registry); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("at first", 6, "peer 0", "peer 1", "peer 2", "peer 5", "peer 6", "peer 7")
	unregister := func(id uint64, p *proc) {
		var verdicts []verdict
		s.with(func(r *registry) { verdicts = r.unregister(id, p) })
		s.carryOut(verdicts)
	}
	unregister(1, &proc{pid: 1})
	expect("after a stranger's word", 6, "peer 0", "peer 1", "peer 2", "peer 5", "peer 6", "peer 7")
	unregister(5, nil)
	expect("after the word of one whom nobody sees", 5, "peer 0", "peer 1", "peer 2", "peer 5", "peer 7")
	end()
	for tick := time.NewTicker(time.Millisecond); len(second.OldPeers()) > 2; { // until the watcher has seen it
		<-tick.C
	}
	expect("after the end of a process", 2, "peer 5", "peer 7")
}

// TestPeerFollowsWhatIsKnown: what the next server is to know of an instance.
func TestPeerFollowsWhatIsKnown(t *testing.T) {
	var told []cache.Peer
	r := newRegistry(func(_ string, p cache.Peer) cache.Holder { told = append(told, p); return cache.Holder(len(told)) },
		func(_ cache.Holder, p cache.Peer) { told = append(told, p) })
	expect := func(when string, want ...cache.Peer) {
		t.Helper()
		if fmt.Sprint(told) != fmt.Sprint(want) {
			t.Errorf("%s: told %+v, want %+v", when, told, want)
		}
		told = nil
	}
	unseen := cache.Peer{Instance: 7, HasInstance: true}
	seen := cache.Peer{Instance: 7, HasInstance: true, PID: 3, Start: 5}
	p := &proc{pid: 3, start: 5}
	now := time.Unix(0, 0)
	_, _, err := r.register(7, &shape{model: "m"}, 1, p, now)
	if err != nil {
		t.Fatal(err)
	}
	expect("registered", seen) // it has been given no slots that another could be touching
	p.maps.Store(true)
	r.relay(7, false)
	expect("it has the pool mapped")
	r.use(7, 1, p, now)
	expect("nothing new")
	r.relay(7, true)
	expect("a proxy", unseen)
	r.relay(7, false)
	expect("not a proxy", seen)
	r.use(7, 2, nil, now)
	expect("two clients use it", cache.Peer{})
}
