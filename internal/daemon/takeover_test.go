package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
)

// TestHandOverIsForTheSame: a server of another identity is refused; of this one, the server
// is told to end.
func TestHandOverIsForTheSame(t *testing.T) {
	c := again(t)
	d := start(t, c, io.Discard)
	defer stop(t, d)
	if _, err := admin.AskToHandOver(t.Context(), d.AdminAddr(), "shm-name another"); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("another server is told %v", err)
	}
	select {
	case <-d.TakenOver():
		t.Error("it ends for another server")
	default:
	}
	h, err := admin.AskToHandOver(t.Context(), d.AdminAddr(), identity(&c))
	if err != nil || h.PID != os.Getpid() || h.Drain != c.Drain {
		t.Errorf("told %+v, %v", h, err)
	}
	<-d.TakenOver()
	if _, err := admin.AskToHandOver(t.Context(), "127.0.0.1:1", ""); !errors.Is(err, admin.ErrNoServer) {
		t.Errorf("nobody is there: %v", err)
	}
}

// TestHandOverWithoutSharedMemory: servers without a pool to adopt go by their name or address; one
// that has neither neither hands over nor takes over.
func TestHandOverWithoutSharedMemory(t *testing.T) {
	named := small(t)
	named.SHM, named.InstanceID = false, "a"
	other := named
	other.InstanceID = "b"
	shared := named
	shared.SHM = true
	nameless := small(t)
	nameless.SHM = false
	for _, tc := range []struct {
		name     string
		old, new config.Serve
		yields   bool
	}{
		{"the same name", named, named, true},
		{"another name", named, other, false},
		{"one of them with shared memory", named, shared, false},
		{"none has a name", nameless, nameless, false},
		{"one that says nothing", named, nameless, false},
	} {
		d := start(t, tc.old, io.Discard)
		_, err := admin.AskToHandOver(t.Context(), d.AdminAddr(), place(&tc.new))
		yields := false
		select {
		case <-d.TakenOver():
			yields = true
		default:
		}
		if yields != tc.yields || (err == nil) != tc.yields {
			t.Errorf("%s: it ends: %t, %v", tc.name, yields, err)
		}
		stop(t, d)
	}
	// Its own admin port is that of a server of the same lack of a name.
	old := start(t, nameless, io.Discard)
	defer stop(t, old)
	_, port, _ := net.SplitHostPort(old.AdminAddr())
	next := small(t)
	next.SHM, next.TakeOver = false, true
	next.HTTPPort, _ = strconv.Atoi(port)
	var log bytes.Buffer
	if _, err := Start(t.Context(), next, "test", slog.New(slog.NewTextHandler(&log, nil))); err == nil || !strings.Contains(err.Error(), "--http-port") {
		t.Errorf("it starts where another is: %v", err)
	}
	if !strings.Contains(log.String(), "has no identity") {
		t.Errorf("log: %s", log.String())
	}
}

