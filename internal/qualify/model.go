package qualify

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/engine"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
)

const generated = 6 // tokens

// answer is all that a request of the reference engine gave.
type answer struct {
	tokens []uint32
	logits []uint64 // a checksum of the bits for each token
	info   engine.Info
}

func (a answer) equal(b answer) bool {
	return slices.Equal(a.tokens, b.tokens) && slices.Equal(a.logits, b.logits)
}

// modelRun has the reference engine answer a prompt cold, from its own prefix cache and from the store, for every layout of
// KV that it has, on one rank and on two.
func modelRun(r *row) {
	fp8 := engine.Tiny()
	fp8.KV = kv.Float8E4M3
	runs, checksums := 0, map[string]string{}
	for _, m := range []struct {
		name  string
		model engine.ModelConfig
	}{{"gqa-bf16", engine.Tiny()}, {"gqa-fp8", fp8}, {"mla-bf16", engine.Tiny().WithMLA()}} {
		for _, ranks := range []int{1, 2} {
			name := fmt.Sprintf("%s on %d", m.name, ranks)
			checksums[name] = fmt.Sprintf("%016x", r.answers(name, m.model, ranks))
			runs++
		}
	}
	r.saw("%d runs (GQA in BF16 and FP8 with scales, MLA; 1 and 2 ranks), %d tokens each: tokens and logits' bits of cold, HBM hit and host hit equal those without a cache",
		runs, generated)
	r.evidence["logits"] = checksums
}

// answers makes one run and returns a checksum of its tokens and logits.
func (r *row) answers(name string, m engine.ModelConfig, ranks int) uint64 {
	chunk := r.house.chunk
	rng := rand.New(rand.NewPCG(r.o.Seed, hash64(name)))
	prompt := make([]uint32, 2*chunk+chunk/2+1)
	for i := range prompt {
		prompt[i] = rng.Uint32N(uint32(m.Vocab))
	}
	r.rigs++
	m.Name = r.house.run + "-" + r.name
	block := blockSize(chunk)
	cfg := engine.Config{
		Model: m, Ranks: ranks, BlockSize: block, Blocks: 8 * chunk / block, PrefillTokens: chunk - chunk/4,
		Device: func(rank int) *host.Device { return host.New(r.o.device(rank)) },
	}

	alone := cfg
	alone.NoPrefixCache, alone.PrefillTokens = true, len(prompt)
	want := r.asked(alone, prompt, 1)[0]

	spec := m.Spec(ranks, block, chunk)
	model, err := spec.Namespace()
	r.must(err)
	bytes, err := engine.ChunkBytes(spec)
	r.must(err)
	s, err := r.house.open(r.ctx, model, r.rigs, ranks, bytes, block)
	r.must(err)
	defer func() { r.must(s.close()) }()
	cfg.Lookups, cfg.Stores, cfg.Offload = s.lookups, s.ranks, offload.Config{MinLoadTokens: -1, Log: r.o.Log}
	got := r.asked(cfg, prompt, 3)
	for i, what := range []string{"cold", "HBM hit", "host hit"} {
		r.demand(got[i].equal(want), "%s, %s: tokens %v, logits %x; without a cache %v, %x", name, what, got[i].tokens, got[i].logits, want.tokens, want.logits)
	}
	cold, hbm, host := got[0].info, got[1].info, got[2].info
	r.demand(cold.PrefixHits+cold.Loaded == 0, "%s: the cold run was not cold: %+v", name, cold)
	r.demand(hbm.PrefixHits > 0 && hbm.Loaded == 0, "%s: the second run hit %+v", name, hbm)
	r.demand(host.PrefixHits == 0 && host.Loaded == 2*chunk, "%s: the third run hit %+v", name, host)
	err = s.check()
	r.demand(err == nil, "%s: %v", name, err)
	h := xxh3.New()
	_, _ = fmt.Fprint(h, want.tokens, want.logits) // never fails
	return h.Sum64()
}

// asked runs an engine that answers the same prompt several times. Before the last, its prefix cache is emptied.
func (r *row) asked(cfg engine.Config, prompt []uint32, times int) (answers []answer) {
	e, err := engine.New(cfg)
	r.must(err)
	defer func() { r.must(e.Close(r.ctx)) }()
	for i := range times {
		if i == times-1 {
			e.ClearPrefixCache()
		}
		q, err := e.Submit(fmt.Sprintf("r%d", i+1), prompt, generated, "")
		r.must(err)
		r.must(e.Run(r.ctx))
		r.must(e.Check())
		answers = append(answers, answer{q.Generated(), q.Logits(), q.Info()})
	}
	return answers
}
