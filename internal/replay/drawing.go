package replay

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

const (
	lineEvery = 5 * time.Second        // plain lines
	drawEvery = 150 * time.Millisecond // the bar
)

// Drawing shows a Progress until it is stopped: a bar on a terminal that knows its size, a
// line every few seconds elsewhere. Before the replay has begun it shows nothing but, if
// that takes long, that it waits. What else is to appear on the same output is written
// through the Drawing, so that neither tears the other.
type Drawing struct {
	progress *Progress
	since    time.Time
	stop     func()

	mu    sync.Mutex
	lines io.Writer // where lines go: the output, or above the bar as long as there is one
}

// Draw starts to show the progress on w.
func (p *Progress) Draw(w io.Writer) *Drawing {
	d := &Drawing{progress: p, since: time.Now(), lines: w}
	if onTerminal(w) {
		bar := barOn{Drawing: d, out: w}
		d.every(drawEvery, bar.draw, bar.end)
	} else {
		d.every(lineEvery, d.line, d.lastLine)
	}
	return d
}

func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return err == nil && width > 0 && height > 0
}

// Stop shows the progress a last time.
func (d *Drawing) Stop() { d.stop() }

// Write shows whole lines.
func (d *Drawing) Write(text []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines.Write(text)
}

// every calls draw at the interval, and end at the stop.
func (d *Drawing) every(interval time.Duration, draw, end func()) {
	quit := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				draw()
			case <-quit:
				end()
				return
			}
		}
	})
	d.stop = sync.OnceFunc(func() {
		close(quit)
		drawing.Wait()
	})
}

// line is a line of the progress, or that there is none yet.
func (d *Drawing) line() {
	if d.progress.begun.Load() == nil {
		fmt.Fprintf(d, "waiting for the server for %.0f s\n", time.Since(d.since).Seconds())
		return
	}
	d.lastLine()
}

func (d *Drawing) lastLine() {
	if begun := d.progress.begun.Load(); begun != nil {
		io.WriteString(d, d.progress.line(time.Since(*begun)))
	}
}

// barOn draws a bar as soon as the replay has begun, and leaves it as it was last.
type barOn struct {
	*Drawing
	out io.Writer

	waited int // intervals of lineEvery that the replay has not begun in
	bars   *mpb.Progress
	bar    *mpb.Bar
}

func (b *barOn) draw() {
	if b.progress.begun.Load() == nil {
		if waited := int(time.Since(b.since) / lineEvery); waited > b.waited {
			b.waited = waited
			b.line()
		}
		return
	}
	if b.bar == nil {
		b.open()
	}
	b.bar.SetTotal(b.progress.total.Load(), false)
	b.bar.SetCurrent(b.progress.done.Load())
}

func (b *barOn) open() {
	p := b.progress
	text := func(show func() string) decor.Decorator {
		return decor.Any(func(decor.Statistics) string { return show() })
	}
	b.bars = mpb.New(mpb.WithOutput(b.out), mpb.WithRefreshRate(drawEvery), mpb.WithAutoRefresh())
	b.bar = b.bars.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(text(p.counted), decor.Name(" ")),
		mpb.AppendDecorators(
			decor.Percentage(decor.WC{W: 5}),
			text(func() string { return "  " + p.left(time.Since(*p.begun.Load())) + "  " + p.found() }),
		),
	)
	b.mu.Lock()
	b.lines = b.bars
	b.mu.Unlock()
}

func (b *barOn) end() {
	if b.progress.begun.Load() == nil {
		return
	}
	b.draw()
	b.bar.SetTotal(b.progress.total.Load(), b.progress.done.Load() >= b.progress.total.Load())
	b.bar.Abort(false)
	b.bars.Wait()
	b.mu.Lock()
	b.lines = b.out
	b.mu.Unlock()
}
