package disk

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioQueue hands reads and writes with O_DIRECT to the kernel (io_submit(2)) and parks who waits
// for them. A goroutine in a plain read or write keeps its processor from all others until the
// runtime notices, which takes longer than a disk takes for a small object: with as many of
// them as there are processors everything else would stand still.
type ioQueue struct {
	context  uintptr
	event    *os.File // counts what has ended, which wakes collect
	requests []ioRequest
	idle     chan *ioRequest // those of requests that are free
	ended    chan struct{}   // closed when collect has ended
}

// ioRequest is one read or write. While the kernel uses it, it and what it points to are reachable
// by Go's pointers, too, and Go's heap does not move.
type ioRequest struct {
	block  ioBlock
	pieces []unix.Iovec
	result chan int64
}

// ioBlock is struct iocb of linux/aio_abi.h.
type ioBlock struct {
	data   uint64 // given back in ioEvent: the request's number
	_      uint64
	how    operation
	_      int16
	file   uint32
	pieces uint64
	count  uint64
	at     int64
	_      uint64
	flags  uint32
	event  uint32
}

// ioEvent is struct io_event of linux/aio_abi.h.
type ioEvent struct {
	data, _   uint64
	result, _ int64
}

// operation is what a request does; the numbers are those of linux/aio_abi.h.
type operation uint16

const (
	ioRead  operation = 7 // IOCB_CMD_PREADV
	ioWrite operation = 8 // IOCB_CMD_PWRITEV
)

// ioTellEvent is IOCB_FLAG_RESFD.
const ioTellEvent = 1

// openQueue makes a queue for n requests at a time.
func openQueue(n int) (*ioQueue, error) {
	q := &ioQueue{requests: make([]ioRequest, n), idle: make(chan *ioRequest, n), ended: make(chan struct{})}
	if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, uintptr(n), uintptr(unsafe.Pointer(&q.context)), 0); e != 0 {
		return nil, fmt.Errorf("io_setup: %w", e)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), q.destroy())
	}
	for i := range q.requests {
		r := &q.requests[i]
		r.block = ioBlock{data: uint64(i), flags: ioTellEvent, event: uint32(event)}
		r.result = make(chan int64, 1)
		q.idle <- r
	}
	q.event = os.NewFile(uintptr(event), "eventfd")
	// Only a file that Go's poller took has deadlines. On another one, for which the system had no
	// room, nobody would ever be woken.
	waiter, err := q.event.SyscallConn()
	if err = errors.Join(err, q.event.SetDeadline(time.Time{})); err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), q.event.Close(), q.destroy())
	}
	go q.collect(waiter)
	return q, nil
}

func (q *ioQueue) destroy() error {
	if _, _, e := unix.Syscall(unix.SYS_IO_DESTROY, q.context, 0, 0); e != 0 {
		return fmt.Errorf("io_destroy: %w", e)
	}
	return nil
}

// collect tells those who wait that their requests have ended, until the queue is closed.
func (q *ioQueue) collect(event syscall.RawConn) {
	defer close(q.ended)
	done := make([]ioEvent, 64)
	// It is never satisfied: each time when it returns it is called after the next event, whose
	// count need not be read.
	_ = event.Read(func(uintptr) (satisfied bool) {
		for {
			n, _, e := unix.Syscall6(unix.SYS_IO_GETEVENTS, q.context, 0, uintptr(len(done)), uintptr(unsafe.Pointer(&done[0])), 0, 0)
			switch {
			case e == unix.EINTR:
				continue
			case e != 0 || n == 0:
				return false
			}
			for _, d := range done[:n] {
				q.requests[d.data].result <- d.result
			}
		}
	})
}

// move moves bytes and returns how many. If it is not more than 0 nothing was moved, for a reason
// that the plain call tells better.
func (q *ioQueue) move(how operation, fd int, pieces [][]byte, at int64) int {
	r := <-q.idle
	for _, p := range pieces {
		v := unix.Iovec{Base: unsafe.SliceData(p)}
		v.SetLen(len(p))
		r.pieces = append(r.pieces, v)
	}
	b := &r.block
	b.how, b.file, b.at = how, uint32(fd), at
	b.pieces, b.count = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.pieces)))), uint64(len(r.pieces))
	n, _, e := unix.Syscall(unix.SYS_IO_SUBMIT, q.context, 1, uintptr(unsafe.Pointer(&b)))
	moved := int64(0)
	if e == 0 && n == 1 {
		moved = <-r.result
	}
	clear(r.pieces)
	r.pieces = r.pieces[:0]
	q.idle <- r
	return int(moved)
}

// close ends the queue; nobody may use it any more.
func (q *ioQueue) close() error {
	err := errors.Join(q.destroy(), q.event.Close())
	<-q.ended
	return err
}
