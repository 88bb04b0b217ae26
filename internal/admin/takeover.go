package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"
)

// HandOver is what a server answers that begins to hand over to the next one.
type HandOver struct {
	PID   int           // 0: its process is in another pid namespace
	Drain time.Duration // that it takes at most
}

// handOverBody is a request or an answer, as JSON.
type handOverBody struct {
	Identity string  `json:"identity,omitempty"` // of who asks
	User     *int    `json:"user,omitempty"`     // its effective user id
	Until    int64   `json:"until,omitempty"`    // when who asks gives up, in milliseconds since 1970
	Status   string  `json:"status,omitempty"`
	PID      int     `json:"pid,omitempty"`
	PIDs     string  `json:"pid_namespace,omitempty"` // in which PID means this process
	Drain    float64 `json:"drain_seconds,omitempty"`
	Error    string  `json:"error,omitempty"`
}

// pidNamespace names the pid namespace of this process, "" if that cannot be told.
func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// ErrNoServer is wrapped when nobody listens at the address that is asked.
var ErrNoServer = errors.New("no server is running there")

const (
	maxHandOverBody = 64 << 10
	answerTime      = 10 * time.Second // for a server to answer
)

// handOver answers POST /take-over. It ends the server, so that it is only for who is on this
// host, whatever address the admin HTTP is bound to.
func (s Source) handOver(w http.ResponseWriter, r *http.Request, log *slog.Logger) {
	refuse := func(code int, why string) {
		log.Warn("a request to hand over is refused", "peer", r.RemoteAddr, "reason", why)
		reply(w, code, handOverBody{Status: "refused", PID: os.Getpid(), Error: why})
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !peer.Addr().Unmap().IsLoopback() {
		refuse(http.StatusForbidden, "only processes of this host may ask, at a loopback address")
		return
	}
	if s.HandOver == nil {
		refuse(http.StatusConflict, "this server cannot hand over")
		return
	}
	var asked handOverBody
	if err := json.NewDecoder(io.LimitReader(r.Body, maxHandOverBody)).Decode(&asked); err != nil {
		refuse(http.StatusBadRequest, "the request has no identity: "+err.Error())
		return
	}
	// A server that was stopped for a while finds the request when nobody waits for the answer
	// any more. To end then would leave no server at all.
	if late := time.Now().UnixMilli() - asked.Until; asked.Until > 0 && late > 0 {
		refuse(http.StatusRequestTimeout, fmt.Sprintf("whoever asked has given up %d ms ago", late))
		return
	}
	if asked.User != nil && *asked.User != 0 && *asked.User != os.Geteuid() {
		refuse(http.StatusForbidden, fmt.Sprintf("this server is user %d's and so is its pool, which user %d cannot open: take over as the same user", os.Geteuid(), *asked.User))
		return
	}
	h, err := s.HandOver(asked.Identity)
	if err != nil {
		refuse(http.StatusConflict, err.Error())
		return
	}
	log.Info("another server takes over", "peer", r.RemoteAddr)
	reply(w, http.StatusOK, handOverBody{Status: "draining", PID: os.Getpid(), PIDs: pidNamespace(), Drain: h.Drain.Seconds()})
}

// AskToHandOver asks the server whose admin HTTP is at address, if it has this identity, to
// drain and end. It wraps ErrNoServer if nobody is there.
func AskToHandOver(ctx context.Context, address, identity string) (HandOver, error) {
	return askToHandOver(ctx, address, identity, os.Geteuid())
}

func askToHandOver(ctx context.Context, address, identity string, user int) (HandOver, error) {
	body, err := json.Marshal(handOverBody{Identity: identity, User: &user, Until: time.Now().Add(answerTime).UnixMilli()})
	if err != nil {
		return HandOver{}, err
	}
	var answer handOverBody
	code, err := fetch(ctx, http.MethodPost, address, "/take-over", body, &answer)
	var slow net.Error
	switch {
	case errors.As(err, &slow) && slow.Timeout():
		return HandOver{}, fmt.Errorf("it hangs: end it (its pool stays also after SIGKILL) and start again: %w", err)
	case err != nil:
		return HandOver{}, err
	}
	if code != http.StatusOK {
		return HandOver{}, fmt.Errorf("it answers %d %s %q", code, http.StatusText(code), answer.Error)
	}
	if answer.PIDs != pidNamespace() {
		answer.PID = 0
	}
	return HandOver{PID: answer.PID, Drain: time.Duration(answer.Drain * float64(time.Second))}, nil
}

// AskStatus returns the status of the server whose admin HTTP is at address.
func AskStatus(ctx context.Context, address string) (p Picture, err error) {
	code, err := fetch(ctx, http.MethodGet, address, "/status", nil, &p)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("it answers %d", code)
	}
	return p, err
}

// fetch makes one request on a connection of its own.
func fetch(ctx context.Context, method, address, path string, body []byte, answer any) (code int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+local(address)+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: answerTime}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(r)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		err = fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(io.LimitReader(response.Body, 16<<20)).Decode(answer); err != nil {
		return response.StatusCode, fmt.Errorf("its answer %s is not that of Holdfast: %w", response.Status, err)
	}
	return response.StatusCode, nil
}

// local is the loopback address in place of the one that stands for all of this host.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip, e := netip.ParseAddr(host); err == nil && e == nil && ip.IsUnspecified() {
		if host = "127.0.0.1"; ip.Is6() {
			host = "::1"
		}
		return net.JoinHostPort(host, port)
	}
	return address
}
