package workload

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGenerateIsDeterministic(t *testing.T) {
	a, b := Generate(7, 500, Options{}), Generate(7, 500, Options{})
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("the same seed gave two traces:\n%s", d)
	}
	if cmp.Equal(a, Generate(8, 500, Options{})) {
		t.Error("two seeds gave the same trace")
	}
	// Pinned, so that a change of the generator or of a library under it is noticed.
	var got []string
	for _, r := range Generate(1, 4, Options{}) {
		got = append(got, fmt.Sprint(r.Timestamp, r.Input, r.Output, r.Blocks[0], r.Blocks[len(r.Blocks)-1]))
	}
	want := []string{"0 834 354 0 1", "561 111725 298 0 219", "619 12571 551 0 243", "1045 2545 104 0 247"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestGenerateIsATraceAtAnySize(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100, 1000} {
		for seed := range uint64(5) {
			checkTrace(t, Generate(seed, n, Options{}), n)
		}
	}
	if got := Generate(1, 0, Options{}); got != nil {
		t.Errorf("no requests gave %v", got)
	}
}

// checkTrace reads the trace back from its written form, which validates every line
// and their order, and checks that an id always stands behind the same prefix.
func checkTrace(t *testing.T, trace []Request, n int) {
	t.Helper()
	var file []byte
	for _, r := range trace {
		file = r.Append(file)
	}
	back, err := Read(bytes.NewReader(file), "generated", 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(trace, back); d != "" || len(trace) != n {
		t.Fatalf("%d requests, want %d; written and read back:\n%s", len(trace), n, d)
	}
	before := make(map[uint64]uint64)
	for _, r := range trace {
		if r.Blocks[0] != 0 || r.Input < minInput || r.Input > maxInput || r.Output < 1 || r.Output > maxOutput {
			t.Fatalf("request out of the model's range: %+v", r)
		}
		for i, b := range r.Blocks[1:] {
			if prev, ok := before[b]; ok && prev != r.Blocks[i] {
				t.Fatalf("block %d stands behind %d and behind %d", b, prev, r.Blocks[i])
			}
			before[b] = r.Blocks[i]
		}
	}
}

func TestALongerSpanBringsConversationsBack(t *testing.T) {
	short := Measure(Generate(3, 300, Options{}))
	long := Measure(Generate(3, 300, Options{Span: time.Hour}))
	if long.BestHit < short.BestHit+0.1 {
		t.Errorf("best hit %.3f over an hour, %.3f over %v", long.BestHit, short.BestHit, short.Span)
	}
}

func TestTokensDependOnTheBlockAlone(t *testing.T) {
	a := Tokens(nil, 42, BlockTokens)
	if got := Tokens(nil, 42, 100); !cmp.Equal(got, a[:100]) {
		t.Error("a shorter block does not begin like the whole")
	}
	seen := make(map[string]uint64)
	for block := range uint64(2000) {
		tokens := Tokens(nil, block, 16)
		for _, token := range tokens {
			if token >= Vocabulary {
				t.Fatalf("token %d is outside the vocabulary", token)
			}
		}
		var key []byte
		for _, token := range tokens {
			key = append(key, byte(token), byte(token>>8), byte(token>>16))
		}
		if other, dup := seen[string(key)]; dup {
			t.Fatalf("blocks %d and %d begin alike", other, block)
		}
		seen[string(key)] = block
	}
	r := Request{Input: BlockTokens + 3, Blocks: []uint64{42, 43}}
	if got, want := r.Prompt(nil), Tokens(append([]uint32(nil), a...), 43, 3); !cmp.Equal(got, want) {
		t.Error("the prompt is not its blocks' tokens in order")
	}
}

func BenchmarkTokens(b *testing.B) {
	buf := make([]uint32, 0, BlockTokens)
	b.SetBytes(4 * BlockTokens)
	for i := 0; b.Loop(); i++ {
		buf = Tokens(buf[:0], uint64(i), BlockTokens)
	}
}
