package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	aDisk   = `{"type":"disk","path":"/a","size_gb":1}`
	aValkey = `{"type":"resp","host":"h","port":6379}`
)

// TestTiers: the order is that of asking, whatever names them.
func TestTiers(t *testing.T) {
	const list = "l2-adapter:\n  - type: disk\n    path: /a\n    size_gb: 1.5\n    eviction: {eviction_policy: LRU}\n  - '" + aValkey + "'\n"
	cases := []struct {
		name      string
		args, env []string
		file      string
		want      string
	}{
		{"none", nil, nil, "", "[]"},
		{"disk", []string{"--disk-path", "/d"}, nil, "", "[disk at /d]"},
		{"flags in order, the disk first", []string{"--l2-adapter", aValkey, "--l2-adapter=" + aDisk, "--disk-path=/d"}, nil, "",
			"[disk at /d valkey at [h:6379] disk at /a]"},
		{"list in a variable", nil, []string{"HOLDFAST_L2_ADAPTER=[" + aDisk + "," + aValkey + "]"}, "", "[disk at /a valkey at [h:6379]]"},
		{"LMCache's variable", nil, []string{"LMCACHE_L2_ADAPTER=" + aValkey}, "", "[valkey at [h:6379]]"},
		{"list in the file", nil, nil, list, "[disk at /a valkey at [h:6379]]"},
		{"text in the file", nil, nil, "l2-adapter: '" + aDisk + "'\n", "[disk at /a]"},
		{"flag over the file", []string{"--l2-adapter", aValkey}, nil, list, "[valkey at [h:6379]]"},
		{"empty list", nil, nil, "l2-adapter: []\n", "[]"},
		{"empty flag is unset", []string{"--l2-adapter", ""}, nil, list, "[disk at /a valkey at [h:6379]]"},
		{"absent in the file", nil, nil, "l2-adapter:\n", "[]"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := load(t, c.args, c.env, c.file)
			if err != nil || fmt.Sprint(got.Tiers()) != c.want {
				t.Errorf("%v, %v; want %s", got.Tiers(), err, c.want)
			}
		})
	}
}

func TestTierSettings(t *testing.T) {
	args := strings.Fields(`--disk-path /d --disk-size-gb 1.5 --disk-sync full --disk-queue-depth 64 --l2-store-policy default
		--l2-prefetch-policy default --l2-prefetch-load-timeout 0.25 --l2-prefetch-max-in-flight 4 --l2-write-queue-gb 2`)
	c, warnings, err := load(t, args, nil, "")
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%q, %v", warnings, err)
	}
	disk := c.Tiers()[0].Disk
	if disk.Path != "/d" || disk.LimitBytes != 3<<29 || disk.Sync != "full" || disk.QueueDepth != 64 {
		t.Errorf("disk %+v", disk)
	}
	if c.PrefetchPolicy != PrefetchTemporary || c.PrefetchTimeout != 250*time.Millisecond || c.PrefetchInFlight != 4 || c.WriteQueueBytes != 2<<30 {
		t.Errorf("%+v", c)
	}
}

// TestTierRefusals: an error names the setting and its source, and no secret.
func TestTierRefusals(t *testing.T) {
	many := make([]string, 0, 34)
	for i := range 16 {
		many = append(many, "--l2-adapter", fmt.Sprintf(`{"type":"disk","path":"/%d"}`, i))
	}
	cases := []struct {
		name      string
		args, env []string
		file      string
		want      []string
	}{
		{"bad adapter", []string{"--l2-adapter", aDisk, "--l2-adapter", `{"type":"fs","password":"SECRET"}`}, nil, "",
			[]string{`--l2-adapter: bad adapter: adapter 2: disk: field "password" is unknown`}},
		{"bad JSON", nil, []string{`HOLDFAST_L2_ADAPTER={"password":"SECRET"`}, "", []string{"--l2-adapter (from HOLDFAST_L2_ADAPTER): bad adapter: no JSON"}},
		{"bad adapter in the file", nil, nil, "l2-adapter:\n  - type: nixl_store\n    secret: SECRET\n", []string{"(from ", "holdfast.yaml)", `"nixl_store" is one that LMCache has`}},
		{"no list", nil, nil, "l2-adapter:\n  type: disk\n  path: SECRET\n", []string{`"l2-adapter" must be a list`, "- type: disk"}},
		{"not a number", nil, nil, "l2-adapter:\n  - {type: disk, path: SECRET, size_gb: .nan}\n", []string{`"l2-adapter" has an element that cannot be written as JSON`}},
		{"numbers", nil, nil, "l2-adapter: 5\n", []string{"--l2-adapter", "must be a JSON object"}},
		{"one path twice", []string{"--disk-path", "/a/", "--l2-adapter", aDisk}, nil, "", []string{"two tiers have the path /a"}},
		{"too many", append(many, "--disk-path", "/d"), nil, "", []string{"17 tiers, at most 16"}},
		{"skip_l1", []string{"--l2-store-policy", "skip_l1"}, nil, "", []string{"memory is a cache of its own here; use default"}},
		{"prefetch policy", []string{"--l2-prefetch-policy", "keep"}, nil, "", []string{"one of retain, default"}},
		{"no timeout", []string{"--l2-prefetch-load-timeout", "0"}, nil, "", []string{"0.001 to 3600", "default 5"}},
		{"disk sync", []string{"--disk-sync", "always"}, nil, "", []string{"none, data, full"}},
		{"disk size", []string{"--disk-size-gb", "0"}, nil, "", []string{"--disk-size-gb=0", "1 MiB"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.args, c.env, c.file)
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v, want one that wraps ErrInvalid", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error does not say %q:\n%v", part, err)
				}
			}
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("error has the secret:\n%v", err)
			}
		})
	}
}

func TestTierWarnings(t *testing.T) {
	cases := []struct {
		name string
		args []string
		want []string // beginnings
	}{
		{"no path", []string{"--disk-sync", "full", "--disk-size-gb=5"},
			[]string{"--disk-size-gb has no effect without --disk-path", "--disk-sync has no effect"}},
		{"no tier", []string{"--l2-write-queue-gb", "1"}, []string{"--l2-write-queue-gb has no effect without a tier: --disk-path"}},
		{"a tier for the queue", []string{"--l2-write-queue-gb", "1", "--disk-path", "/d", "--disk-size-gb", "5"}, nil},
		{"no size", []string{"--disk-path", "/d"}, []string{"The disk tier at /d has no limit (--disk-size-gb)"}},
		{"adapter's", []string{"--l2-adapter", `{"type":"resp","host":"h","max_capacity_gb":5}`},
			[]string{`--l2-adapter: field "max_capacity_gb" of valkey: no effect here`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, warnings, err := load(t, c.args, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, w := range warnings {
				if i < len(c.want) && strings.HasPrefix(w, c.want[i]) {
					w = c.want[i]
				}
				got = append(got, w)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
