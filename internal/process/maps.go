package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// File identifies a file on this host, whatever it is called.
type File struct{ Device, Inode uint64 }

// Maps reports whether the process has the file mapped now. A process that talks for
// another one, a proxy, has not: its end says nothing about who touches the memory. An
// error means that it cannot be seen: the process has ended, or is another user's.
func Maps(pid int, f File) (bool, error) {
	maps, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return false, fmt.Errorf("mappings of process %d: %w", pid, err)
	}
	defer maps.Close()
	// A line is: range, permissions, offset, device as major:minor in hex, inode, path.
	device := fmt.Appendf(nil, "%02x:%02x", unix.Major(f.Device), unix.Minor(f.Device))
	inode := strconv.AppendUint(nil, f.Inode, 10)
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if field := bytes.Fields(lines.Bytes()); len(field) >= 5 && bytes.Equal(field[3], device) && bytes.Equal(field[4], inode) {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("mappings of process %d: %w", pid, err)
	}
	return false, nil
}
