package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/kv"
)

// TestInspectSummary: every namespace is counted by itself, the largest first; what is wrong counts
// for nothing else; what does not fit on a screen is one line.
func TestInspectSummary(t *testing.T) {
	dir := t.TempDir()
	s, err := disk.New(disk.Options{Path: dir, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	put := func(space, chunk byte, rank, group uint16, length int) {
		t.Helper()
		mem := make([]byte, length)
		key := tier.Key{Space: kv.Digest{space}, Chunk: kv.Digest{chunk, 1}, Rank: rank, Group: group}
		check(t, s.Put(t.Context(), []tier.Object{{Key: key, Mem: mem, Sum: xxh3.Hash128(mem)}})[0])
	}
	// 3 chunks of 2 ranks of 2 groups, and 1 chunk of 1 rank of 22 others.
	for chunk := range byte(3) {
		for rank := range uint16(2) {
			for group := range uint16(2) {
				put(0xaa, chunk, rank, group, 5000)
			}
		}
	}
	for space := range byte(22) {
		put(space, space%2, 7, 0, 9000)
	}
	check(t, s.Close())

	var got summary
	read := func(want int) {
		t.Helper()
		code, out, stderr := holdfast("inspect", "--summary", "--json", dir)
		got = summary{}
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != want {
			t.Fatalf("exit %d, %v\n%s\n%s", code, err, out, stderr)
		}
	}
	read(0)
	first, second := got.Spaces[0], got.Spaces[1]
	if len(got.Spaces) != 23 || got.Objects != 34 || got.Bytes != 12*5000+22*9000 || got.Taken != (12*3+22*4)*4096 || got.Wrong != 0 {
		t.Errorf("%+v", got)
	}
	if !strings.HasPrefix(first.Space, "aa0000") || first.Objects != 12 || first.Chunks != 3 || first.Ranks != 2 || first.Groups != 2 ||
		first.Bytes != 60_000 || first.Taken != 12*3*4096 || first.Newest.Before(first.Oldest) || first.Oldest.IsZero() {
		t.Errorf("%+v", first)
	}
	if second.Objects != 1 || second.Chunks != 1 || second.Ranks != 1 || second.Bytes != 9000 {
		t.Errorf("%+v", second)
	}

	files, err := filepath.Glob(filepath.Join(dir, "objects", "*", first.Space+".*"))
	check(t, err)
	check(t, os.Truncate(files[0], 100))
	check(t, os.WriteFile(filepath.Join(dir, "objects/README"), nil, 0o600))
	read(exitFailure)
	if first := got.Spaces[0]; first.Objects != 11 || first.Wrong != 1 || first.Bytes != 55_000 || got.Objects != 33 || got.Wrong != 1 || got.Foreign != 1 {
		t.Errorf("%+v, %+v", got, first)
	}

	code, out, _ := holdfast("inspect", "--summary", dir)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitFailure || len(lines) != 1+screen+1+2 || !strings.HasPrefix(lines[1], first.Space[:16]+" ") || strings.Contains(out, first.Space) {
		t.Errorf("exit %d:\n%s", code, out)
	}
	for _, want := range []string{
		fmt.Sprintf("%-16s  %9d  %9d", "3 others", 3, 3), "not the store's, left alone: 1 files", "33 objects of 247 KiB, not verified", "; 1 wrong, 0 left by a writer, 0 removed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
