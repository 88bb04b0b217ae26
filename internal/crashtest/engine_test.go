//go:build killpoint

package crashtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// claim is a prompt that an engine was told is stored, or has loaded whole.
type claim struct {
	Prompt int
	Boot   string // of the one server life in which all of it happened
	Fresh  bool   // every object of it was stored then, by this engine
}

// engineState is what an engine says of itself. Claims and Wrong are said once.
type engineState struct {
	Trips, Stores, Loads int // trips without failure; objects
	Failures             int // calls that a server's end cut
	Refused              int // retrieves of hits that were answered false
	Paused               bool
	Pending              int // prompts still to be checked
	Checked              int // prompts that were checked
	Copying              bool
	Claims               []claim
	Wrong                []string // what must never happen
}

// engine is one engine: a scheduler and a worker for each rank. It goes on whatever happens to the server.
type engine struct {
	scheduler *client.Client
	workers   [ranks]*client.Worker
	name      string
	random    *rand.Rand
	request   int
	boot      string // of the server that the workers are registered at

	mu         sync.Mutex
	wake       chan struct{} // something was asked of the engine
	state      engineState
	pause      bool
	salted     bool // the next trip is in a namespace that nobody has seen
	low, above int  // its prompts
	present    []int
	absent     []int
}

// runEngine is an engine process.
func runEngine() {
	e := &engine{wake: make(chan struct{}, 1), pause: true}
	instance, err := strconv.ParseUint(os.Getenv(instanceVariable), 10, 32)
	if err == nil {
		err = e.connect(os.Getenv(endpointVariable), instance)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.run(ctx) })
	serveCommands(e.obey)
	cancel()
	running.Wait()
	if err := e.leave(); err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

func (e *engine) connect(endpoint string, instance uint64) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.name, e.random = fmt.Sprint("engine ", instance), rand.New(rand.NewPCG(instance, 1))
	if e.scheduler, err = client.Dial(ctx, endpoint, client.Options{}); err != nil {
		return err
	}
	for rank := range e.workers {
		c, err := client.Dial(ctx, endpoint, client.Options{})
		if err != nil {
			return err
		}
		if e.workers[rank], err = c.Register(ctx, registration(instance*ranks+uint64(rank))); err != nil {
			return err
		}
	}
	return nil
}

// leave unregisters; the rest of the connections ends with the process.
func (e *engine) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, w := range e.workers {
		errs = append(errs, w.Unregister(ctx))
	}
	return errors.Join(append(errs, e.scheduler.Close())...)
}

func (e *engine) obey(command string) any {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}()
	words := strings.Fields(command)
	var numbers []int
	for _, w := range words[1:] {
		n, _ := strconv.Atoi(w)
		numbers = append(numbers, n)
	}
	switch words[0] {
	case "pause":
		e.pause = true
	case "resume":
		e.pause, e.state.Paused = false, false
	case "salt":
		e.salted = true
	case "prompts":
		e.low, e.above = numbers[0], numbers[1]
	case "present":
		e.present = append(e.present, numbers...)
	case "absent":
		e.absent = append(e.absent, numbers...)
	}
	s := e.state
	s.Pending += len(e.present) + len(e.absent)
	s.Copying = !e.workers[0].SHM() || !e.workers[1].SHM()
	e.state.Claims, e.state.Wrong = nil, nil
	return s
}

// work is what the engine does next.
type work struct {
	check, present, salted bool
	prompt                 int
}

// next waits for something to do.
func (e *engine) next(ctx context.Context) (w work, ok bool) {
	for ctx.Err() == nil {
		if w, ok := e.choose(); ok {
			return w, true
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		}
	}
	return work{}, false
}

func (e *engine) choose() (work, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Pending = 0
	switch {
	case len(e.present) > 0:
		p := e.present[0]
		e.present, e.state.Pending = e.present[1:], 1
		return work{check: true, present: true, prompt: p}, true
	case len(e.absent) > 0:
		p := e.absent[0]
		e.absent, e.state.Pending = e.absent[1:], 1
		return work{check: true, prompt: p}, true
	case e.pause:
		e.state.Paused = true
		return work{}, false
	}
	w := work{salted: e.salted, prompt: e.low + e.random.IntN(e.above-e.low)}
	e.salted = false
	return w, true
}

// run works until ctx ends. After a failure it waits a moment, as engines do.
func (e *engine) run(ctx context.Context) {
	for {
		w, ok := e.next(ctx)
		if !ok {
			return
		}
		for tries := 0; ; tries++ {
			err := e.do(ctx, w)
			if err == nil || !e.fail(err) || ctx.Err() != nil {
				break
			}
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
			if !w.check {
				break
			}
		}
	}
}

func (e *engine) do(ctx context.Context, w work) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if w.check {
		return e.check(ctx, w)
	}
	return e.trip(ctx, w)
}

// fail notes an error and reports whether the end of a server explains it.
func (e *engine) fail(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case errors.Is(err, errMoved), errors.Is(err, client.ErrDisconnected), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, context.Canceled),
		errors.Is(err, client.ErrRefused) && strings.Contains(err.Error(), "shutting down"):
		e.state.Failures++
		return true
	}
	e.wrong("%v", err)
	return false
}

// wrong notes what must not be; e.mu is held.
func (e *engine) wrong(format string, args ...any) {
	if len(e.state.Wrong) < 20 {
		e.state.Wrong = append(e.state.Wrong, e.name+": "+fmt.Sprintf(format, args...))
	}
}

