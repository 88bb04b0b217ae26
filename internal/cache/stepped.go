package cache

import (
	"context"
	"iter"
	"slices"
	"time"
)

// Stepped is a cache whose work in the background is done by its caller, one step at a time, for
// simulations. The same calls give the same course: nothing depends on the clock or on other
// threads. It is for one goroutine at a time.
//
// A task goes on until it halts: where it waits or rests, where it takes checksums, and where a tier's
// store calls Halt. What waits outside of a task (Clear, Flush, Seal, Close) lets all tasks go on
// in turn until it need not wait any more.
type Stepped struct {
	*Cache
	tasks     []*task
	current   *task // nil: the caller
	timers    []*stepTimer
	closing   bool
	abandoned bool
}

// task is what a goroutine is elsewhere.
type task struct {
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	waits bool // and nobody has told it since
}

// stepTimer is a deadline that passes when the caller says so.
type stepTimer struct {
	world *Stepped
	f     func()
}

// abandonment is the panic that ends an abandoned task.
type abandonment struct{}

var _ world = (*Stepped)(nil)

// NewStepped is New for a cache that is stepped.
func NewStepped(cfg Config) (*Stepped, error) {
	c, err := open(cfg)
	if err != nil {
		return nil, err
	}
	s := &Stepped{Cache: c}
	c.world = s
	c.begin()
	return s, nil
}

// Start makes a task of f, which may call the cache.
func (s *Stepped) Start(f func()) { s.spawn(f) }

// Tasks is how many tasks have not ended. They are numbered from 0 in the order of their start.
func (s *Stepped) Tasks() int { return len(s.tasks) }

// Step lets a task go on to its next halt or its end. False says that it cannot: it waits for others.
// If it panics, so does Step.
func (s *Stepped) Step(number int) bool {
	t := s.tasks[number]
	if t.waits {
		return false
	}
	s.current = t
	defer func() { s.current = nil }()
	if _, more := t.next(); !more {
		s.tasks = slices.DeleteFunc(s.tasks, func(o *task) bool { return o == t })
	}
	return true
}

// Halt is called by a tier's store inside a call: others may go on here.
func (s *Stepped) Halt() { s.halt() }

// Timers is how many deadlines are set. They are numbered from 0 in the order in which they were set.
func (s *Stepped) Timers() int { return len(s.timers) }

// Fire lets a deadline pass.
func (s *Stepped) Fire(number int) {
	t := s.timers[number]
	t.Stop()
	t.f()
}

// Abandon ends all tasks where they are, as a SIGKILL would: from now on nothing happens by itself.
func (s *Stepped) Abandon() {
	s.mu.Lock()
	s.abandoned, s.core.sums.stopped = true, true // what unwinds begins nothing
	s.mu.Unlock()
	for _, t := range s.tasks {
		t.stop()
	}
	s.tasks, s.timers = nil, nil
}

// Pending reports whether a lookup of the request goes on in tiers, whatever its answer says.
func (s *Stepped) Pending(request string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.core.requests[request]
	return l != nil && l.job != nil
}

func (s *Stepped) spawn(f func()) {
	if s.abandoned {
		return
	}
	t := &task{}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil && p != (abandonment{}) {
				panic(p)
			}
		}()
		t.yield = yield
		f()
	})
	s.tasks = append(s.tasks, t)
}

func (s *Stepped) halt() {
	if t := s.current; t != nil && !t.yield(struct{}{}) {
		panic(abandonment{})
	}
}

func (s *Stepped) wait() {
	s.mu.Unlock()
	defer s.mu.Lock()
	if s.current != nil {
		s.current.waits = true
		s.halt()
		return
	}
	moved := false
	for i := 0; i < len(s.tasks); i++ {
		moved = s.Step(i) || moved
	}
	if !moved {
		panic("cache: every task waits, and so does the caller")
	}
}

func (s *Stepped) tell() {
	for _, t := range s.tasks {
		t.waits = false
	}
}

func (s *Stepped) rest(time.Duration) (open bool) {
	s.halt()
	return !s.closing
}

func (s *Stepped) close() { s.closing = true }

// procs lets two tasks compare at once.
func (s *Stepped) procs() int { return 3 }

func (s *Stepped) after(_ time.Duration, f func()) alarm {
	t := &stepTimer{s, f}
	s.timers = append(s.timers, t)
	return t
}

// Reset sets the deadline anew.
func (t *stepTimer) Reset(time.Duration) bool {
	set := t.Stop()
	t.world.timers = append(t.world.timers, t)
	return set
}

// Stop ends the deadline.
func (t *stepTimer) Stop() bool {
	i := slices.Index(t.world.timers, t)
	if i < 0 {
		return false
	}
	t.world.timers = slices.Delete(t.world.timers, i, i+1)
	return true
}

// steppedContext is one whose deadline passes when the caller says so.
type steppedContext struct {
	context.Context
	passed bool
}

func (c *steppedContext) Err() error {
	if c.passed {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

func (s *Stepped) deadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(ctx)
	c := &steppedContext{Context: inner}
	timer := s.after(d, func() {
		c.passed = true
		cancel()
	})
	return c, func() {
		timer.Stop()
		cancel()
	}
}
