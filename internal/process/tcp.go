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
	"slices"
	"strconv"
	"time"
)

// Ends are the addresses of one tcp connection, as our end has them.
type Ends struct{ Local, Remote net.Addr }

// OfTCP returns for each connection the pid whose socket is its remote end within this
// host and pid namespace, from /proc/net/tcp and /proc/*/fd; 0 when it cannot be seen: the
// peer is on another host, in another namespace or another user's, or several processes
// hold the socket, so that the end of one would prove nothing. A search of /proc takes as
// long for one connection as for a thousand.
func OfTCP(conns ...Ends) []int {
	pids := make([]int, len(conns))
	wanted := make(map[string]int) // "socket:[INODE]" → position in conns
	for i, inode := range socketInodes(conns) {
		if inode != "" {
			wanted["socket:["+inode+"]"] = i
		}
	}
	for i, holders := range holders(wanted) {
		if len(holders) == 1 {
			pids[i] = holders[0]
		}
	}
	return pids
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

// socketInodes finds the sockets at the remote ends in the kernel's tables, "" for one
// that is not there. An IPv4 connection may be in either table, as its sockets were made.
func socketInodes(conns []Ends) []string {
	inodes := make([]string, len(conns))
	for _, table := range []struct {
		path string
		v6   bool
	}{{"/proc/net/tcp", false}, {"/proc/net/tcp6", true}} {
		wanted := make(map[string]int) // the two columns → position in conns
		for i, c := range conns {
			ours, theirs := addrPort(c.Local), addrPort(c.Remote)
			if inodes[i] == "" && ours.IsValid() && theirs.IsValid() && onThisHost(ours.Addr(), theirs.Addr()) &&
				(table.v6 || theirs.Addr().Is4()) {
				wanted[tableForm(theirs, table.v6)+" "+tableForm(ours, table.v6)] = i
			}
		}
		if len(wanted) == 0 {
			continue
		}
		if file, err := os.Open(table.path); err == nil {
			inodesIn(file, wanted, inodes)
			_ = file.Close()
		}
	}
	return inodes
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

// inodesIn looks through one table for the wanted pairs of local and remote address. Its
// columns: slot, local address, remote address, state, queues, timer, retransmits, uid,
// timeout, inode.
func inodesIn(table io.Reader, wanted map[string]int, inodes []string) {
	const inodeColumn = 9
	for lines := bufio.NewScanner(table); lines.Scan(); {
		f := bytes.Fields(lines.Bytes())
		if len(f) <= inodeColumn || string(f[inodeColumn]) == "0" {
			continue
		}
		if i, ok := wanted[string(f[1])+" "+string(f[2])]; ok {
			inodes[i] = string(f[inodeColumn])
		}
	}
}

// holders returns, by position, the processes that have each socket open, as far as we may
// look. A child between fork and exec shows as a second holder for a moment; so several
// are looked at again.
func holders(sockets map[string]int) map[int][]int {
	const patience = 100 * time.Millisecond
	found := make(map[int][]int)
	if len(sockets) == 0 {
		return found
	}
	look(found, sockets, allProcesses())
	for pause := 5 * time.Millisecond; pause < patience; pause *= 2 {
		again := make(map[string]int)
		var pids []int
		for socket, i := range sockets {
			if len(found[i]) > 1 {
				again[socket] = i
				pids = append(pids, found[i]...)
				delete(found, i)
			}
		}
		if len(again) == 0 {
			break
		}
		time.Sleep(pause)
		slices.Sort(pids)
		look(found, again, slices.Compact(pids))
	}
	return found
}

// look adds those of the processes that have one of the sockets open.
func look(found map[int][]int, sockets map[string]int, pids []int) {
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // gone, or another user's
		}
		for _, fd := range fds {
			target, err := os.Readlink(dir + "/" + fd.Name())
			if err != nil {
				continue
			}
			// A process may have a socket open twice.
			if i, ok := sockets[target]; ok && !slices.Contains(found[i], pid) {
				found[i] = append(found[i], pid)
			}
		}
	}
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
