package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// HTTP is a listening admin server.
type HTTP struct {
	listener net.Listener
	server   *http.Server
	done     chan error
}

// Listen binds host and port (0 = any free one). Requests wait until Serve.
func Listen(host string, port int, log *slog.Logger) (*HTTP, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("admin HTTP on %s: %w; choose another --http-port or --http-host", address, err)
	}
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		log.Warn("admin HTTP is reachable from other hosts and has no authentication: who reaches it can clear the cache; --http-host 127.0.0.1 keeps it to this one", "address", l.Addr().String())
	}
	return &HTTP{
		listener: l,
		done:     make(chan error, 1),
		server: &http.Server{
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       60 * time.Second,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// Addr is the bound address as host:port.
func (h *HTTP) Addr() string { return h.listener.Addr().String() }

// Serve answers with handler from now on, in the background.
func (h *HTTP) Serve(handler http.Handler) {
	h.server.Handler = handler
	go func() { h.done <- h.server.Serve(h.listener) }()
}

// Close stops accepting and waits for open requests until ctx ends, then cuts them.
// It is called once, whether Serve was called or not.
func (h *HTTP) Close(ctx context.Context) error {
	if h.server.Handler == nil {
		return h.listener.Close()
	}
	if err := h.server.Shutdown(ctx); err != nil {
		_ = h.server.Close()
	}
	if err := <-h.done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
