package workload

import (
	"math"
	"os"
	"testing"
	"time"
)

// published are the figures of the Mooncake conversation trace.
var published = Figures{
	Requests: 12031, InputP50: 6909, InputMean: 12035, InputP99: 85401, OutputMean: 343,
	References: 288500, Distinct: 182790, UsedOnce: 0.758, BestHit: 0.366, WithBlock0: 12031,
	GapP50: 114 * time.Second, GapP90: 519 * time.Second, GapP99: 1578 * time.Second,
}

// near demands that got is within a share of want.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: %.4g, want %.4g within %.3g %%", what, got, want, 100*share)
	}
}

// within demands that two shares differ by at most so many points.
func within(t *testing.T, what string, got, want, points float64) {
	t.Helper()
	if math.Abs(got-want) > points {
		t.Errorf("%s: %.4f, want %.4f ± %.4f", what, got, want, points)
	}
}

func TestGeneratedFigures(t *testing.T) {
	for seed := range uint64(4) {
		f := Measure(Generate(seed, HourRequests, Options{}))
		t.Logf("seed %d: %+v", seed, f)
		if f.Requests != published.Requests || f.WithBlock0 != published.WithBlock0 {
			t.Errorf("%d requests, %d with block 0", f.Requests, f.WithBlock0)
		}
		near(t, "input p50", float64(f.InputP50), float64(published.InputP50), 0.10)
		near(t, "input mean", f.InputMean, published.InputMean, 0.10)
		near(t, "input p99", float64(f.InputP99), float64(published.InputP99), 0.10)
		near(t, "output mean", f.OutputMean, published.OutputMean, 0.10)
		near(t, "references", float64(f.References), float64(published.References), 0.10)
		near(t, "distinct blocks", float64(f.Distinct), float64(published.Distinct), 0.10)
		within(t, "used once", f.UsedOnce, published.UsedOnce, 0.03)
		within(t, "best hit", f.BestHit, published.BestHit, 0.02)
		near(t, "gap p50", f.GapP50.Seconds(), published.GapP50.Seconds(), 0.20)
		near(t, "gap p90", f.GapP90.Seconds(), published.GapP90.Seconds(), 0.20)
		near(t, "gap p99", f.GapP99.Seconds(), published.GapP99.Seconds(), 0.20)
		near(t, "span", f.Span.Seconds(), 3537, 0.01)
	}
}

// realTrace is where the published trace may be: it is not part of this repository.
func realTrace() (path string, found bool) {
	if path := os.Getenv("HOLDFAST_TRACE"); path != "" {
		return path, true
	}
	path = "../../../shared/data/conversation_trace.jsonl"
	_, err := os.Stat(path)
	return path, err == nil
}

// TestPublishedFigures checks that Measure means by its words what the publication
// means. Without the published trace there is nothing to check but the generated one.
func TestPublishedFigures(t *testing.T) {
	path, found := realTrace()
	if !found {
		t.Log("source: generated only (set HOLDFAST_TRACE to the published conversation trace to check it too)")
		return
	}
	t.Logf("source: %s", path)
	trace, err := ReadFile(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := Measure(trace)
	t.Logf("%+v", f)
	if f.Requests != published.Requests {
		t.Logf("%s is not the published conversation trace: %d requests", path, f.Requests)
		return
	}
	got := f
	got.Span, got.InputMean, got.OutputMean, got.UsedOnce, got.BestHit = 0, 0, 0, 0, 0
	got.GapP50, got.GapP90, got.GapP99 = f.GapP50.Round(time.Second), f.GapP90.Round(time.Second), f.GapP99.Round(time.Second)
	want := published
	want.InputMean, want.OutputMean, want.UsedOnce, want.BestHit = 0, 0, 0, 0
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	within(t, "input mean", f.InputMean, published.InputMean, 0.5)
	within(t, "output mean", f.OutputMean, published.OutputMean, 0.5)
	within(t, "used once", f.UsedOnce, published.UsedOnce, 0.001)
	within(t, "best hit", f.BestHit, published.BestHit, 0.001)
}

func TestFiguresOfASmallTrace(t *testing.T) {
	trace := []Request{
		{Timestamp: 0, Input: 1024, Output: 10, Blocks: []uint64{0, 1}},
		{Timestamp: 2000, Input: 1100, Output: 20, Blocks: []uint64{0, 1, 2}}, // hits 0 1
		{Timestamp: 5000, Input: 1536, Output: 30, Blocks: []uint64{0, 3, 2}}, // hits 0; 2 is seen, but behind a miss
		{Timestamp: 6000, Input: 512, Output: 40, Blocks: []uint64{4}},        // hits nothing
	}
	got := Measure(trace)
	want := Figures{
		Requests: 4, Span: 6 * time.Second,
		InputP50: 1100, InputMean: 1043, InputP99: 1536, OutputMean: 25,
		References: 9, Distinct: 5, UsedOnce: 2.0 / 5, BestHit: 3.0 / 9, WithBlock0: 3,
		GapP50: 3 * time.Second, GapP90: 3 * time.Second, GapP99: 3 * time.Second, // 2 s, 2 s, 3 s, 3 s
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := Measure(nil); got != (Figures{}) {
		t.Errorf("an empty trace has figures: %+v", got)
	}
}
