package worker

import (
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/device"
)

// provision creates what the lane lacks of streams and staging. It lacks all at the
// beginning and after a quarantine.
func (l *lane) provision() error {
	if l.provisioned {
		return nil
	}
	if err := l.create(); err != nil {
		return errors.Join(err, l.dispose())
	}
	l.provisioned = true
	return nil
}

func (l *lane) create() (err error) {
	name := "save"
	if l.load {
		name = "load"
	}
	if l.pack, err = l.dev.NewStream(name + " pack"); err != nil {
		return fmt.Errorf("%w: %w", ErrNoPackStream, err)
	}
	if l.direct {
		return nil
	}
	if l.copy, err = l.dev.NewStream(name + " copy"); err != nil {
		return fmt.Errorf("create the copy stream: %w", err)
	}
	size := l.layout.ChunkBytes(l.layout.Spec().ChunkTokens)
	if l.buf, err = l.dev.Alloc(stagingOwner, size*int64(l.cells)); err != nil {
		return fmt.Errorf("allocate %d staging chunks of %d bytes (StagingChunks, StagingMaxBytes): %w", l.cells, size, err)
	}
	ring := make([]cell, l.cells)
	for i := range ring {
		if ring[i].free, err = l.event(); err != nil {
			for _, c := range ring[:i] {
				err = errors.Join(err, c.free.Close())
			}
			return err
		}
		ring[i].span = device.Span{Mem: l.buf, Off: int64(i) * size, Len: size}
	}
	l.ring = ring
	return nil
}

// dispose gives everything of the lane back. Nothing enqueued may use it any more.
func (l *lane) dispose() (err error) {
	for _, e := range l.idle {
		err = errors.Join(err, e.Close())
	}
	for _, c := range l.ring {
		err = errors.Join(err, c.free.Close())
	}
	if l.buf != nil {
		err = errors.Join(err, l.buf.Free())
	}
	for _, s := range []device.Stream{l.pack, l.copy} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	l.idle, l.ring, l.buf, l.pack, l.copy, l.provisioned = nil, nil, nil, nil, nil, false
	return err
}

// abandon moves everything that the transfer may still be using into quarantine: the
// staging buffer, the events, the fence, the slots and their registrations. The lane is
// provisioned anew for the next transfer. Streams can be closed, as what is enqueued on them
// runs all the same.
func (l *lane) abandon() {
	bytes, what := int64(len(l.slots))*l.job.what().slotBytes, "slots"
	if !l.direct {
		bytes, what = l.buf.Bytes(), "staging"
	}
	l.lost.keep(bytes, l.buf, l.ring, l.own, l.ready, l.slots, l.ticket, l.job)
	l.log.Error("memory is quarantined: the device did not prove that it is done with it",
		"rank", l.rank, "op", l.job.what().op.String(), "memory", what, "bytes", bytes)
	l.ring, l.buf, l.own, l.ready = nil, nil, nil, nil
	if err := l.dispose(); err != nil {
		l.log.Warn("could not close streams", "rank", l.rank, "err", err)
	}
}

// end finishes the job: first it gives back or quarantines what the transfer used, then it
// reports the terminal.
func (l *lane) end(a Action) {
	t := l.job.what()
	if a.Kind == Hold || a.Unproven {
		l.abandon()
	} else if err := l.giveBack(t); err != nil {
		l.log.Warn("could not give device objects back", "rank", l.rank, "op", t.op.String(), "err", err)
	}
	now := l.now()
	l.profile(a, now)
	l.books(func(c *Core) {
		switch {
		case a.Save != nil:
			c.SaveDone(*a.Save, now)
		case a.Load != nil:
			c.LoadDone(*a.Load, now)
		}
	})
	l.job, l.action, l.ticket, l.slots, l.spans, l.used = nil, Action{}, nil, nil, nil, 0
}

// giveBack returns the events of the transfer, its fence and its registrations.
func (l *lane) giveBack(t *task) error {
	err := t.fence.release()
	for _, m := range l.own {
		err = errors.Join(err, m.Free())
	}
	for _, e := range l.ready {
		if e != nil {
			l.idle = append(l.idle, e)
		}
	}
	l.own, l.ready = nil, nil
	return err
}
