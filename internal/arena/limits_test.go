package arena

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mib = int64(1) << 20
	gb  = int64(1) << 30
)

// tree writes files below a new root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

const (
	noLimitV1 = "9223372036854771712\n"
	mountV2   = "30 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1   = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
)

func TestCgroupFree(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {map[string]string{"proc/self/mountinfo": ""}, 0},
		"version 2 in a container, with page cache": {map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"proc/self/mountinfo":          "22 1 8:1 / / rw - ext4 /dev/root rw\n" + mountV2,
			"sys/fs/cgroup/memory.max":     "1073741824\n",
			"sys/fs/cgroup/memory.high":    "max\n",
			"sys/fs/cgroup/memory.current": "209715200\n",
			"sys/fs/cgroup/memory.stat":    "anon 1\nfile 104857600\ninactive_file 104857600\nactive_file 0\n",
		}, 924 * mib},
		"version 2, memory.high is the tighter": {map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"proc/self/mountinfo":          mountV2,
			"sys/fs/cgroup/memory.max":     "1073741824\n",
			"sys/fs/cgroup/memory.high":    "536870912\n",
			"sys/fs/cgroup/memory.current": "0\n",
		}, 512 * mib},
		"version 2, an ancestor is the tightest, the top has no files": {map[string]string{
			"proc/self/cgroup":                             "0::/kube/pod/app\n",
			"proc/self/mountinfo":                          mountV2,
			"sys/fs/cgroup/kube/memory.max":                "max\n",
			"sys/fs/cgroup/kube/memory.current":            "1\n",
			"sys/fs/cgroup/kube/pod/memory.max":            "104857600\n",
			"sys/fs/cgroup/kube/pod/memory.current":        "52428800\n",
			"sys/fs/cgroup/kube/pod/app/memory.max":        "209715200\n",
			"sys/fs/cgroup/kube/pod/app/memory.current":    "0\n",
			"sys/fs/cgroup/kube/pod/app/memory.stat":       "inactive_file 5\n",
			"sys/fs/cgroup/kube/pod/app/memory.swap.max":   "0\n",
			"sys/fs/cgroup/kube/pod/other/memory.max":      "1\n",
			"sys/fs/cgroup/kube/pod/other/memory.current":  "1\n",
			"sys/fs/cgroup/kube/pod/memory.stat":           "anon 52428800\n",
			"sys/fs/cgroup/kube/memory.stat":               "",
			"sys/fs/cgroup/kube/pod/app/memory.oom.group":  "0\n",
			"sys/fs/cgroup/kube/pod/app/memory.swap.event": "",
		}, 50 * mib},
		"version 2 without limits": {map[string]string{
			"proc/self/cgroup":               "0::/user.slice\n",
			"proc/self/mountinfo":            mountV2,
			"sys/fs/cgroup/user.slice/a":     "",
			"sys/fs/cgroup/memory.stat":      "inactive_file 1\n",
			"sys/fs/cgroup/cgroup.procs":     "1\n",
			"sys/fs/cgroup/user.slice/procs": "",
		}, 0},
		"used up": {map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"proc/self/mountinfo":          mountV2,
			"sys/fs/cgroup/memory.max":     "1048576\n",
			"sys/fs/cgroup/memory.current": "2097152\n",
		}, 1},
		"version 1, limit in the own cgroup": {map[string]string{
			"proc/self/cgroup":                                     "5:cpu,cpuacct:/elsewhere\n4:memory:/docker/ab\n0::/\n",
			"proc/self/mountinfo":                                  mountV1,
			"sys/fs/cgroup/memory/memory.limit_in_bytes":           noLimitV1,
			"sys/fs/cgroup/memory/memory.usage_in_bytes":           "999999999\n",
			"sys/fs/cgroup/memory/docker/memory.limit_in_bytes":    noLimitV1,
			"sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": "536870912\n",
			"sys/fs/cgroup/memory/docker/ab/memory.stat":           "inactive_file 1\ntotal_inactive_file 268435456\n",
		}, 768 * mib},
		"version 1 in a container: the mount's top is the own cgroup": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/ab\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
		}, 100 * mib},
		"version 1, the mount shows another part": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/ab/deeper\n",
			"proc/self/mountinfo":                        "35 31 0:32 /../.. /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1048576\n",
		}, 99 * mib},
		"version 1, the cgroup is beside the mount's top": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/cd\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
			"sys/fs/cgroup/cd/memory.limit_in_bytes":     "1048576\n",
			"sys/fs/cgroup/cd/memory.usage_in_bytes":     "0\n",
		}, 100 * mib},
		"version 2, the own cgroup is the tightest": {map[string]string{
			"proc/self/cgroup":                 "0::/app\n",
			"proc/self/mountinfo":              mountV2,
			"sys/fs/cgroup/memory.max":         "209715200\n",
			"sys/fs/cgroup/memory.current":     "0\n",
			"sys/fs/cgroup/app/memory.max":     "104857600\n",
			"sys/fs/cgroup/app/memory.current": "0\n",
		}, 100 * mib},
		"hybrid: version 2 is mounted, version 1 has the memory": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n0::/\n",
			"proc/self/mountinfo":                        strings.ReplaceAll(mountV2, "/sys/fs/cgroup", "/sys/fs/cgroup/unified") + mountV1,
			"sys/fs/cgroup/unified/cgroup.procs":         "1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
		}, 100 * mib},
		"a mount point with a blank, and lines that are not of the format": {map[string]string{
			"proc/self/cgroup":             "nonsense\n\n0::/\n7:x\n",
			"proc/self/mountinfo":          "nonsense - x\n1 2 3\n\n30 25 0:27 / /sys/my\\040cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/my cgroup/memory.max":     "1048576\n",
			"sys/my cgroup/memory.current": "0\n",
		}, mib},
	} {
		got, err := cgroupFree(tree(t, c.files))
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, c.want)
		}
	}
}

