package sim

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/invariant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds is how many runs a test makes: fewer where asserting makes each slow.
func seeds(n int) int {
	if invariant.Enabled {
		return max(n/16, 1)
	}
	return n
}

// TestOraclesAreContent runs seeds under every profile, and demands that the runs are worth something: each kind of
// fault, each outcome and each end has happened.
func TestOraclesAreContent(t *testing.T) {
	for _, profile := range Profiles() {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			var sum Result
			stopped, runs := 0, seeds(200)
			tiered := map[bool]Result{} // by whether tiers are asked in place
			failed, err := Sweep(Script{Profile: profile, Steps: 150}, 1, runs, func(r Result) bool {
				if r.Stopped {
					stopped++
				}
				sum.Actions += r.Actions
				sum.Loaded += r.Loaded
				if r.Tiers > 0 {
					of := tiered[r.Indexed]
					of.Put, of.Fetched = of.Put+r.Put, of.Fetched+r.Fetched
					tiered[r.Indexed] = of
				}
				sum.S3[0], sum.S3[1] = sum.S3[0]+r.S3[0], sum.S3[1]+r.S3[1]
				sum.Cleared += r.Cleared
				for f, n := range r.Injected {
					sum.Injected[f] += n
				}
				for i, n := range r.Saves {
					sum.Saves[i] += n
				}
				for i, n := range r.Loads {
					sum.Loads[i] += n
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			if failed != nil {
				t.Fatalf("%v\nreplay: holdfast simulate --replay '%s'", failed.Failure, failed.Script)
			}
			t.Logf("%d actions, %d tokens loaded, %d of %d engines stopped, faults %v", sum.Actions, sum.Loaded, stopped, runs, sum.Injected)
			if sum.Loaded == 0 || sum.Saves[0] == 0 || sum.Loads[0] == 0 {
				t.Errorf("nothing was moved: %d tokens, saves %v, loads %v", sum.Loaded, sum.Saves, sum.Loads)
			}
			for indexed, of := range map[bool]Result{false: tiered[false], true: tiered[true]} {
				t.Logf("tiers, asked in place %v: %d objects put, %d loaded", indexed, of.Put, of.Fetched)
				if (of.Put == 0 || of.Fetched == 0) && !invariant.Enabled {
					t.Errorf("asked in place %v, tiers took %d objects and gave %d", indexed, of.Put, of.Fetched)
				}
			}
			t.Logf("S3: %d objects put, %d loaded", sum.S3[0], sum.S3[1])
			if slices.Contains(sum.S3[:], 0) && !invariant.Enabled {
				t.Errorf("the S3 store took %d objects and gave %d", sum.S3[0], sum.S3[1])
			}
			if (sum.Cleared > 0) != (profile != NoFaults) && !invariant.Enabled {
				t.Errorf("everything was cleared %d times", sum.Cleared)
			}
			if profile != NoFaults && (slices.Contains(sum.Saves[:], 0) || sum.Loads[1] == 0) {
				t.Errorf("outcomes that never came: saves %v, loads %v", sum.Saves, sum.Loads)
			}
			if (stopped > 0) != (profile == AllFaults) && !invariant.Enabled {
				t.Errorf("%d engines were stopped", stopped)
			}
			for f, n := range sum.Injected {
				within := profile == AllFaults || profile == Provable && fault(f) < provableFaults
				if (n > 0) != within && (!within || !invariant.Enabled) {
					t.Errorf("fault %s came %d times", faultNames[f], n)
				}
			}
		})
	}
}

// TestSameSeedSameRun: a run is a function of its script, byte for byte.
func TestSameSeedSameRun(t *testing.T) {
	for seed := range uint64(seeds(20)) {
		script := Script{Seed: seed, Profile: AllFaults, Steps: 100}
		var traces [2]bytes.Buffer
		var results [2]Result
		for i := range results {
			var err error
			if results[i], err = Run(script, &traces[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) || results[0].Digest != results[1].Digest || results[0].Actions != results[1].Actions {
			t.Fatalf("seed %d: two runs differ: %+v and %+v", seed, results[0], results[1])
		}
		untraced, err := Run(script, nil)
		if err != nil || untraced.Digest != results[0].Digest {
			t.Fatalf("seed %d: without a trace the digest is %#x, with one %#x, %v", seed, untraced.Digest, results[0].Digest, err)
		}
		other, err := Run(Script{Seed: seed + 1000, Profile: AllFaults, Steps: 100}, nil)
		if err != nil || other.Digest == results[0].Digest {
			t.Fatalf("seeds %d and %d give the same run, %v", seed, seed+1000, err)
		}
	}
}

// TestDrawsCanBeTakenAway: without any draw a run is the plainest one, and taking away draws that come later
// changes nothing before.
func TestDrawsCanBeTakenAway(t *testing.T) {
	plain, err := Run(Script{Seed: 5, Profile: AllFaults, Steps: 20, Live: []Span{}}, nil)
	if err != nil || plain.Failure != nil {
		t.Fatal(plain.Failure, err)
	}
	same, err := Run(Script{Seed: 6, Profile: AllFaults, Steps: 20, Live: []Span{}}, nil)
	if err != nil || same.Digest != plain.Digest || same.Injected != (Injected{}) {
		t.Fatalf("%+v, want the run %+v of another seed, %v", same, plain, err)
	}
	all, none := choices{seed: 9}, choices{seed: 9, live: []Span{{2, 4}, {6, 7}}}
	for i := range 10 {
		want := all.IntN(1000)
		if i < 2 || i == 4 || i == 5 || i > 6 {
			want = 0
		}
		if got := none.IntN(1000); got != want {
			t.Errorf("draw %d is %d, want %d", i, got, want)
		}
	}
}

func TestScript(t *testing.T) {
	for _, s := range []Script{
		{Seed: 1, Profile: NoFaults, Ranks: 2, Steps: 10},
		{Seed: 1 << 63, Profile: AllFaults, Steps: 1, Live: []Span{}},
		{Profile: Provable, Ranks: 4, Steps: 99, Live: []Span{{3, 4}, {4, 1 << 40}}},
	} {
		got, err := ParseScript(s.String())
		if err != nil || got.String() != s.String() || (got.Live == nil) != (s.Live == nil) {
			t.Errorf("%q is read as %q, %v", s, got, err)
		}
	}
	for _, text := range []string{
		"seed=-1", "seed=x", "ranks=9", "ranks=-1", "steps=-1", "faults=some", "steps=", "draws=-1", "draws=3+0", "draws=1+18446744073709551615", "draws=x+2", "draws=1-2", "speed=3", "seed",
	} {
		if s, err := ParseScript(text); !errors.Is(err, ErrScript) {
			t.Errorf("%q is read as %v, %v", text, s, err)
		}
	}
}

// TestSpans: draws that make no difference go with those beside them.
func TestSpans(t *testing.T) {
	k := shrinking{tells: []bool{true, false, true, true, false, false, true, true}}
	for _, c := range []struct {
		draws []uint64
		want  []Span
	}{
		{nil, []Span{}},
		{[]uint64{0, 2, 3, 6, 7}, []Span{{0, 8}}},
		{[]uint64{0, 3, 6}, []Span{{0, 1}, {3, 7}}},
		{[]uint64{2, 7}, []Span{{2, 3}, {7, 8}}},
	} {
		if got := k.spans(c.draws); !slices.Equal(got, c.want) {
			t.Errorf("%v are %v, want %v", c.draws, got, c.want)
		}
	}
}

func TestTail(t *testing.T) {
	tail := NewTail(2)
	for _, line := range []string{"a\n", "b\n", "c\n"} {
		if n, err := tail.Write([]byte(line)); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	var out bytes.Buffer
	if n, err := tail.WriteTo(&out); n != 4 || err != nil || out.String() != "b\nc\n" {
		t.Errorf("%q, %d, %v", out.String(), n, err)
	}
}

// BenchmarkSimulate reports scheduler, worker and device steps a minute.
func BenchmarkSimulate(b *testing.B) {
	var actions uint64
	for i := range b.N {
		r, err := Run(Script{Seed: uint64(i), Profile: Provable, Steps: 200}, nil)
		if err != nil || r.Failure != nil {
			b.Fatal(r.Failure, err)
		}
		actions += r.Actions
	}
	b.ReportMetric(float64(actions)/b.Elapsed().Minutes(), "actions/min")
}

// FuzzParseScript: what is read is written as something that is read the same.
func FuzzParseScript(f *testing.F) {
	for _, text := range []string{
		"seed=3 faults=none ranks=2 steps=30", "seed=1 draws=", "draws=1,5+4 steps=4", "ranks=x", "", "faults=all faults=none", "draws=0+18446744073709551615",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript(text)
		if err != nil {
			if !errors.Is(err, ErrScript) {
				t.Fatal(err)
			}
			return
		}
		if again, err := ParseScript(s.String()); err != nil || again.String() != s.String() {
			t.Fatalf("%q is written as %q and read as %q, %v", text, s, again, err)
		}
	})
}
