package bench

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// processors is which threads run where.
type processors struct {
	copies *unix.CPUSet // of the stream of copies; nil = wherever the kernel puts it
}

// apart gives the stream of copies the last processor for itself until the end of the
// benchmark, and all other threads of this process, and what it starts meanwhile, the other
// processors.
func apart(b *testing.B) processors {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		b.Fatal(err)
	}
	if all.Count() < 2 {
		b.Fatal("a stream of copies with a processor of its own needs two processors")
	}
	last := len(all)*strconv.IntSize - 1
	for !all.IsSet(last) {
		last--
	}
	others, copies := all, new(unix.CPUSet)
	others.Clear(last)
	copies.Set(last)
	pinThreads(b, &others)
	b.Cleanup(func() { pinThreads(b, &all) })
	return processors{copies}
}

// pinThreads lets every thread of the process run on these processors only. New threads
// inherit that; two rounds, for one that was being made by another not yet reached.
func pinThreads(b *testing.B, set *unix.CPUSet) {
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			b.Fatal(err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				b.Fatal(err)
			}
			if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
				b.Fatal(err)
			}
		}
	}
}

// stream runs what comes, one after the other, on a thread of its own.
func (p processors) stream(b *testing.B) chan<- func() {
	work, ready := make(chan func(), 2), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		var err error
		if p.copies != nil {
			err = unix.SchedSetaffinity(0, p.copies)
		}
		ready <- err
		for f := range work {
			f()
		}
	}()
	b.Cleanup(func() { close(work) })
	if err := <-ready; err != nil {
		b.Fatal(err)
	}
	return work
}
