package host

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-kv/holdfast/device"
)

// Device is the software device. Create it with New and close it.
//
// Lock order: turn before mu. Neither is held while a kernel, a copy or Options.Fault runs on
// a concurrent device; on the others turn is, as it is what makes them run one operation at a
// time.
type Device struct {
	options Options

	turn sync.Mutex     // one operation at a time, in deferred and controlled mode
	work sync.WaitGroup // goroutines of streams and crew
	crew crew

	mu        sync.Mutex
	err       error // sticky
	closing   bool
	closed    chan struct{} // closed at the end of Close
	closeErr  error
	streams   []*Stream // those that may have work or get some
	streamIDs int
	unclosed  int // streams not closed by their owner
	events    int // likewise events
	eventIDs  int
	memories  map[*Memory]struct{}
	used      int64 // bytes given out by Alloc
	misuse    []error
	runnable  []*Stream // scratch of pick
}

var _ device.DirectDevice = (*Device)(nil)

// New returns a device. Bad options panic: they are written in the program.
func New(o Options) *Device {
	if o.Mode > Controlled || o.Memory < 0 {
		panic(fmt.Sprintf("host: %s, memory %d", o.Mode, o.Memory))
	}
	if o.Name == "" {
		o.Name = "host"
	}
	d := &Device{options: o, closed: make(chan struct{}), memories: make(map[*Memory]struct{})}
	d.crew.wake.L = &d.crew.mu
	return d
}

// Name returns the name given in the options.
func (d *Device) Name() string { return d.options.Name }

// Mode returns the mode given in the options.
func (d *Device) Mode() Mode { return d.options.Mode }

// Direct returns the option of that name.
func (d *Device) Direct() bool { return d.options.Direct }

// Err returns the sticky error, nil while the device is sound.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Fail makes the device fail at once, as an operation that fails does, with an error that
// wraps device.ErrDevice and cause. Only the first failure counts.
func (d *Device) Fail(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail(cause)
}

// Close runs or, on a failed device, drops what is enqueued, ends all streams, and takes
// back all memory. It reports the sticky error, misuse (see Check) and what was never given
// back (ErrLeak), joined. A later Close returns the same.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		<-d.closed
		return d.closeErr
	}
	d.closing = true
	for _, s := range slices.Clone(d.streams) {
		s.end()
	}
	d.mu.Unlock()
	d.crew.end()
	if d.options.Mode == Concurrent {
		d.work.Wait()
	} else {
		d.runAll()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeErr = errors.Join(d.err, d.check(), d.leaks())
	for m := range d.memories {
		m.release()
	}
	close(d.closed)
	return d.closeErr
}

// call begins every call: it returns the error of a closed or failed device, or the one that
// Options.Fault wants.
func (d *Device) call(k Kind, object string) error {
	d.mu.Lock()
	err := d.usable()
	d.mu.Unlock()
	if err == nil && d.options.Fault != nil {
		err = d.options.Fault(Call{Kind: k, Object: object})
	}
	if err != nil {
		return fmt.Errorf("%s: %s %s: %w", d.options.Name, object, k, err)
	}
	return nil
}

// usable says whether the device takes calls. The caller holds mu.
func (d *Device) usable() error {
	if d.err != nil {
		return d.err
	}
	if d.closing {
		return device.ErrClosed
	}
	return nil
}

// fail makes the device fail: queues are dropped and everybody who waits is woken. The
// caller holds mu.
func (d *Device) fail(cause error) {
	if d.err != nil {
		return
	}
	d.err = fmt.Errorf("%w: %w", device.ErrDevice, cause)
	for _, s := range slices.Clone(d.streams) {
		s.drop()
	}
}

// note tells the trace. The caller holds mu.
func (d *Device) note(p Phase, o Op) {
	if d.options.Trace != nil {
		d.options.Trace(Entry{Phase: p, Op: o})
	}
}
