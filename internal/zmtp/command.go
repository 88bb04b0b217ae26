package zmtp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// maxCommand bounds the body of a command frame, in bytes. READY is about 50 bytes, PING
// at most 23; the rest is room for metadata that we ignore. It fits into the read buffer.
const maxCommand = 32 << 10

// maxPingContext is the longest context of a PING, in bytes.
const maxPingContext = 16

const (
	cmdReady = "READY"
	cmdError = "ERROR"
	cmdPing  = "PING"
	cmdPong  = "PONG"
)

// appendCommand appends the frame of a command.
func appendCommand(b []byte, name string, data []byte) []byte {
	b = appendHeader(b, header{size: int64(1 + len(name) + len(data)), command: true})
	b = append(b, byte(len(name)))
	b = append(b, name...)
	return append(b, data...)
}

// parseCommand splits the body of a command frame.
func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 || body[0] == 0 {
		return "", nil, fmt.Errorf("%w: command frame of %d bytes without a whole name", ErrProtocol, len(body))
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// appendReady appends the READY command of a socket.
func appendReady(b []byte, socketType string, identity []byte) []byte {
	data := appendProperty(nil, "Socket-Type", []byte(socketType))
	data = appendProperty(data, "Identity", identity)
	return appendCommand(b, cmdReady, data)
}

// appendProperty appends one property of the metadata.
func appendProperty(b []byte, name string, value []byte) []byte {
	b = append(b, byte(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// parseReady takes socket type and identity from the data of a READY command. Names are
// compared without case, as the RFC demands; other properties are ignored. The identity
// aliases data.
func parseReady(data []byte) (socketType string, identity []byte, err error) {
	for len(data) > 0 {
		var name, value []byte
		if name, value, data, err = nextProperty(data); err != nil {
			return "", nil, err
		}
		switch {
		case strings.EqualFold(string(name), "Socket-Type"):
			socketType = string(value)
		case strings.EqualFold(string(name), "Identity"):
			if len(value) > maxIdentity {
				return "", nil, fmt.Errorf("%w: identity of %d bytes", ErrProtocol, len(value))
			}
			identity = value
		}
	}
	if socketType == "" {
		return "", nil, fmt.Errorf("%w: READY without Socket-Type", ErrProtocol)
	}
	return socketType, identity, nil
}

// nextProperty splits off the first property of the metadata.
func nextProperty(data []byte) (name, value, rest []byte, err error) {
	n := int(data[0])
	if n == 0 || len(data) < 1+n+4 {
		return nil, nil, nil, fmt.Errorf("%w: metadata ends inside a property name", ErrProtocol)
	}
	name, data = data[1:1+n], data[1+n:]
	size := binary.BigEndian.Uint32(data)
	data = data[4:]
	if uint64(size) > uint64(len(data)) {
		return nil, nil, nil, fmt.Errorf("%w: property %q claims %d bytes of %d", ErrProtocol, name, size, len(data))
	}
	return name, data[:size], data[size:], nil
}

// appendError appends an ERROR command; the reason is cut at 255 bytes.
func appendError(b []byte, reason string) []byte {
	reason = reason[:min(len(reason), maxShort)]
	return appendCommand(b, cmdError, append([]byte{byte(len(reason))}, reason...))
}

// parseError takes the reason from the data of an ERROR command, as far as it is there.
func parseError(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	reason := data[1:]
	return string(reason[:min(len(reason), int(data[0]))])
}

// pingContext takes the context from the data of a PING: TTL (2 bytes), context.
func pingContext(data []byte) ([]byte, error) {
	if len(data) < 2 || len(data) > 2+maxPingContext {
		return nil, fmt.Errorf("%w: PING with %d bytes of data", ErrProtocol, len(data))
	}
	return data[2:], nil
}

// compatible reports whether a peer of this type may talk to us. The RFC also pairs
// ROUTER with REQ and DEALER with REP; their empty delimiter frame is not spoken here.
func compatible(peer string) bool { return peer == Router || peer == Dealer }
