package zmtp

import (
	"bytes"
	"fmt"
)

// A greeting is 64 bytes: signature (0xFF, 8 bytes of padding, 0x7F), version (major,
// minor), mechanism (20 bytes, zero-padded), as-server (1), filler (31).
const (
	greetingLen   = 64
	signatureLen  = 10
	majorAt       = 10
	mechanismAt   = 12
	mechanismLen  = 20
	mechanismNull = "NULL"
)

// appendGreeting appends ours: ZMTP 3.1, NULL, not a server in the sense of PLAIN or CURVE.
func appendGreeting(b []byte) []byte {
	var g [greetingLen]byte
	g[0], g[signatureLen-1] = 0xFF, 0x7F
	g[majorAt], g[majorAt+1] = 3, 1
	copy(g[mechanismAt:], mechanismNull)
	return append(b, g[:]...)
}

// greetingSteps are what we send and then how much of the peer's greeting, from its start,
// must be there for the next check. Peers of older versions wait for us after fewer than
// 64 bytes, so no step asks for more than such a peer has sent, and they get an error at
// once and not a timeout. Our mechanism is held back until the peer's version is known:
// libzmq has sent its own mechanism by then, and so we, too, learn why it hangs up.
var greetingSteps = [...]struct{ send, need int }{
	{mechanismAt, 1},
	{0, signatureLen},
	{0, majorAt + 1},
	{greetingLen - mechanismAt, greetingLen},
}

// checkGreeting checks as much of a greeting as g holds. A major version above 3 is
// accepted: such a peer has to come down to ours.
func checkGreeting(g []byte) error {
	if len(g) >= 1 && g[0] != 0xFF {
		return fmt.Errorf("%w: first byte is %#02x: ZMTP 1.0 or no ZMTP at all, 3.x is needed", ErrProtocol, g[0])
	}
	if len(g) >= signatureLen && g[signatureLen-1] != 0x7F {
		return fmt.Errorf("%w: bad signature % x: ZMTP 1.0 or no ZMTP at all, 3.x is needed", ErrProtocol, g[:signatureLen])
	}
	if len(g) > majorAt && g[majorAt] < 3 {
		return fmt.Errorf("%w: peer speaks ZMTP 2.x (revision %d), 3.x is needed", ErrProtocol, g[majorAt])
	}
	if len(g) >= greetingLen {
		name := bytes.TrimRight(g[mechanismAt:mechanismAt+mechanismLen], "\x00")
		if string(name) != mechanismNull {
			return fmt.Errorf("%w: peer wants mechanism %q, only %s is spoken", ErrProtocol, name, mechanismNull)
		}
	}
	return nil
}
