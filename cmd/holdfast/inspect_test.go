package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// diskWith makes a disk store's directory with n objects and returns their files.
func diskWith(t *testing.T, n int) (dir string, files []string) {
	t.Helper()
	dir = t.TempDir()
	s, err := disk.New(disk.Options{Path: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		mem := []byte(strings.Repeat(fmt.Sprint(i), 5000))
		o := tier.Object{Key: tier.Key{Chunk: [32]byte{byte(i), 1}, Rank: uint16(i)}, Mem: mem, Sum: xxh3.Hash128(mem)}
		if err := s.Put(context.Background(), []tier.Object{o})[0]; err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for path := range tree(t, dir) {
		if strings.Contains(path, "/objects/") {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	return dir, files
}

// tree is every file below a directory, with its bytes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// inspectJSON runs `holdfast inspect --json`.
func inspectJSON(t *testing.T, args ...string) (code int, r disk.Report) {
	t.Helper()
	code, out, stderr := holdfast(append([]string{"inspect", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr)
	}
	return code, r
}

// TestInspect: what is there is listed, and everything that is wrong is told of by its kind; it is
// removed on request only, and then nothing is wrong.
func TestInspect(t *testing.T) {
	dir, files := diskWith(t, 6)
	if code, r := inspectJSON(t, "--verify", dir); code != 0 || len(r.Objects) != 6 || r.Bytes != 30_000 || r.Wrong != 0 || !r.Verified {
		t.Fatalf("exit %d, %+v", code, r)
	}
	code, out, _ := holdfast("inspect", dir)
	if code != 0 || strings.Count(out, "5000 B") != 6 || !strings.Contains(out, filepath.Base(files[0])) || !strings.Contains(out, "6 objects of 29 KiB, not verified") {
		t.Fatalf("exit %d:\n%s", code, out)
	}

	flip(t, files[0], 4096+17)                   // in the object
	flip(t, files[1], 40)                        // in the header
	check(t, os.Truncate(files[2], 5000))        // too short
	misnamed := filepath.Join(dir, "objects/ff") // in the wrong directory
	check(t, os.Mkdir(misnamed, 0o700))
	check(t, os.Rename(files[3], filepath.Join(misnamed, filepath.Base(files[3]))))
	check(t, os.WriteFile(filepath.Join(dir, "tmp/17"), make([]byte, 9000), 0o600))
	foreign := filepath.Join(dir, "objects/00/README")
	check(t, os.WriteFile(foreign, []byte("not ours"), 0o600))

	before := tree(t, dir)
	if code, r := inspectJSON(t, dir); code != exitFailure || r.Wrong != 2 || r.Leftover != 1 || len(r.Foreign) != 1 {
		t.Errorf("without reading: exit %d, %d wrong, foreign %q", code, r.Wrong, r.Foreign)
	}
	code, r := inspectJSON(t, "--verify", dir)
	problems := make(map[string]int)
	for _, f := range append(r.Objects, r.Others...) {
		kind, _, _ := strings.Cut(f.Problem, ":")
		problems[kind]++
	}
	want := map[string]int{"": 3, "object is corrupt": 2, "truncated": 1, "in the wrong directory": 1}
	if code != exitFailure || !maps.Equal(problems, want) {
		t.Errorf("exit %d, problems %v, want %v", code, problems, want)
	}
	if !maps.Equal(before, tree(t, dir)) {
		t.Error("without --repair something was changed")
	}
	if code, r := inspectJSON(t, "--repair", dir); code != 0 || r.Wrong != 4 || r.Leftover != 1 || r.Removed != 5 {
		t.Errorf("repair: exit %d, %d wrong, %d removed", code, r.Wrong, r.Removed)
	}
	if code, r := inspectJSON(t, "--verify", dir); code != 0 || len(r.Objects) != 2 || r.Wrong != 0 || len(r.Others) != 0 {
		t.Errorf("after the repair: exit %d, %+v", code, r)
	}
	if text, err := os.ReadFile(foreign); string(text) != "not ours" || err != nil {
		t.Errorf("a foreign file was touched: %q, %v", text, err)
	}
}

// TestInspectAfterAKill: what a killed server was writing is no damage.
func TestInspectAfterAKill(t *testing.T) {
	dir, _ := diskWith(t, 2)
	left := filepath.Join(dir, "tmp/17")
	check(t, os.WriteFile(left, make([]byte, 9000), 0o600))
	for _, args := range [][]string{{"inspect", dir}, {"inspect", "--summary", dir}, {"inspect", "--verify", dir}} {
		code, out, stderr := holdfast(args...)
		if code != 0 || stderr != "" || !strings.Contains(out, "; 0 wrong, 1 left by a writer, 0 removed") {
			t.Errorf("%q: exit %d, %q\n%s", args, code, stderr, out)
		}
	}
	code, out, _ := holdfast("inspect", "--repair", dir)
	if code != 0 || !strings.Contains(out, "left by a writer (removed): tmp/17") || !strings.Contains(out, "0 wrong, 1 left by a writer, 1 removed") {
		t.Errorf("repair: exit %d\n%s", code, out)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path string, at int) {
	t.Helper()
	text, err := os.ReadFile(path)
	check(t, err)
	text[at] ^= 1
	check(t, os.WriteFile(path, text, 0o600))
}

// TestInspectWhileAServerRuns: it may be looked at, and is not repaired; the owner is named.
func TestInspectWhileAServerRuns(t *testing.T) {
	dir, _ := diskWith(t, 3)
	if _, r := inspectJSON(t, dir); r.Owner != "" {
		t.Errorf("nobody has it open, and it is in use by %q", r.Owner)
	}
	s, err := disk.New(disk.Options{Path: dir, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer s.Close()
	owner := fmt.Sprintf("process %d ", os.Getpid())
	if code, r := inspectJSON(t, "--verify", dir); code != 0 || len(r.Objects) != 3 || !strings.Contains(r.Owner, owner) {
		t.Errorf("exit %d, %d objects, in use by %q", code, len(r.Objects), r.Owner)
	}
	before := tree(t, dir)
	code, out, stderr := holdfast("inspect", "--repair", dir)
	if code != exitFailure || out != "" || !strings.Contains(stderr, owner) || !strings.Contains(stderr, ": stop it, or leave out --repair") {
		t.Errorf("repair: exit %d, %q, %q", code, out, stderr)
	}
	if !maps.Equal(before, tree(t, dir)) {
		t.Error("something was changed")
	}
}

// TestInspectOfNoStore: a wrong PATH is told so.
func TestInspectOfNoStore(t *testing.T) {
	other := t.TempDir()
	check(t, os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitUsage, "give one PATH"},
		{[]string{"a", "b"}, exitUsage, "give one PATH"},
		{[]string{"/does/not/exist"}, exitFailure, "no such file"},
		{[]string{t.TempDir()}, exitFailure, "not a holdfast disk store"},
		{[]string{"--repair", other}, exitFailure, "not a holdfast disk store"},
	} {
		code, out, stderr := holdfast(append([]string{"inspect"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) || out != "" {
			t.Errorf("%q: exit %d, %q, %q", c.args, code, out, stderr)
		}
	}
	if len(tree(t, other)) != 1 {
		t.Error("a foreign directory was changed")
	}
}
