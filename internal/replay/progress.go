package replay

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// Progress is where a replay is. It may be read and drawn while Run writes it.
type Progress struct {
	total, done        atomic.Int64 // requests
	asked, hit         atomic.Int64 // chunks
	bytes, mismatching atomic.Int64
}

// ended counts a request.
func (p *Progress) ended(asked, hit int) {
	p.asked.Add(int64(asked))
	p.hit.Add(int64(hit))
	p.done.Add(1)
}

// moved counts bytes that were stored or loaded, and chunks among them that were wrong.
func (p *Progress) moved(bytes int64, wrong int) {
	p.bytes.Add(bytes)
	p.mismatching.Add(int64(wrong))
}

// text is the state in a line, without the requests.
func (p *Progress) text() string {
	return fmt.Sprintf("hit %.1f %%, %s moved, %d mismatches",
		100*ratio(float64(p.hit.Load()), float64(p.asked.Load())), bytesText(p.bytes.Load()), p.mismatching.Load())
}

func (p *Progress) line(since time.Duration) string {
	return fmt.Sprintf("%s of %s requests after %.0f s, %s\n",
		countText(p.done.Load()), countText(p.total.Load()), since.Seconds(), p.text())
}

const (
	lineEvery = 5 * time.Second        // plain lines
	drawEvery = 150 * time.Millisecond // the bar
)

// Draw shows the progress on f until stop is called: a bar on a terminal that knows its
// size, a line every few seconds elsewhere.
func (p *Progress) Draw(f *os.File) (stop func()) {
	if width, height, err := term.GetSize(int(f.Fd())); err != nil || width < 1 || height < 1 {
		return p.drawLines(f, lineEvery)
	}
	return p.drawBar(f)
}

// drawLines writes a line at every interval and a last one at the end.
func (p *Progress) drawLines(w io.Writer, every time.Duration) (stop func()) {
	begin := time.Now()
	quit := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				io.WriteString(w, p.line(time.Since(begin)))
			case <-quit:
				io.WriteString(w, p.line(time.Since(begin)))
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(quit)
		drawing.Wait()
	})
}

// drawBar draws and leaves the bar as it was last.
func (p *Progress) drawBar(w io.Writer) (stop func()) {
	bars := mpb.New(mpb.WithOutput(w), mpb.WithRefreshRate(drawEvery))
	bar := bars.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d requests ")),
		mpb.AppendDecorators(
			decor.Percentage(decor.WC{W: 5}),
			decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8}),
			decor.Any(func(decor.Statistics) string { return "  " + p.text() }),
		),
	)
	update := func() {
		bar.SetTotal(p.total.Load(), false)
		bar.SetCurrent(p.done.Load())
	}
	quit := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(drawEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				update()
			case <-quit:
				update()
				bar.SetTotal(p.total.Load(), p.done.Load() >= p.total.Load())
				bar.Abort(false)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(quit)
		drawing.Wait()
		bars.Wait()
	})
}
