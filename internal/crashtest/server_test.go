//go:build killpoint

package crashtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// patience ends what hangs; nothing depends on its length.
const patience = 5 * time.Minute

// built is where the program is, "" if it was not built.
var built string

// program builds the server once: with kill points, with what asserts, and, where this test has
// them, with the switches that remove a safety.
var program = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "holdfast-crashtest-"); err != nil {
		return "", err
	}
	path := filepath.Join(built, "holdfast")
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", buildTags, "-o", path, "../../cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// life is one server process.
type life struct {
	cmd     *exec.Cmd
	arm     string // point:time
	admin   string // its admin HTTP, "" if it did not become ready
	boot    string
	ready   chan string // gets admin, and is closed
	printed sync.WaitGroup
	exited  chan struct{} // closed when it has ended
}

var adminLine = regexp.MustCompile(`^ *admin *http://([^/]*)/`)

// start starts a server and waits until it serves or has ended.
func (w *world) start(arm string, flags ...string) *life {
	w.t.Helper()
	l := w.launch(arm, flags...)
	select {
	case l.admin = <-l.ready:
	case <-time.After(patience):
		w.t.Fatalf("the server is not ready after %v", patience)
	}
	if l.admin == "" {
		<-l.exited
	}
	return l
}

// launch starts a server.
func (w *world) launch(arm string, flags ...string) *life {
	w.t.Helper()
	path, err := program()
	if err != nil {
		w.t.Fatal(err)
	}
	l := &life{arm: arm, ready: make(chan string, 1), exited: make(chan struct{})}
	l.cmd = exec.Command(path, append(w.flags(), flags...)...)
	l.cmd.Env = append(os.Environ(), killpoint.Variable+"="+arm)
	if w.remove != "" {
		l.cmd.Env = append(l.cmd.Env, "HOLDFAST_SABOTAGE="+w.remove)
	}
	fmt.Fprintf(w.log, "--- round %d: start %s %s\n", w.rounds, arm, strings.Join(flags, " "))
	l.cmd.Stderr = w.log
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	l.printed.Go(func() {
		address := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := adminLine.FindStringSubmatch(lines.Text()); m != nil {
				address = m[1]
			}
			if strings.Contains(lines.Text(), "vLLM") {
				l.ready <- address
			}
		}
		close(l.ready)
	})
	go func() {
		l.printed.Wait()
		_ = l.cmd.Wait() // how is in ProcessState
		close(l.exited)
	}()
	w.t.Cleanup(func() { l.kill() })
	return l
}

// kill kills the server, if it runs, and waits for its end.
func (l *life) kill() {
	_ = l.cmd.Process.Kill()
	<-l.exited
}

func (l *life) dead() bool {
	select {
	case <-l.exited:
		return true
	default:
		return false
	}
}

// ended says how the server ended, "killed" or "exit status N".
func (l *life) ended() string {
	<-l.exited
	status := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() && status.Signal() == syscall.SIGKILL {
		return "killed"
	}
	return l.cmd.ProcessState.String()
}

// status asks the server; false says that it has ended meanwhile.
func (w *world) status(l *life) (p admin.Picture, ok bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := admin.AskStatus(ctx, l.admin)
	if err == nil {
		return p, true
	}
	select {
	case <-l.exited:
	case <-ctx.Done():
		w.t.Fatalf("status: %v", err)
	}
	return p, false
}

// while waits until a condition holds; false says that the server has ended before.
func (w *world) while(l *life, what string, condition func() bool) bool {
	w.t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	limit := time.After(patience)
	for !condition() {
		select {
		case <-l.exited:
			return false
		case <-look.C:
		case <-limit:
			p, _ := w.status(l)
			w.t.Fatalf("never: %s\ncache %+v\nmoves %+v\nleases %+v\nquarantine %+v\nold peers %+v\ninstances %+v\ntiers %+v", what,
				p.Cache, p.Moves, p.Leases, p.Quarantine, p.OldPeers, p.Instances, p.Tiers)
		}
	}
	return true
}

// diskUse is what the files of the disk tier take, and how many there are, with the unfinished.
func diskUse(t *testing.T, dir string) (bytes int64, objects, unfinished int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return skipGone(err)
		}
		info, err := e.Info()
		if err != nil {
			return skipGone(err)
		}
		switch base := filepath.Base(filepath.Dir(path)); {
		case base == "tmp":
			unfinished++
		case filepath.Base(filepath.Dir(filepath.Dir(path))) == "objects":
			objects++
		default:
			return nil
		}
		bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes, objects, unfinished
}

func skipGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