// meet finds out which server this is. At another one than before the workers register again,
// which a lookup of their model needs.
func (e *engine) meet(ctx context.Context) (boot string, err error) {
	hello, err := e.scheduler.Hello(ctx)
	if err != nil || hello.BootID == e.boot {
		return hello.BootID, err
	}
	for rank, w := range e.workers {
		if _, err := w.Retrieve(ctx, keyOf(0, rank, 0, 1, "nobody's"), nil); err != nil {
			return "", err
		}
	}
	e.boot = hello.BootID
	return hello.BootID, nil
}

// lookup returns how many chunks every rank has. The request stays open.
func (e *engine) lookup(ctx context.Context, key *client.Key) (hits int, err error) {
	if err := e.scheduler.Lookup(ctx, key); err != nil {
		return 0, err
	}
	for {
		n, done, err := e.scheduler.WaitPrefetch(ctx, key.Request, time.Second)
		if done || err != nil {
			return n, err
		}
	}
}

// ranked calls f for every rank at the same time.
func ranked(f func(rank int) error) error {
	var errs [ranks]error
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() { errs[rank] = f(rank) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// load retrieves and compares the first chunks of a prompt. ok says that every rank was given its.
func (e *engine) load(ctx context.Context, prompt, hits int, request string) (ok bool, err error) {
	var given [ranks]bool
	err = ranked(func(rank int) error {
		var bad []string
		want := make([]byte, objectBytes)
		ok, err := e.workers[rank].Retrieve(ctx, keyOf(prompt, rank, 0, hits, request), func(index int, src []byte) error {
			if content(want, prompt, rank, index); !bytes.Equal(src, want) {
				bad = append(bad, fmt.Sprintf("prompt %d rank %d chunk %d: other bytes than were stored (%.16x…)", prompt, rank, index, differing(src, want)))
			}
			return nil
		})
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, b := range bad {
			e.wrong("%s", b)
		}
		given[rank] = ok && err == nil
		return err
	})
	return given[0] && given[1], err
}

// differing is what src has where it first differs.
func differing(src, want []byte) []byte {
	for i := range want {
		if i >= len(src) || src[i] != want[i] {
			return src[min(i, len(src)):]
		}
	}
	return nil
}

func (e *engine) newRequest() string {
	e.request++
	return fmt.Sprintf("%s request %d", e.name, e.request)
}

// trip is one request from lookup to end: what is hit is loaded and compared, what is missing
// is stored.
func (e *engine) trip(ctx context.Context, w work) error {
	request := e.newRequest()
	before, err := e.meet(ctx)
	if err != nil {
		return err
	}
	key := keyOf(w.prompt, 0, 0, chunks, request)
	if w.salted {
		key.Salt = request
	}
	hits, err := e.lookup(ctx, key)
	if err != nil {
		return err
	}
	whole := true
	if hits > 0 && !w.salted {
		if whole, err = e.load(ctx, w.prompt, hits, request); err != nil {
			return err
		}
	}
	var stored [ranks]bool
	var filled [ranks]int
	if hits < chunks {
		err := ranked(func(rank int) (err error) {
			k := keyOf(w.prompt, rank, hits, chunks, request)
			k.Salt = key.Salt
			stored[rank], err = store(e.workers[rank], w.prompt%2 == 0)(ctx, k, fill(w.prompt, rank, hits, &filled[rank]))
			return err
		})
		for rank := range ranks {
			whole = whole && stored[rank] && filled[rank] == chunks-hits
		}
		if err != nil {
			return err
		}
	}
	if err := e.scheduler.EndSession(ctx, request); err != nil {
		return err
	}
	after, err := e.meet(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Trips++
	e.state.Loads += hits * ranks
	e.state.Stores += filled[0] + filled[1]
	if hits > 0 && !whole && hits == chunks {
		e.state.Refused++
	}
	if whole && before == after && !w.salted {
		e.state.Claims = append(e.state.Claims, claim{w.prompt, before, hits == 0})
	}
	return nil
}

// errMoved says that the server was another one half way.
var errMoved = errors.New("the server is another one")

// checkTries is how often a prompt is looked for: an object whose bytes turn out to be wrong is a
// miss, and the next lookup finds it elsewhere.
const checkTries = 4

// check looks for a prompt that must be there, whole, or must not be there at all.
func (e *engine) check(ctx context.Context, w work) error {
	var found []int
	for range checkTries {
		before, err := e.meet(ctx)
		if err != nil {
			return err
		}
		request := e.newRequest()
		hits, err := e.lookup(ctx, keyOf(w.prompt, 0, 0, chunks, request))
		if err != nil {
			return err
		}
		ok := true
		if hits > 0 {
			if ok, err = e.load(ctx, w.prompt, hits, request); err != nil {
				return err
			}
		}
		if err := e.scheduler.EndSession(ctx, request); err != nil {
			return err
		}
		if after, err := e.meet(ctx); err != nil || after != before {
			return cmp.Or(err, errMoved)
		}
		found = append(found, hits)
		if ok {
			break
		}
		e.mu.Lock()
		e.state.Refused++
		e.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Checked++
	switch hits := slices.Max(found); {
	case w.present && found[len(found)-1] != chunks:
		e.wrong("prompt %d was safe and is lost: %v of %d chunks are found", w.prompt, found, chunks)
	case !w.present && hits > 0:
		e.wrong("prompt %d was cleared and is back: %v chunks are found", w.prompt, found)
	}
	return nil
}
