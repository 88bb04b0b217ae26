package arena

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Header is what the last page of a shared object says after the mark, in lines of text, so
// that it can be read with tail. It is rewritten whole, by one write.
type Header struct {
	PID int // of the owner
	// The rest is there only for a pool with records.
	Records  bool
	Size     int64  // of the pool, bytes
	Align    int64  // of slots
	Identity string // which server's pool it is; "" = nobody's but its owner's
	Boot     uint64 // how many servers have had it, this one included
	Leaving  bool   // its owner is about to end, and leaves it to the next one
	Kept     bool   // its owner left it for the next one on purpose
	Admin    string // host:port of the owner's admin HTTP, "" = not yet known
	// Seen says in which namespaces of processes and time the pids and start times of peers
	// hold: in others they mean other processes.
	Seen string
}

// recordsFormat is the version of everything behind the pool.
const recordsFormat = "1"

// page is the header's binary form.
func (h *Header) page() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%spid %d\n", mark, h.PID)
	if h.Records {
		fmt.Fprintf(&b, "records %s\nsize %d\nalign %d\nidentity %q\nboot %d\nleaving %t\nkept %t\nadmin %q\nseen %q\n",
			recordsFormat, h.Size, h.Align, h.Identity, h.Boot, h.Leaving, h.Kept, h.Admin, h.Seen)
	}
	page := make([]byte, pageSize)
	copy(page[:pageSize-1], b.String())
	return page
}

// parseHeader reads a page of another process. An unknown line is skipped; a pool whose
// records it cannot read has Records false.
func parseHeader(page []byte) (h Header, ok bool) {
	text, found := bytes.CutPrefix(page, []byte(mark))
	if !found {
		return Header{}, false
	}
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	var bad bool
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 63)
		bad = bad || err != nil
		return n
	}
	quoted := func(s string) string {
		s, err := strconv.Unquote(s)
		bad = bad || err != nil
		return s
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch key {
		case "pid":
			h.PID = int(number(value))
		case "records":
			h.Records = value == recordsFormat
		case "size":
			h.Size = int64(number(value))
		case "align":
			h.Align = int64(number(value))
		case "identity":
			h.Identity = quoted(value)
		case "boot":
			h.Boot = number(value)
		case "leaving":
			h.Leaving = value == "true"
		case "kept":
			h.Kept = value == "true"
		case "admin":
			h.Admin = quoted(value)
		case "seen":
			h.Seen = quoted(value)
		}
	}
	if bad {
		return Header{}, true
	}
	return h, true
}

// fits reports whether an object of that length is a pool with the records that h claims.
func (h *Header) fits(length int64) bool {
	if !h.Records || h.Size < pageSize || h.Size%pageSize != 0 || h.Align < minRecordAlign || h.Align&(h.Align-1) != 0 ||
		h.Size%h.Align != 0 || h.Size > length || h.Align > h.Size {
		return false
	}
	_, region := standard.tableBytes(h.Size, h.Align)
	return h.Size+region+pageSize == length
}

// readHeader reads the last page of an object.
func readHeader(fd int, length int64) (Header, bool) {
	page := make([]byte, pageSize)
	n, err := unix.Pread(fd, page, length-pageSize)
	if err != nil || n != len(page) {
		return Header{}, false
	}
	return parseHeader(page)
}

// writeHeader writes it. The page becomes the object's last.
func writeHeader(fd int, at int64, h *Header) error {
	page := h.page()
	n, err := unix.Pwrite(fd, page, at)
	if err == nil && n < len(page) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("%w: cannot write its last page: %w", ErrNoRoom, err)
	}
	return nil
}

// seenFrom names the namespaces of this process in which a pid and a start time are its own.
func seenFrom() string {
	pid, _ := os.Readlink("/proc/self/ns/pid")
	time, _ := os.Readlink("/proc/self/ns/time")
	return pid + " " + time
}
