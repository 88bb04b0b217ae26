//go:build killpoint

package crashtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/kv"
)

// pointPatience is how long a server may take to reach its point once everything is done that leads there.
const pointPatience = time.Second

// plan is what happens in one round: the server is killed at a point, or at a random moment.
type plan struct {
	point      killpoint.Point // "" = random
	time       int             // the point is reached
	lead       func(w *world, l *life, p *plan) (dead bool)
	early      func(w *world, p *plan) // before the server is started
	flags      []string
	checkpoint bool
	victim     string
}

func (p *plan) arm() string {
	if p.point == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", p.point, p.time)
}

// round is one server life, from its start to its end.
func (w *world) round(p plan) {
	w.t.Helper()
	if p.early != nil {
		p.early(w, &p)
	}
	w.rounds++
	l := w.start(p.arm(), p.flags...)
	if !w.live(l, &p) {
		w.end(l, &p)
		return
	}
	if p.point != "" {
		w.await(l)
	} else {
		w.after(l, 30*time.Millisecond)
	}
	w.end(l, &p)
}

// hasty is a round in which the server is killed while it starts.
func (w *world) hasty() {
	w.t.Helper()
	w.rounds++
	l := w.launch("")
	w.after(l, 30*time.Millisecond)
	w.end(l, &plan{})
}

// live lets the engines and victims work; false says that the server has ended.
func (w *world) live(l *life, p *plan) bool {
	w.t.Helper()
	if l.admin == "" {
		return false
	}
	status, ok := w.status(l)
	if !ok {
		return false
	}
	l.boot = status.BootID
	w.advance()
	w.began()
	w.tell("resume")
	if !w.haunt(l) || !w.worked(l, 1) || !w.victimize(l, p.victim) {
		return false
	}
	if p.checkpoint && !w.checkpoint(l) {
		return false
	}
	return p.lead == nil || !p.lead(w, l, p)
}

// advance lets the engines go on to other prompts, so that there is something to store.
func (w *world) advance() {
	w.low += w.prompts / 8
	w.choose()
}

// await waits until the server reaches its point, for some time.
func (w *world) await(l *life) {
	select {
	case <-l.exited:
	case <-time.After(pointPatience):
	}
}

// after waits for a random moment.
func (w *world) after(l *life, most time.Duration) {
	select {
	case <-l.exited:
	case <-time.After(time.Duration(w.random.Int64N(int64(most)))):
	}
}

// end kills the server if it lives, and looks at what it leaves.
func (w *world) end(l *life, p *plan) {
	w.t.Helper()
	died := l.dead()
	l.kill()
	w.tally.Rounds++
	switch how := l.ended(); {
	case died && l.arm != "" && how == "killed":
		w.hits[p.point]++
		w.tally.AtPoint++
	case died || how != "killed":
		w.t.Fatalf("round %d: the server ended by itself (%s, armed %q)\n%s", w.rounds, how, l.arm, tail(w.log.Name(), 4000))
	}
	w.left()
	w.logged()
}

// logged looks through what the servers have logged since.
func (w *world) logged() {
	w.t.Helper()
	text, err := os.ReadFile(w.log.Name())
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text[w.read:])) {
		if strings.Contains(line, "records of the adopted pool could not be true") || strings.Contains(line, "level=ERROR") && !w.flipped {
			w.note("round %d: a server logs %s", w.rounds, line)
		}
	}
	w.read = len(text)
}

// left looks at what a killed server leaves on disk and in shared memory.
func (w *world) left() {
	w.t.Helper()
	if w.diskBytes > 0 {
		if bytes, _, _ := diskUse(w.t, w.disk()); bytes > w.diskBytes {
			w.note("round %d: %d bytes on disk, at most %d", w.rounds, bytes, w.diskBytes)
		}
	}
	pools, err := filepath.Glob(filepath.Join("/dev/shm", w.pool+"*"))
	if err != nil || len(pools) != 1 {
		w.note("round %d: the pools in shared memory are %q, %v", w.rounds, pools, err)
	}
}

