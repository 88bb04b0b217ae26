//go:build killpoint

package crashtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// settings make a world. What is promised depends on where there is room.
type settings struct {
	name      string
	poolBytes int64
	diskBytes int64 // 0 = no disk
	prompts   int   // that engines choose from, until a clear
	flags     []string
	// keeps says where what is safe stays until it is cleared.
	keeps  place
	points []killpoint.Point // that can be reached here
	share  int               // of the rounds, in percent
}

type place int

const (
	nowhere  place = iota // all may be evicted
	inMemory              // what has its checksum
	onDisk                // what its tier has written
)

// world is one identity of servers, one after another, and the engines that live through them.
type world struct {
	settings
	t      *testing.T
	random *rand.Rand
	dir    string
	pool   string // name in /dev/shm
	port   int
	log    *os.File
	remove string // a safety
	wanted bool   // something is to go wrong, and to be noticed

	engines   []*child
	trips     []int // of each when this life began
	states    []engineState
	survivors []*survivor
	instances int

	rounds  int
	safe    map[int]bool // prompts that must be found
	order   []int        // of safe, as they came
	low     int          // of the engines' prompts
	cleaned int          // low, when everything was cleared last
	flipped bool         // bytes of the pool were changed: checksums must tell
	hits    map[killpoint.Point]int
	read    int // of the log
	tally   tally
}

// tally is what a world has seen.
type tally struct {
	Rounds, AtPoint, Checks, Safe, Victims, Wrong int
	Trips, Stores, Loads, Failures, Refused       int
	Notes                                         []string
}

const enginesPerWorld = 3

func newWorld(t *testing.T, s settings, random *rand.Rand) *world {
	w := &world{settings: s, t: t, random: random, dir: t.TempDir(), safe: make(map[int]bool), hits: make(map[killpoint.Point]int)}
	w.pool = fmt.Sprintf("%scrash-%s-%d-%d", config.ShmPrefix, s.name, os.Getpid(), random.Uint32())
	logs := w.dir
	if dir := os.Getenv("HOLDFAST_CRASH_LOGS"); dir != "" {
		logs = dir
	}
	var err error
	if w.log, err = os.Create(filepath.Join(logs, s.name+".log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last lines of %s's servers:\n%s", s.name, tail(w.log.Name(), 6000))
		}
		w.log.Close()
		os.Remove(filepath.Join("/dev/shm", w.pool))
	})
	w.port = testserver.Reserve(t) // also while its server is dead
	return w
}

func tail(path string, bytes int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-bytes):])
}

func (w *world) socket() string { return filepath.Join(w.dir, "socket") }
func (w *world) disk() string   { return filepath.Join(w.dir, "disk") }

// flags are the settings of every server of this world.
func (w *world) flags() []string {
	gib := func(n int64) string { return strconv.FormatFloat(float64(n)/(1<<30), 'g', -1, 64) }
	all := []string{"serve", "--host", "127.0.0.1", "--port", strconv.Itoa(w.port), "--http-port", "0", "--socket", w.socket(),
		"--shm-name", w.pool[len(config.ShmPrefix):], "--l1-size-gb", gib(w.poolBytes), "--chunk-size", strconv.Itoa(chunkTokens),
		// Reads are not compared, or a mismatch would be a miss and the engines would not see it.
		"--verify", "sampled", "--verify-rate", "0.000001"}
	if w.diskBytes > 0 {
		// Nothing that is stored misses the disk for lack of room in the queue, and nothing is taken
		// for lost because the disk is slow.
		all = append(all, "--l2-prefetch-load-timeout", "60", "--disk-path", w.disk(), "--disk-size-gb", gib(w.diskBytes), "--disk-sync", "full", "--l2-write-queue-gb", gib(w.poolBytes))
	}
	return append(all, w.settings.flags...)
}

// startEngines starts the clients that live through everything: one over tcp, others at the socket.
func (w *world) startEngines() {
	w.t.Helper()
	for n := range enginesPerWorld {
		endpoint := "ipc://" + w.socket()
		if n == 0 {
			endpoint = fmt.Sprintf("tcp://127.0.0.1:%d", w.port)
		}
		w.instances++
		w.engines = append(w.engines, startChild(w.t, "engine", endpointVariable+"="+endpoint, fmt.Sprintf("%s=%d", instanceVariable, w.instances)))
	}
	w.states = make([]engineState, enginesPerWorld)
	w.trips = make([]int, enginesPerWorld)
	w.choose()
}

// others gives the engines prompts of which nobody has stored any.
func (w *world) others() {
	w.low += w.prompts
	w.choose()
}

// choose says which prompts the engines choose from.
func (w *world) choose() { w.tell(fmt.Sprintf("prompts %d %d", w.low, w.low+w.prompts)) }

// tell gives every engine a command, and collects what they say of themselves.
func (w *world) tell(command string) {
	w.t.Helper()
	for i := range w.engines {
		w.tellOne(i, command)
	}
}

func (w *world) tellOne(i int, command string) {
	w.t.Helper()
	earlier := w.states[i]
	w.states[i] = engineState{}
	if err := w.engines[i].ask(command, &w.states[i]); err != nil {
		w.t.Fatalf("engine %d: %v", i, err)
	}
	s := &w.states[i]
	for _, wrong := range s.Wrong {
		w.tally.Wrong++
		w.note("round %d: %s", w.rounds, wrong)
	}
	s.Claims = append(earlier.Claims, s.Claims...)
}