func TestCgroupErrors(t *testing.T) {
	good := map[string]string{
		"proc/self/cgroup":             "0::/\n",
		"proc/self/mountinfo":          mountV2,
		"sys/fs/cgroup/memory.max":     "1048576\n",
		"sys/fs/cgroup/memory.current": "0\n",
		"sys/fs/cgroup/memory.stat":    "inactive_file 0\n",
	}
	for path, text := range map[string]string{
		"sys/fs/cgroup/memory.max":     "lots\n",
		"sys/fs/cgroup/memory.current": "-1\n",
		"sys/fs/cgroup/memory.stat":    "inactive_file many\n",
	} {
		root := tree(t, good)
		must(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o644))
		if got, err := cgroupFree(root); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s = %q: %d, error %v", path, text, got, err)
		}
	}
}

func TestMemAvailable(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:       24684096 kB\nMemFree: 1 kB\nMemAvailable:   24241984 kB\n": 24241984 << 10,
		"MemTotal: 1 kB\n":                       -1,
		"MemAvailable: x kB\n":                   -1,
		"MemAvailable: -5 kB\n":                  -1,
		"MemAvailable: 9223372036854775807 kB\n": -1,
		"":                                       -1,
	} {
		got, err := memAvailable(filepath.Join(tree(t, map[string]string{"meminfo": text}), "meminfo"))
		if want < 0 && err == nil || want >= 0 && got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
}

// TestReadLimitsOfThisMachine reads the real files.
func TestReadLimitsOfThisMachine(t *testing.T) {
	l, err := ReadLimits("")
	if err != nil {
		t.Fatal(err)
	}
	if l.Node <= 0 || l.ShmFree < 0 || l.ShmTotal < 0 || l.Cgroup < 0 {
		t.Errorf("limits %+v", l)
	}
	if _, err := ReadLimits(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such directory: %v", err)
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		l               Limits
		shared, private int64
	}{
		{Limits{Node: 8 * gb, ShmFree: 4 * gb, ShmTotal: 5 * gb}, 4*gb - pageSize, 8 * gb},
		{Limits{Node: 8 * gb, ShmFree: 4 * gb, ShmTotal: 5 * gb, Cgroup: gb}, gb, gb},
		{Limits{Node: 2 * gb, ShmFree: 4 * gb, ShmTotal: 5 * gb, Cgroup: 3 * gb}, 2 * gb, 2 * gb},
		{Limits{Node: 2 * gb}, 2 * gb, 2 * gb}, // tmpfs without a limit
		{Limits{Node: 2 * gb, ShmTotal: 5 * gb}, 0, 2 * gb},
		{Limits{Node: 2 * gb, Cgroup: 1}, 1, 1},
	} {
		if got := c.l.Allowed(true); got != c.shared {
			t.Errorf("%+v shared: %d, want %d", c.l, got, c.shared)
		}
		if got := c.l.Allowed(false); got != c.private {
			t.Errorf("%+v private: %d, want %d", c.l, got, c.private)
		}
	}
}

func TestChooseSize(t *testing.T) {
	roomy := Limits{Node: 10 * gb, ShmFree: 8*gb + 3*mib, ShmTotal: 9 * gb}
	docker := Limits{Node: 10 * gb, ShmFree: 64 * mib, ShmTotal: 64 * mib}
	pod := Limits{Node: 10 * gb, ShmFree: 5 * gb, ShmTotal: 5 * gb, Cgroup: 100 * mib}
	for _, c := range []struct {
		name      string
		requested int64
		shared    bool
		l         Limits
		want      int64
		err       error
		names     []string
	}{
		{"default shared", 0, true, roomy, 2 * gb, nil, nil},
		{"default private", 0, false, roomy, 2*gb + 512*mib, nil, nil},
		{"default of a small pod", 0, true, pod, 64 * mib, nil, nil},
		{"default in docker's 64 MiB", 0, true, docker, 0, ErrNoRoom,
			[]string{"--l1-size-gb", "(64.000 MiB)", "(63.996 MiB)", "--shm-size", "--shm-name"}},
		{"request", 3*gb + 5, true, roomy, 3 * gb, nil, nil},
		{"request of all", 8 * gb, true, roomy, 8 * gb, nil, nil},
		{"small request", 4096, true, docker, 4096, nil, nil},
		{"beyond shm", 9 * gb, true, roomy, 0, ErrNoRoom,
			[]string{"--l1-size-gb", "9.000 GiB", "10.000 GiB", "8.003 GiB", "at most 8.002", "remount,size="}},
		{"beyond the cgroup", gb, true, pod, 0, ErrNoRoom,
			[]string{"--l1-size-gb", "0.098 GiB", "raise the container's memory limit", "at most 0.097"}},
		{"beyond the node", 11 * gb, false, roomy, 0, ErrNoRoom,
			[]string{"--l1-size-gb", "11.000 GiB", "10.000 GiB", "free memory on the node"}},
		{"no page", 5, true, roomy, 0, ErrOptions, []string{"--l1-size-gb"}},
		{"negative", -gb, true, roomy, 0, ErrOptions, []string{"--l1-size-gb"}},
	} {
		got, err := ChooseSize(c.requested, c.shared, c.l)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v, want %d, %v", c.name, got, err, c.want, c.err)
		}
		for _, name := range c.names {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: the error does not name %q: %v", c.name, name, err)
			}
		}
		if c.err != nil {
			t.Log(err)
		}
	}
}
