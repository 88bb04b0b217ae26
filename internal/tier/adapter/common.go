package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// common are the fields of all kinds.
var common = []field{
	{name: "name", values: "text", doc: "The tier's name in metrics, logs and /status. Default: the type.", set: setName},
	{name: "retries", values: "0 to 20", doc: "How often what may pass (a lost connection, a time that ran out) is tried again, after pauses that double. Default: 2 for valkey and s3, 0 for disk.",
		set: integer(func(s *Spec) *int { return &s.Retries }, 0, 20)},
	{name: "rate_limit_mb", values: "MiB/s, 0 = none", doc: "Most bytes that move per second, both ways together. Default: none.",
		set: number(func(s *Spec, n float64) { s.RateLimit = n * (1 << 20) }, 0, 1<<20)},
	{name: "concurrency", values: "0 to 1024, 0 = none", doc: "Most calls (batches) at once; others wait. Default: none, the type has its own queue.",
		set: integer(func(s *Spec) *int { return &s.Concurrency }, 0, 1024)},
	{name: "timeout", values: "seconds, 0 = none", doc: "Time of one attempt of a call, after which it may be tried again. Default: none; loads have --l2-prefetch-load-timeout.",
		set: seconds(func(s *Spec) *time.Duration { return &s.Timeout }, 0, 3600)},
	{name: "eviction", values: "object", doc: "LMCache's eviction of a tier: eviction_policy, trigger_watermark, eviction_ratio.", set: checkEviction,
		without: "a disk evicts by itself, what is used least recently first, when a put needs room; a server by its own rules"},
	{name: "persist_enabled", values: "true", doc: "LMCache's switch for keeping what was stored. Everything is kept always.", set: checkPersist},
	{name: "shared", values: "true, false", doc: "LMCache's mark of a store that several servers use. Valkey and S3 can always be shared, a disk never.",
		set: yes(func(*Spec, bool) {}), without: "valkey and s3 can be shared by any number of servers, a disk by none"},
	{name: "serde", values: "–", doc: "LMCache's change of the bytes. Refused: tiers keep the engine's bytes as they are.", set: refuseSerde},
	{name: "num_workers", values: "number", doc: "LMCache's threads.", set: anything, without: "a tier has no threads of its own to size"},
	{name: "per_op_workers", values: "object", doc: "LMCache's threads by operation.", set: anything, without: "a tier has no threads of its own to size"},
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func setName(s *Spec, value json.RawMessage) error {
	if json.Unmarshal(value, &s.Name) != nil || !nameRule.MatchString(s.Name) {
		return errors.New("must be 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	return nil
}

func checkEviction(_ *Spec, value json.RawMessage) error {
	var given map[string]json.RawMessage
	if json.Unmarshal(value, &given) != nil {
		return errors.New("must be an object")
	}
	for name := range given {
		switch name {
		case "eviction_policy", "trigger_watermark", "eviction_ratio":
		default:
			return fmt.Errorf("has no field %.50q; it has eviction_policy, trigger_watermark and eviction_ratio", name)
		}
	}
	var policy string
	if p := given["eviction_policy"]; p != nil && json.Unmarshal(p, &policy) != nil {
		return errors.New("has an eviction_policy that is no text")
	}
	switch policy {
	case "", "LRU":
		return nil
	case "IsolatedLRU":
		return errors.New("asks for IsolatedLRU; quotas per tenant are not served, use LRU")
	case "noop":
		return errors.New("asks for noop; a tier that is full evicts what is used least recently, use LRU")
	}
	return errors.New("has an unknown eviction_policy; use LRU")
}

func checkPersist(_ *Spec, value json.RawMessage) error {
	var keep bool
	if json.Unmarshal(value, &keep) != nil {
		return errors.New("must be true")
	}
	if !keep {
		return errors.New("is false, but tiers keep what was stored when the server ends; leave it out, and remove what the store holds afterwards")
	}
	return nil
}

func refuseSerde(*Spec, json.RawMessage) error {
	return errors.New("is refused: tiers keep the engine's bytes as they are and prove them by checksum; there is no quantisation, compression or encryption")
}