// note records something wrong; unless that is wanted, the test has failed.
func (w *world) note(format string, args ...any) {
	w.t.Helper()
	if !w.wanted {
		w.t.Errorf(format, args...)
	}
	if len(w.tally.Notes) < 10 {
		w.tally.Notes = append(w.tally.Notes, fmt.Sprintf(format, args...))
	}
}

// every reports whether it holds for every engine.
func (w *world) every(f func(i int, s *engineState) bool) bool {
	w.t.Helper()
	w.tell("state")
	for i := range w.states {
		if !f(i, &w.states[i]) {
			return false
		}
	}
	return true
}

// began remembers where the engines are.
func (w *world) began() {
	w.tell("state")
	for i := range w.states {
		w.trips[i] = w.states[i].Trips
	}
}

// worked waits until every engine has made some trips since.
func (w *world) worked(l *life, trips int) bool {
	w.t.Helper()
	return w.while(l, "every engine works", func() bool {
		return w.every(func(i int, s *engineState) bool { return s.Trips >= w.trips[i]+trips })
	})
}

// quiet pauses the engines and waits until all they have stored is as safe as it gets.
func (w *world) quiet(l *life) bool {
	w.t.Helper()
	w.tell("pause")
	return w.while(l, "the engines pause", func() bool {
		return w.every(func(_ int, s *engineState) bool { return s.Paused && s.Pending == 0 })
	}) && w.settled(l)
}

// settled waits until the server shows that nothing waits for a checksum or a tier.
func (w *world) settled(l *life) bool {
	w.t.Helper()
	return w.while(l, "nothing waits for its checksum or for the disk", func() bool {
		p, ok := w.status(l)
		if !ok {
			return false
		}
		busy := p.Moves.PutObjects > 0 || p.Moves.Prefetches > 0
		for _, t := range p.Tiers {
			busy = busy || t.State == "loading" || t.Clearing || t.LoadsInFlight > 0 || t.PutsInFlight > 0
			if t.Skipped > 0 || t.PutsFailed > 0 || t.LoadsFailed > 0 && w.keeps == onDisk || t.State == "failing" {
				w.t.Fatalf("round %d: the disk does not do what it should: %+v", w.rounds, t)
			}
		}
		return !busy
	})
}

// checkpoint makes what the engines were told a promise: the server shows it as safe. Then the
// promises of before are called in.
func (w *world) checkpoint(l *life) bool {
	w.t.Helper()
	if !w.quiet(l) {
		return false
	}
	earlier := w.sample(8)
	for i := range w.states {
		for _, c := range w.states[i].Claims {
			counts := w.keeps == inMemory || w.keeps == onDisk && c.Fresh
			if c.Boot == l.boot && counts && !w.safe[c.Prompt] {
				w.safe[c.Prompt] = true
				w.order = append(w.order, c.Prompt)
				w.tally.Safe++
			}
		}
		w.states[i].Claims = nil
	}
	if !w.ask(l, "present", append(earlier, w.sample(2)...)) || !w.sound(l) {
		return false
	}
	w.tell("resume")
	w.began()
	return true
}

// sample chooses among the safe prompts, the latest more often.
func (w *world) sample(n int) (some []int) {
	if len(w.order) <= n {
		return slices.Clone(w.order)
	}
	for i := range n {
		from := 0
		if i%2 == 0 {
			from = max(0, len(w.order)-3*n)
		}
		some = append(some, w.order[from+w.random.IntN(len(w.order)-from)])
	}
	slices.Sort(some)
	return slices.Compact(some)
}

// ask lets the engines look for prompts, and waits until they have.
func (w *world) ask(l *life, what string, prompts []int) bool {
	w.t.Helper()
	w.tally.Checks += len(prompts)
	for i, p := range prompts {
		w.tellOne(i%len(w.engines), fmt.Sprintf("%s %d", what, p))
	}
	return w.while(l, "the engines have looked", func() bool {
		return w.every(func(_ int, s *engineState) bool { return s.Pending == 0 })
	})
}

// forget drops every promise: something was cleared.
func (w *world) forget() {
	clear(w.safe)
	w.order = w.order[:0]
	for i := range w.states {
		w.states[i].Claims = nil
	}
}

// sound demands what holds while the engines pause.
func (w *world) sound(l *life) bool {
	w.t.Helper()
	p, ok := w.status(l)
	if !ok {
		return false
	}
	if !p.Ledger.Balanced || p.Violations != 0 || p.Panics != 0 || p.Malformed != 0 {
		w.note("round %d: balanced %t, %d violations, %d panics, %d malformed messages", w.rounds, p.Ledger.Balanced, p.Violations, p.Panics, p.Malformed)
	}
	if p.Cache.Mismatches > 0 && !w.flipped {
		w.note("round %d: %d objects are not what was stored", w.rounds, p.Cache.Mismatches)
	}
	if w.keeps == inMemory && p.Cache.EvictedObjects+p.Cache.StoresFull > 0 {
		w.t.Fatalf("the pool is too small for this test: %+v", p.Cache)
	}
	for _, t := range p.Tiers {
		bytes, objects, unfinished := diskUse(w.t, w.disk())
		if bytes > t.Limit || bytes != t.Bytes || int64(objects) != t.Objects || unfinished != 0 {
			w.note("round %d: %d files of %d bytes and %d unfinished on disk; the tier says %d of %d, at most %d", w.rounds,
				objects, bytes, unfinished, t.Objects, t.Bytes, t.Limit)
		}
		if w.keeps == onDisk && t.Reason != "" {
			w.t.Logf("tier: %s", t.Reason)
		}
	}
	return true
}
