package replay

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Progress is where a replay is. It may be read and drawn while Run writes it.
type Progress struct {
	begun              atomic.Pointer[time.Time] // nil until the first request may be sent
	total, done        atomic.Int64              // requests
	asked, hit         atomic.Int64              // chunks
	bytes, mismatching atomic.Int64
}

// begin says that all is connected, and how many requests there are.
func (p *Progress) begin(total int) {
	now := time.Now()
	p.total.Store(int64(total))
	p.begun.Store(&now)
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

// counted is the requests so far.
func (p *Progress) counted() string {
	return fmt.Sprintf("%s of %s", countText(p.done.Load()), countText(p.total.Load()))
}

// found is what has come of them.
func (p *Progress) found() string {
	wrong := "mismatches"
	if p.mismatching.Load() == 1 {
		wrong = "mismatch"
	}
	return fmt.Sprintf("hit %.1f %%, %s moved, %s %s",
		100*ratio(float64(p.hit.Load()), float64(p.asked.Load())), bytesText(p.bytes.Load()), countText(p.mismatching.Load()), wrong)
}

// line is all of it, after the given time of play.
func (p *Progress) line(played time.Duration) string {
	return fmt.Sprintf("%s requests after %.0f s, %s\n", p.counted(), played.Seconds(), p.found())
}

// left estimates the rest from what was played so far; after the last request it is the
// time that all took.
func (p *Progress) left(played time.Duration) string {
	done, total := p.done.Load(), p.total.Load()
	switch {
	case done == 0:
		return ""
	case done >= total:
		return "in " + spanText(played.Seconds())
	}
	return spanText(played.Seconds()*float64(total-done)/float64(done)) + " left"
}

// spanText is a time in the largest unit of which there are at least two.
func spanText(seconds float64) string {
	switch {
	case seconds < 120:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.0f h", seconds/3600)
}
