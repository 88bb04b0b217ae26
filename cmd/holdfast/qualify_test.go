package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/qualify"
)

func TestQualify(t *testing.T) {
	file := filepath.Join(t.TempDir(), "evidence.json")
	code, out, progress := holdfast("qualify", "--row", "reload", "--row", "reload-mla", "--store", "server", "--seed", "3", "--json", file)
	if code != 0 || !strings.Contains(out, "\n2 passed, 0 failed") || !strings.Contains(progress, "2/2 reload-mla") {
		t.Fatalf("exit status %d\n%s\n%s", code, out, progress)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r qualify.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Seed != 3 || r.Server != "embedded" || r.Build.Version == "" || r.Rows[0].Evidence["checksums_loaded"] == nil {
		t.Errorf("%s", text)
	}
}

func TestQualifyPrintsJSON(t *testing.T) {
	code, out, progress := holdfast("qualify", "--row", "reload", "--json", "-")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, progress)
	}
	var r qualify.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Passed != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestQualifyFails: a claim that is not shown in time does not hold.
func TestQualifyFails(t *testing.T) {
	code, out, progress := holdfast("qualify", "--row", "model", "--timeout", "1us")
	if code != exitFailure || !strings.Contains(out, "**FAIL**") || !strings.Contains(progress, "1 of 1 claims do not hold") {
		t.Errorf("exit status %d\n%s\n%s", code, out, progress)
	}
}

func TestQualifyRefuses(t *testing.T) {
	for _, c := range []struct {
		args, want string
	}{
		{"qualify --device cuda", `device "cuda"`},
		{"qualify --store disk", `store "disk"`},
		{"qualify --server tcp://localhost:1", `--server=tcp://localhost:1: the store is local; add --store server, or leave --server out`},
		{"qualify --store server --server foo:bar", "--server=foo:bar: bad endpoint"},
		{"qualify --row everything", `row "everything"`},
		{"qualify reload", `unexpected argument "reload"`},
	} {
		if code, out, errs := holdfast(strings.Fields(c.args)...); code != exitUsage || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%s: exit status %d, %s%s", c.args, code, errs, out)
		}
	}
}
