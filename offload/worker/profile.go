package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
)

// profile is where the time of one transfer went.
type profile struct {
	began time.Time
	spent [actionKinds]time.Duration
}

// profile writes the transfer's line: debug if it went well, else a warning or an error.
func (l *lane) profile(a Action, now time.Time) {
	t := l.job.what()
	level, err, bytes := slog.LevelDebug, error(nil), int64(0)
	switch {
	case a.Save != nil:
		err, bytes = a.Save.Err, a.Save.Bytes
	case a.Load != nil:
		err, bytes = a.Load.Err, a.Load.Bytes
	}
	if a.Kind == Hold {
		level = slog.LevelError
	} else if err != nil {
		level = slog.LevelWarn
	}
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	ms := func(kinds ...ActionKind) float64 {
		var d time.Duration
		for _, k := range kinds {
			d += l.prof.spent[k]
		}
		return float64(d.Microseconds()) / 1000
	}
	moved := l.prof.spent[FenceStream] + l.prof.spent[Enqueue] + l.prof.spent[AwaitSource] + l.prof.spent[DrainStreams]
	gbps := 0.0
	if moved > 0 {
		gbps = float64(bytes) / moved.Seconds() / 1e9
	}
	attrs := []any{
		"rank", l.rank, "op", t.op.String(), "from", t.rg.From, "to", t.rg.To, "chunks", t.chunks(),
		"slots", len(l.slots), "bytes", bytes, "slot_bytes", t.slotBytes, "direct", l.direct, "staging_chunks", l.cells,
		"prepare_ms", ms(Prepare), "enqueue_ms", ms(FenceStream, Enqueue), "source_ms", ms(AwaitSource), "sync_ms", ms(DrainStreams),
		"transfer_ms", ms(FenceStream, Enqueue, AwaitSource, DrainStreams), "effective_gbps", gbps,
		"store_ms", ms(Prepare, Commit, Abort, EndLoad), "total_ms", float64(now.Sub(l.prof.began).Microseconds()) / 1000,
	}
	if a.Save != nil {
		attrs = append(attrs, "outcome", a.Save.Outcome.String(), "producer_fenced", a.Save.Fenced)
	}
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	tag := offload.TagSaveProfile
	if t.load {
		tag = offload.TagLoadProfile
	}
	l.log.Log(context.Background(), level, tag+" "+a.Kind.String(), attrs...)
}
