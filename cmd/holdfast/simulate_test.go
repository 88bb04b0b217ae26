package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSimulate(t *testing.T) {
	code, out, progress := holdfast("simulate", "--seeds", "5", "--first-seed", "40", "--steps", "60", "--ranks", "2", "--json")
	if code != 0 {
		t.Fatalf("exit status %d\n%s\n%s", code, out, progress)
	}
	var r simulated
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Runs != 5 || r.FirstSeed != 40 || r.Steps < 5*60 || r.Actions == 0 || r.Requests == 0 || r.Saves["succeeded"] == 0 || r.Failure != nil {
		t.Errorf("%+v", r)
	}
	code, out, _ = holdfast("simulate", "--seeds", "2", "--faults", "none")
	if code != 0 || !strings.Contains(out, "runs      2 from seed 1") || !strings.Contains(out, "stopped   0 engines") {
		t.Errorf("exit status %d\n%s", code, out)
	}
}

// TestSimulateReplays: a script is run as it stands, with a trace.
func TestSimulateReplays(t *testing.T) {
	code, out, trace := holdfast("simulate", "--replay", "seed=3 faults=none ranks=2 steps=30")
	if code != 0 || !strings.Contains(out, "runs      1 from seed 3") || !strings.Contains(trace, "device runs compute/1 launch forward") {
		t.Errorf("exit status %d\n%s\n%.500s", code, out, trace)
	}
}

func TestSimulateRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--seeds", "0"}, "--seeds=0"},
		{[]string{"--steps", "0"}, "--steps=0"},
		{[]string{"--ranks", "9"}, "--ranks=9"},
		{[]string{"--faults", "some"}, `fault profile "some"`},
		{[]string{"--replay", "seed=x"}, "seed=x"},
		{[]string{"--replay", "seed=1 ranks=99"}, "ranks=99"},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		if code, _, text := holdfast(append([]string{"simulate"}, c.args...)...); code != exitUsage || !strings.Contains(text, c.want) {
			t.Errorf("%v: exit status %d, %s", c.args, code, text)
		}
	}
}