// stop ends the server with a signal that it obeys, and demands that it ends well.
func (w *world) stop(l *life, s syscall.Signal) {
	w.t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
	w.gone(l)
}

// gone waits for the server's own end.
func (w *world) gone(l *life) {
	w.t.Helper()
	select {
	case <-l.exited:
	case <-time.After(patience):
		w.t.Fatalf("the server does not end within %v", patience)
	}
	if how := l.ended(); how != "exit status 0" {
		w.t.Fatalf("round %d: the server ended with %s\n%s", w.rounds, how, tail(w.log.Name(), 4000))
	}
}

// leadClear clears the cache; what was stored is no promise any more.
func leadClear(w *world, l *life, _ *plan) (dead bool) {
	w.forget()
	w.others()
	return !w.clear(l)
}

// clear clears over the admin HTTP; false says that the server has ended.
func (w *world) clear(l *life) bool {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.admin+"/clear-cache", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	if err == nil {
		return true
	}
	select {
	case <-l.exited:
	case <-ctx.Done():
		w.t.Fatalf("clear: %v", err)
	}
	return false
}

// leadSalt makes the engines use namespaces that nobody has seen.
func leadSalt(w *world, l *life, _ *plan) (dead bool) {
	w.began()
	w.tell("salt")
	return !w.worked(l, 2)
}

// leadStop ends the server as an operator does, until it reaches its point.
func leadStop(w *world, l *life, _ *plan) (dead bool) {
	w.exorcise()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	return false
}

// takeOver is a round in which a second server takes the place of the first. With a point the
// second is killed there; the first ends all the same.
func (w *world) takeOver(p plan) {
	w.t.Helper()
	w.exorcise()
	p.victim = ""
	first := w.start("")
	if !w.live(first, &p) {
		w.t.Fatal("the first server has ended")
	}
	w.rounds++
	second := w.start(p.arm(), "--take-over")
	w.gone(first)
	p.checkpoint = false
	if w.live(second, &p) {
		w.after(second, 10*time.Millisecond)
	}
	w.end(second, &p)
}

// cleared is two rounds: what is cleared to the end does not come back after a kill.
func (w *world) cleared() {
	w.t.Helper()
	w.exorcise()
	p := plan{checkpoint: true}
	w.rounds++
	l := w.start("")
	if !w.live(l, &p) || !w.quiet(l) {
		w.t.Fatal("the server has ended")
	}
	was := w.sample(12)
	w.forget()
	w.others()
	if !w.clear(l) || !w.settled(l) {
		w.t.Fatal("the server has ended")
	}
	w.end(l, &p)
	w.rounds++
	l = w.start("")
	if status, ok := w.status(l); ok {
		l.boot = status.BootID
	}
	if !w.settled(l) || !w.ask(l, "absent", was) {
		w.t.Fatal("the server has ended")
	}
	w.forget()
	w.cleaned = w.low
	w.tell("resume")
	w.end(l, &p)
}

