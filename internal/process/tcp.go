package process

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// OfTCP returns the pid whose socket is the remote end of a tcp connection within this
// host and pid namespace, from /proc/net/tcp and /proc/*/fd; 0 when it cannot be seen:
// the peer is on another host, in another namespace or another user's, or several
// processes hold the socket, so that the end of one would prove nothing. local and remote
// are the addresses as our end has them.
func OfTCP(local, remote net.Addr) int {
	ours, theirs := addrPort(local), addrPort(remote)
	if !ours.IsValid() || !theirs.IsValid() || !onThisHost(ours.Addr(), theirs.Addr()) {
		return 0
	}
	inode := socketInode(theirs, ours)
	if inode == "" {
		return 0
	}
	return holder(inode)
}

// addrPort returns the address without zone and not mapped into IPv6; the zero value if
// it is no tcp address.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp == nil {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// onThisHost spares a peer on another host the search.
func onThisHost(ours, theirs netip.Addr) bool {
	if theirs.IsLoopback() || theirs == ours {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == theirs {
				return true
			}
		}
	}
	return false
}

// socketInode finds the socket with these ends in the kernel's tables, "" if none. An
// IPv4 connection may be in either table, as its sockets were made.
func socketInode(local, remote netip.AddrPort) string {
	tables := []string{"/proc/net/tcp", "/proc/net/tcp6"}
	if !local.Addr().Is4() {
		tables = tables[1:]
	}
	for _, path := range tables {
		table, err := os.Open(path)
		if err != nil {
			continue
		}
		v6 := path == "/proc/net/tcp6"
		inode := inodeIn(table, tableForm(local, v6), tableForm(remote, v6))
		_ = table.Close()
		if inode != "" {
			return inode
		}
	}
	return ""
}

// tableForm writes an address as the kernel's tables do: 32-bit words in the byte order
// of the machine, in hex.
func tableForm(a netip.AddrPort, v6 bool) string {
	b := a.Addr().AsSlice()
	if v6 {
		b16 := a.Addr().As16()
		b = b16[:]
	}
	s := ""
	for ; len(b) > 0; b = b[4:] {
		s += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("%s:%04X", s, a.Port())
}

// inodeIn looks through one table. Its columns: slot, local address, remote address,
// state, queues, timer, retransmits, uid, timeout, inode.
func inodeIn(table io.Reader, local, remote string) string {
	const inodeColumn = 9
	for lines := bufio.NewScanner(table); lines.Scan(); {
		line := lines.Bytes()
		if !bytes.Contains(line, []byte(local)) { // most lines
			continue
		}
		f := bytes.Fields(line)
		if len(f) > inodeColumn && string(f[1]) == local && string(f[2]) == remote && string(f[inodeColumn]) != "0" {
			return string(f[inodeColumn])
		}
	}
	return ""
}

// holder returns the one process that has the socket open, 0 if none or several are seen.
// A child between fork and exec shows as a second holder for a moment; so several are
// looked at again.
func holder(inode string) int {
	const patience = 100 * time.Millisecond
	socket := "socket:[" + inode + "]"
	holders := holding(socket, allProcesses())
	for pause := 5 * time.Millisecond; len(holders) > 1 && pause < patience; pause *= 2 {
		time.Sleep(pause)
		holders = holding(socket, holders)
	}
	if len(holders) != 1 {
		return 0
	}
	return holders[0]
}

// holding returns those of the processes that have the socket open, as far as we may look.
func holding(socket string, pids []int) (holders []int) {
	for _, pid := range pids {
		if holds(pid, socket) {
			holders = append(holders, pid)
		}
	}
	return holders
}

func holds(pid int, socket string) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // gone, or another user's
	}
	for _, fd := range fds {
		if target, err := os.Readlink(dir + "/" + fd.Name()); err == nil && target == socket {
			return true
		}
	}
	return false
}

// allProcesses lists the pids in our namespace.
func allProcesses() (pids []int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
