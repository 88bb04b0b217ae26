package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
)

// maxTiers is how many tiers a cache takes.
const maxTiers = adapter.MaxSpecs

func tierSettings() []Setting {
	return []Setting{
		{Name: "disk-path",
			Doc:   "Directory of a disk tier behind memory, on this node and for this server alone. It is made if it is missing; it must be empty or have been a tier. What it holds survives restarts. Default: no disk.",
			value: text{field: func(c *Serve) *string { return &c.DiskPath }}},
		{Name: "disk-size-gb", Unit: "GiB",
			Doc:   "Size of the disk tier in GiB: the most that it takes, which is never passed; what is used least recently makes room. Default: all of the file system but 1 GiB, or 2 % if that is less.",
			value: gibibytes{func(c *Serve) *int64 { return &c.DiskBytes }}},
		{Name: "disk-sync", Default: "data",
			Doc:   "What a power failure may cost. none: what was put in the last half minute. data: some of the last seconds. full: nothing. None of them ever gives a wrong byte, and a crash of the server costs nothing.",
			value: choice{field: func(c *Serve) *string { return &c.DiskSync }, allowed: []string{"none", "data", "full"}}},
		{Name: "disk-queue-depth", Default: "16",
			Doc:   "How many objects are read from the disk tier at a time, and how many are written.",
			value: integer{func(c *Serve) *int { return &c.DiskQueueDepth }, 1, 1024}},
		{Name: "l2-adapter", LMCache: true, List: true,
			Doc:   "One more tier, as a JSON object with a type (disk, valkey, s3, or LMCache's fs, resp) and the type's fields. May be given several times; the order is that of asking, after the disk of --disk-path. In the file it is a list. Fields: docs/configuration.md.",
			value: adapters{}},
		{Name: "l2-store-policy", Default: "default", LMCache: true,
			Doc: "Which tiers get what is stored. default: every tier, and memory keeps it too.",
			value: choice{allowed: []string{"default"}, refused: map[string]string{
				"skip_l1": "drops from memory what a tier has, and memory is a cache of its own here",
			}}},
		{Name: "l2-prefetch-policy", Default: PrefetchRetain, LMCache: true,
			Doc:   "What becomes of what was loaded from a tier. retain: memory keeps it like what was stored. default: memory keeps it, too, but evicts it before anything that was stored. LMCache's default is the latter, and drops it at once.",
			value: choice{field: func(c *Serve) *string { return &c.PrefetchPolicy }, allowed: []string{PrefetchRetain, PrefetchTemporary}}},
		{Name: "l2-prefetch-load-timeout", Default: "5", Unit: "seconds", LMCache: true,
			Doc:   "How long a lookup waits for a load from a tier; the prefix ends before what has not come by then, and the engine computes the rest. LMCache waits for ever by default.",
			value: seconds{func(c *Serve) *time.Duration { return &c.PrefetchTimeout }, 0.001, 3600, false}},
		{Name: "l2-prefetch-max-in-flight", Default: "8", LMCache: true,
			Doc:   "How many loads run at once, each of up to 16 objects or 8 MiB. Every tier has this number to itself: with two tiers it is twice as many in all.",
			value: integer{func(c *Serve) *int { return &c.PrefetchInFlight }, 1, 1024}},
		{Name: "l2-write-queue-gb", Unit: "GiB",
			Doc:   "The most bytes that wait to be written to tiers. What is stored beyond it goes to no tier; no store ever waits. Default: a quarter of the pool.",
			value: gibibytes{func(c *Serve) *int64 { return &c.WriteQueueBytes }}},
	}
}

// adapters are the specifications of tiers, as package adapter reads them.
type adapters struct{}

func (adapters) kind() string   { return "JSON" }
func (adapters) limits() string { return "" }

func (adapters) set(c *Serve, s string) error {
	specs, _, err := adapter.Parse(s)
	c.Adapters = specs
	return err
}

// warnings are those of a text that set takes.
func (adapters) warnings(s string) []string {
	_, warnings, _ := adapter.Parse(s)
	return warnings
}

// listText is a list of the file as the text of a flag that was given several times. Elements
// are objects, or text that a flag would take.
func listText(v any) (string, error) {
	list, ok := v.([]any)
	switch {
	case v == nil:
		return "", nil
	case !ok:
		list = []any{v}
	}
	var b strings.Builder
	for _, element := range list {
		text, ok := element.(string)
		if !ok {
			object, err := json.Marshal(element)
			if err != nil {
				return "", errors.New("has an element that cannot be written as JSON")
			}
			text = string(object)
		}
		b.WriteString(text + "\n")
	}
	return strings.TrimSpace(b.String()), nil
}

// checkTiers holds the settings of tiers against each other.
func checkTiers(c *Serve) error {
	tiers := c.Tiers()
	if len(tiers) > maxTiers {
		return fmt.Errorf("--disk-path and --l2-adapter name %d tiers, at most %d are possible", len(tiers), maxTiers)
	}
	paths := make(map[string]bool)
	for _, t := range tiers {
		path := filepath.Clean(t.Disk.Path)
		if t.Kind == adapter.Disk && paths[path] {
			return fmt.Errorf("--disk-path and --l2-adapter: two tiers have the path %s; give each disk a directory of its own", path)
		}
		paths[path] = true
	}
	return nil
}

// warnTiers says what the settings of tiers cost or do not do.
func warnTiers(c *Serve, isGiven func(name string) bool) (warnings []string) {
	for _, name := range []string{"disk-size-gb", "disk-sync", "disk-queue-depth"} {
		if c.DiskPath == "" && isGiven(name) {
			warnings = append(warnings, fmt.Sprintf("--%s has no effect without --disk-path.", name))
		}
	}
	if len(c.Tiers()) == 0 && isGiven("l2-write-queue-gb") {
		warnings = append(warnings, "--l2-write-queue-gb has no effect without a tier: --disk-path or --l2-adapter.")
	}
	if c.DiskPath != "" && c.DiskBytes == 0 {
		warnings = append(warnings, fmt.Sprintf("The disk tier at %s has no limit (--disk-size-gb): it may fill its file system, but for a reserve.", c.DiskPath))
	}
	return warnings
}