// TestTakeOverDoesNotWaitForTiers: what waits for a slow tier is no reason to keep engines
// waiting: the next server puts it there.
func TestTakeOverDoesNotWaitForTiers(t *testing.T) {
	c := again(t)
	c.Drain = time.Minute
	specs, _, err := adapter.Parse(fmt.Sprintf(`{"type":"disk","path":%q,"rate_limit_mb":0.00001}`, filepath.Join(t.TempDir(), "disk")))
	if err != nil {
		t.Fatal(err)
	}
	c.Adapters = specs
	first := start(t, c, io.Discard)
	_, w := workerOf(t, first)
	store(t, w)
	if _, err := admin.AskToHandOver(t.Context(), first.AdminAddr(), identity(&c)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Drain)
	defer cancel()
	if err := errors.Join(first.Stop(ctx, true), ctx.Err()); err != nil {
		t.Error(err)
	}
	second := start(t, c, io.Discard)
	if n := second.cache.Stats().Objects; n != 2 {
		t.Errorf("%d objects", n)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := second.Stop(ctx, false); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestTakeOverOfNobody is an ordinary start.
func TestTakeOverOfNobody(t *testing.T) {
	c := again(t)
	c.TakeOver = true
	stop(t, start(t, c, io.Discard))
}

// TestTakeOverSaysWhatIsOpen: a server that does not end in time is not taken over, and the error
// names what it waits for; nothing is left of the attempt.
func TestTakeOverSaysWhatIsOpen(t *testing.T) {
	defer func(margin time.Duration) { handoverMargin = margin }(handoverMargin)
	handoverMargin = 200 * time.Millisecond
	c := again(t)
	c.Drain = 0
	first := start(t, c, io.Discard)
	defer stop(t, first)
	_, w := workerOf(t, first)
	ok, err := w.Store(t.Context(), &twoChunks, func(int, []byte) error {
		if handoverMargin == 0 {
			return nil // asked already
		}
		next := c
		next.TakeOver = true
		_, err := Start(t.Context(), next, "test", slog.New(slog.DiscardHandler))
		handoverMargin = 0
		if err == nil || !strings.Contains(err.Error(), "1 stores and 0 reads are open; instances 1") {
			t.Errorf("error %v", err)
		}
		return nil
	})
	if !ok || err != nil {
		t.Errorf("the open store: %t, %v", ok, err)
	}
}

// TestTakeOverOfAnotherNamespace: the pid that a server in another container says is another
// process here, whose end would be waited for in vain.
func TestTakeOverOfAnotherNamespace(t *testing.T) {
	c := again(t)
	c.TakeOver, c.HTTPPort = true, handsOver(t, os.Getpid(), "pid:[1]")
	stop(t, start(t, c, io.Discard))
}

// handsOver answers one request to hand over, and ends; it returns the port of its admin HTTP.
func handsOver(t *testing.T, pid int, namespace string) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := &http.Server{}
	old.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"status":"draining","pid":%d,"pid_namespace":%q,"drain_seconds":0}`, pid, namespace)
		go old.Shutdown(context.Background())
	})
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	serving.Go(func() { _ = old.Serve(l) })
	return l.Addr().(*net.TCPAddr).Port
}

// TestSomebodyElseTookOver: of two that take over from one server the second does not wait for
// an address that the first has.
func TestSomebodyElseTookOver(t *testing.T) {
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c := again(t)
	c.Port = other.Addr().(*net.TCPAddr).Port
	c.TakeOver, c.HTTPPort = true, handsOver(t, child.Process.Pid, namespace)
	_, err = Start(t.Context(), c, "test", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "another has its address") {
		t.Error(err)
	}
}

// TestStaleTakeOver: a server that was stopped for a while does not end for somebody who has
// given up waiting for it.
func TestStaleTakeOver(t *testing.T) {
	c := again(t)
	d := start(t, c, io.Discard)
	defer stop(t, d)
	for _, late := range []time.Duration{time.Second, -10 * time.Second} {
		body := fmt.Sprintf(`{"identity":%q,"until":%d}`, identity(&c), time.Now().Add(-late).UnixMilli())
		r, err := http.Post("http://"+d.AdminAddr()+"/take-over", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		asked := false
		select {
		case <-d.TakenOver():
			asked = true
		default:
		}
		if asked != (late < 0) || (r.StatusCode == http.StatusOK) != asked {
			t.Errorf("%v late: status %d, it ends: %t", late, r.StatusCode, asked)
		}
	}
}

// TestTakeOverOfADeadServer whose admin address another program has by now is an ordinary start.
func TestTakeOverOfADeadServer(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	c := again(t)
	first := start(t, c, io.Discard)
	if err := first.pool.SetAdmin(strings.TrimPrefix(web.URL, "http://")); err != nil {
		t.Fatal(err)
	}
	keep(t, first)
	killed(t, c.ShmName)
	c.TakeOver = true
	d := start(t, c, io.Discard)
	if !d.pool.Adopted() {
		t.Error("the pool is not adopted")
	}
	stop(t, d)
}
