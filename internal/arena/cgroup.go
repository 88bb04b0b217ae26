package arena

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memAvailable returns MemAvailable of a meminfo file in bytes.
func memAvailable(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "MemAvailable:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || n < 0 || n > math.MaxInt64>>10 {
				return 0, fmt.Errorf("%s: bad line %q", path, line)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no MemAvailable", path)
}

// The memory controller's files in version 2 and 1. What the kernel can drop at once
// (inactive page cache) counts as used there, and does not here.
type controller struct {
	limits   []string // files with a limit in bytes
	usage    string
	inactive string // line of memory.stat
}

var (
	// memory.high is no hard limit, but a process whose memory cannot be reclaimed,
	// as shared memory without swap, is throttled to a standstill above it.
	v2 = controller{[]string{"memory.max", "memory.high"}, "memory.current", "inactive_file"}
	v1 = controller{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"}
)

// unlimited is the least value that means no limit: version 1 shows the largest number
// of whole pages, which depends on the page size.
const unlimited = 1 << 60

// cgroupFree returns what the memory limits of the process's cgroup and all its
// ancestors leave, at least 1; 0 if there is no limit. Both versions may be mounted at
// once, with the memory controller in either.
func cgroupFree(root string) (int64, error) {
	own, err := ownCgroups(filepath.Join(root, "proc/self/cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // a kernel without cgroups
	}
	if err != nil {
		return 0, err
	}
	mounts, err := cgroupMounts(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return 0, err
	}
	var free int64
	for _, m := range mounts {
		path, ok := own[m.v1]
		if !ok {
			continue
		}
		c := v2
		if m.v1 {
			c = v1
		}
		for _, dir := range m.dirs(root, path) {
			left, err := c.free(dir)
			if err != nil {
				return 0, err
			}
			if left > 0 && (free == 0 || left < free) {
				free = left
			}
		}
	}
	return free, nil
}

// ownCgroups returns the process's cgroup in the hierarchy that has the version 1
// memory controller (true), and in the version 2 hierarchy (false).
func ownCgroups(path string) (map[bool]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	own := make(map[bool]string)
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			own[false] = f[2]
		case hasField(f[1], "memory"):
			own[true] = f[2]
		}
	}
	return own, nil
}

func hasField(list, want string) bool {
	for f := range strings.SplitSeq(list, ",") {
		if f == want {
			return true
		}
	}
	return false
}

// cgroupMount is one mounted hierarchy: the cgroup at its top, and where.
type cgroupMount struct {
	v1         bool
	top, point string
}

// cgroupMounts returns the mounted hierarchies that can have a memory controller.
func cgroupMounts(path string) ([]cgroupMount, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var mounts []cgroupMount
	for line := range strings.Lines(string(data)) {
		// id parent major:minor root point options [optional…] - type source options
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			continue
		}
		m := cgroupMount{top: unescape(f[3]), point: unescape(f[4])}
		switch {
		case g[0] == "cgroup2":
			mounts = append(mounts, m)
		case g[0] == "cgroup" && hasField(g[2], "memory"):
			m.v1 = true
			mounts = append(mounts, m)
		}
	}
	return mounts, nil
}

// unescape undoes mountinfo's octal escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// dirs returns the directories of a cgroup and its ancestors up to the mount's top. A
// cgroup that the mount does not show (a container may see its own part alone) stands
// for the top.
func (m cgroupMount) dirs(root, cgroup string) []string {
	rel, err := filepath.Rel(m.top, cgroup)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		rel = "."
	}
	top := filepath.Join(root, m.point)
	dir := filepath.Join(top, rel)
	if _, err := os.Stat(dir); err != nil {
		dir = top
	}
	dirs := []string{dir}
	for dir != top {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// free returns what the limits of one cgroup directory leave, at least 1; 0 if it sets
// none, as where the controller is not enabled.
func (c controller) free(dir string) (int64, error) {
	limit := int64(unlimited)
	for _, name := range c.limits {
		n, err := readBytes(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		limit = min(limit, n)
	}
	if limit >= unlimited {
		return 0, nil
	}
	used, err := readBytes(filepath.Join(dir, c.usage))
	if err != nil {
		return 0, err
	}
	inactive, err := c.inactiveFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return max(limit-max(used-inactive, 0), 1), nil
}

// readBytes reads a file with one number of bytes, or "max".
func readBytes(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	s := strings.TrimSpace(string(data))
	if s == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number of bytes", path, s)
	}
	return int64(min(n, unlimited)), nil
}

// inactiveFile returns the inactive page cache that memory.stat tells; without such a
// line nothing counts as reclaimable.
func (c controller) inactiveFile(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == c.inactive {
			n, err := strconv.ParseUint(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: bad line %q", path, line)
			}
			return int64(min(n, unlimited)), nil
		}
	}
	return 0, nil
}