// flip kills a server while nobody touches the pool and changes bytes of objects in it: their
// checksums must tell.
func flip(w *world, p *plan) {
	w.t.Helper()
	w.rounds++
	calm := plan{}
	l := w.start("")
	if !w.live(l, &calm) || !w.quiet(l) {
		w.t.Fatal("the server has ended")
	}
	w.end(l, &calm)
	f, err := os.OpenFile(filepath.Join("/dev/shm", w.pool), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	var word [8]byte
	flips := 0
	for at := int64(0); at < w.poolBytes; at += objectBytes {
		if _, err := f.ReadAt(word[:], at); err != nil {
			w.t.Fatal(err)
		}
		if binary.LittleEndian.Uint64(word[:])&(0xFFFF<<48) != mark || w.random.IntN(3) > 0 {
			continue
		}
		if _, err := f.WriteAt([]byte{0xEE}, at+int64(1+8*w.random.IntN(objectBytes/8))); err != nil {
			w.t.Fatal(err)
		}
		flips++
	}
	if flips == 0 {
		w.t.Fatal("there is no object to be changed")
	}
	w.flipped = true
}

// fillSpaces stops a server and fills the table of namespaces in the pool up to its last place, so
// that the next name makes the next server turn to the other half.
func fillSpaces(w *world, _ *plan) {
	w.t.Helper()
	w.exorcise()
	w.rounds++
	l := w.start("")
	if !w.live(l, &plan{}) {
		w.t.Fatal("the server has ended")
	}
	w.stop(l, syscall.SIGTERM)
	found, err := arena.Find("", w.pool)
	if err != nil || len(found) != 1 {
		w.t.Fatalf("%d pools, %v", len(found), err)
	}
	stale, err := found[0].Lock(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := stale.Adopt()
	if err != nil {
		w.t.Fatal(err)
	}
	records, names := pool.Records(), pool.Records().Spaces()
	number := uint32(1 << 20)
	turned, since := false, 0
	known := func(yield func(kv.Digest, uint32) bool) {
		turned = true
		for n, name := range names {
			if !yield(name, n) {
				return
			}
		}
	}
	add := func() {
		number++
		var name kv.Digest
		binary.LittleEndian.PutUint32(name[:], number)
		if !records.AddSpace(number, name, known) {
			w.t.Fatal("no room for a name")
		}
	}
	turn := func() (adds int) {
		for turned = false; !turned; adds++ {
			add()
		}
		return adds
	}
	turn()
	since = turn() // from just after a turn to the next one
	for range since - 1 {
		add()
	}
	if err := pool.Release(); err != nil {
		w.t.Fatal(err)
	}
}

// finish ends the engines and then the server, and demands that nothing is left.
func (w *world) finish() {
	w.t.Helper()
	w.exorcise()
	w.rounds++
	l := w.start("")
	if !w.live(l, &plan{checkpoint: true}) || !w.quiet(l) || !w.ask(l, "present", w.order) || !w.quiet(l) {
		w.t.Fatal("the server has ended")
	}
	for i := range w.engines {
		s := w.states[i]
		w.tally.Trips, w.tally.Stores, w.tally.Loads = w.tally.Trips+s.Trips, w.tally.Stores+s.Stores, w.tally.Loads+s.Loads
		w.tally.Failures, w.tally.Refused = w.tally.Failures+s.Failures, w.tally.Refused+s.Refused
		if s.Copying {
			w.note("engine %d does not share memory any more", i)
		}
		if s.Trips == 0 || s.Failures == 0 || s.Stores == 0 || s.Loads == 0 {
			w.note("engine %d: %+v: the test does not test", i, s)
		}
	}
	if w.tally.Refused > 0 && !w.flipped {
		w.note("%d reads of hits were refused", w.tally.Refused)
	}
	for i, e := range w.engines {
		if err := e.end(); err != nil {
			w.note("engine %d: %v", i, err)
		}
	}
	w.while(l, "what belonged to clients is free", func() bool {
		p, ok := w.status(l)
		return ok && p.Cache.Reservations == 0 && p.Leases.Open == 0 && p.Slots.Reserved == 0 && p.Slots.Quarantined == 0 &&
			len(p.Quarantine) == 0 && len(p.OldPeers) == 0 && len(p.Instances) == 0 && len(p.Peers) == 0
	})
	w.sound(l)
	w.forget()
	if !w.clear(l) || !w.settled(l) {
		w.t.Fatal("the server has ended")
	}
	p, _ := w.status(l)
	if p.Pool.Free != p.Pool.Size || p.Cache.Objects != 0 {
		w.note("after a clear %d of %d bytes are free, and there are %d objects", p.Pool.Free, p.Pool.Size, p.Cache.Objects)
	}
	w.sound(l)
	w.stop(l, syscall.SIGINT)
	w.logged()
	for _, path := range []string{filepath.Join("/dev/shm", w.pool), w.socket()} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			w.note("%s is left behind (%v)", path, err)
		}
	}
}
