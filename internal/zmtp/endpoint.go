package zmtp

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// keepAlive finds a host that has gone without a word within 45 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 6}

// maxSocketPath is the longest path of a unix socket on Linux, in bytes.
const maxSocketPath = 107

// parseEndpoint turns tcp://HOST:PORT and ipc://PATH into what package net takes.
func parseEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case ok && scheme == "tcp":
		address, err = tcpAddress(rest)
		network = "tcp"
	case ok && scheme == "ipc":
		address, err = unixAddress(rest)
		network = "unix"
	default:
		err = fmt.Errorf("want tcp://HOST:PORT or ipc://PATH")
	}
	if err != nil {
		return "", "", fmt.Errorf("%w %q: %w", ErrEndpoint, endpoint, err)
	}
	return network, address, nil
}

func tcpAddress(rest string) (string, error) {
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", err
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("port %q is not in 0..65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

func unixAddress(path string) (string, error) {
	switch {
	case path == "" || path == "*":
		return "", fmt.Errorf("the path of the socket is missing")
	case strings.HasPrefix(path, "@"):
		return "", fmt.Errorf("abstract sockets have no owner and no mode; give a path")
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("zero byte in the path")
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("path of %d bytes, a unix socket takes at most %d", len(path), maxSocketPath)
	}
	return path, nil
}

// Dial connects and shakes hands, within ctx and, each, Options.HandshakeTimeout.
func Dial(ctx context.Context, endpoint string, o Options) (*Conn, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: o.HandshakeTimeout, KeepAliveConfig: keepAlive}
	sock, err := d.DialContext(ctx, network, address)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	c := newConn(sock, o)
	if err := c.Handshake(ctx); err != nil {
		return nil, err
	}
	return c, nil
}
