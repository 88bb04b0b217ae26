package testserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// HTTPProxy passes requests to a server of HTTP, except those that a test answers itself.
type HTTPProxy struct {
	URL string

	intercept atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

// NewHTTPProxy starts a proxy in front of the server at the URL.
func NewHTTPProxy(t testing.TB, server string) *HTTPProxy {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &HTTPProxy{}
	pass := &httputil.ReverseProxy{
		// The host is part of what the client has signed.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host
		},
		Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := p.intercept.Load(); answer != nil && (*answer)(w, r) {
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	p.URL = front.URL
	return p
}

// Intercept asks answer first, from now on; true means that it has answered. nil ends it.
func (p *HTTPProxy) Intercept(answer func(w http.ResponseWriter, r *http.Request) bool) {
	if answer == nil {
		p.intercept.Store(nil)
		return
	}
	p.intercept.Store(&answer)
}

// S3Error answers requests of a method ("" for all) with an error as S3 servers do, after it
// has taken the request's body.
func S3Error(method string, status int, code string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if method != "" && r.Method != method {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>"+code+" of the test</Message></Error>")
		}
		return true
	}
}
