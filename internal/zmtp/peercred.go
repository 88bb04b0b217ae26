package zmtp

import (
	"net"

	"golang.org/x/sys/unix"
)

// describe tells what the kernel knows of the other end. Credentials that cannot be read
// are left unknown: they only ever add knowledge.
func describe(sock net.Conn) Peer {
	p := Peer{Local: sock.LocalAddr(), Remote: sock.RemoteAddr(), UID: -1}
	p.Network = p.Local.Network()
	u, ok := sock.(*net.UnixConn)
	if !ok {
		return p
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return p
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p.PID, p.UID = int(cred.Pid), int(cred.Uid)
		}
	})
	return p
}
