package offload_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
)

// journal is a log that can be read back.
type journal struct{ text bytes.Buffer }

func (j *journal) at(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(&j.text, &slog.HandlerOptions{Level: level}))
}

// lines takes the lines so far.
func (j *journal) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	for dec := json.NewDecoder(&j.text); dec.More(); {
		var line map[string]any
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	j.text.Reset()
	return all
}

// TestEveryTagIsWritten follows requests through everything that has a tag (§9.4): a save, a load, one that is not
// worth it, and one that takes over from prefill.
func TestEveryTagIsWritten(t *testing.T) {
	var j journal
	cfg := offload.Config{MinLoadTokens: 8, Log: j.at(slog.LevelDebug)}
	e := newEngine(t, setup{cfg: cfg})
	first := e.submit("first", prompt(6, 1))
	started(e, first, 6) // two tokens of the next chunk are in HBM
	handing := e.submit("a", prompt(21, 1))
	e.tier.put(handing, 20)
	for range 3 {
		e.step()
	}
	small := e.submit("b", prompt(9, 100))
	e.tier.put(small, 4)
	e.step()
	e.finishTransfers()
	e.poll()
	e.drain()
	seen := map[string]map[string]any{}
	for _, line := range j.lines(t) {
		if msg := line["msg"].(string); strings.HasPrefix(msg, "[") {
			seen[msg] = line
		}
	}
	for tag, fields := range map[string][]string{
		"[OFFLOAD-LOOKUP]":             {"request", "asked", "hit", "hbm"},
		"[OFFLOAD-ALLOC]":              {"request", "blocks", "hbm", "tier"},
		"[OFFLOAD-BUILD]":              {"build", "loads", "saves", "inflight"},
		"[OFFLOAD-LOAD-SKIP]":          {"request", "reason", "hbm", "tier"},
		"[OFFLOAD-LOAD-EMIT]":          {"request", "operation", "from", "to"},
		"[OFFLOAD-LOAD-HANDOFF]":       {"request", "boundary", "hbm", "tier"},
		"[OFFLOAD-LOAD-HANDOFF-READY]": {"request", "boundary"},
		"[OFFLOAD-SAVE-EMIT]":          {"request", "operation", "from", "to", "late"},
		"[OFFLOAD-WAKE]":               {"request", "operation", "ok", "finished"},
		"[OFFLOAD-PROMOTE]":            {"request", "from", "computed"},
	} {
		line, ok := seen[tag]
		if !ok {
			t.Errorf("no line with %s", tag)
		}
		for _, f := range fields {
			if _, has := line[f]; ok && !has {
				t.Errorf("%s lacks %s: %v", tag, f, line)
			}
		}
	}
}

// TestLeasesAreToldEveryMinute: while transfers run, at most so often.
func TestLeasesAreToldEveryMinute(t *testing.T) {
	var j journal
	e := newEngine(t, setup{ranks: 2, prefill: 16, cfg: offload.Config{Log: j.at(slog.LevelInfo)}})
	build := func(after time.Duration) []map[string]any {
		e.now = e.now.Add(after)
		e.build()
		return j.lines(t)
	}
	if lines := build(time.Hour); len(lines) != 0 {
		t.Errorf("without transfers: %v", lines)
	}
	q := e.submit("a", prompt(12, 1))
	started(e, q, 12)
	e.finish(q)
	e.read(e.ranks[0], e.ranks[0].saves[0], false)
	e.read(e.ranks[1], e.ranks[1].saves[0], false)
	e.poll()
	j.lines(t)
	if lines := build(59 * time.Second); len(lines) != 0 {
		t.Errorf("within the minute: %v", lines)
	}
	lines := build(time.Second)
	if len(lines) != 1 {
		t.Fatalf("after a minute: %v", lines)
	}
	for name, want := range map[string]any{
		"msg": "save leases", "level": "INFO", "inflight": 1.0, "owners": 1.0, "block_maps": 1.0, "leases": 1.0, "leased_blocks": 4.0,
		"retry_blocked": 0.0, "quiescent": 0.0, "active_loads": 0.0, "released": 2.0,
	} {
		if lines[0][name] != want {
			t.Errorf("%s is %v, want %v", name, lines[0][name], want)
		}
	}
	for _, r := range e.ranks {
		for r.saves[0].at > 0 {
			e.read(r, r.saves[0], false)
		}
	}
	e.poll()
	j.lines(t)
	if lines = build(time.Minute); len(lines) != 1 || lines[0]["quiescent"] != 1.0 || lines[0]["leases"] != 0.0 {
		t.Errorf("all is read, and the store has not answered: %v", lines)
	}
	end(e, succeeded, succeeded)
	e.drain()
	j.lines(t)
	if lines = build(time.Hour); len(lines) != 0 {
		t.Errorf("when all is over: %v", lines)
	}
}
