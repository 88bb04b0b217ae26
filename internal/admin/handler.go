package admin

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// page is one answer: a method, a path, and what makes it.
type page struct {
	method, path string
	handler      http.Handler
}

// Handler serves the pages. It is safe for concurrent use.
func Handler(s Source, log *slog.Logger) http.Handler {
	pages := s.pages(log)
	mux := http.NewServeMux()
	for _, p := range pages {
		path := p.path
		if path == "/" {
			path = "/{$}" // itself, and not everything below
		}
		mux.Handle(p.method+" "+path, p.handler)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { noPage(w, r, pages) })
	return http.NewCrossOriginProtection().Handler(mux)
}

func (s Source) pages(log *slog.Logger) []page {
	metrics := promhttp.HandlerFor(registry(s), promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 4,
	})
	return []page{
		{http.MethodGet, "/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reply(w, http.StatusOK, map[string]string{"status": "ok", "service": "Holdfast HTTP API", "version": s.Version})
		})},
		{http.MethodGet, "/healthcheck", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.healthcheck(w) })},
		{http.MethodGet, "/status", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reply(w, http.StatusOK, s.Take(time.Now()))
		})},
		{http.MethodGet, "/metrics", metrics},
		{http.MethodGet, "/version", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reply(w, http.StatusOK, map[string]string{"version": s.Version})
		})},
		{http.MethodPost, "/clear-cache", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.clear(w, r, log) })},
		{http.MethodPost, "/take-over", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handOver(w, r, log) })},
	}
}

// noPage answers what no page does, with those that there are.
func noPage(w http.ResponseWriter, r *http.Request, pages []page) {
	answer := struct {
		Status string   `json:"status"`
		Error  string   `json:"error"`
		Paths  []string `json:"paths"`
	}{Status: "error", Error: "there is no such path"}
	code := http.StatusNotFound
	for _, p := range pages {
		answer.Paths = append(answer.Paths, p.method+" "+p.path)
		if p.path == r.URL.Path {
			code, answer.Error = http.StatusMethodNotAllowed, "this path is for "+p.method
			allow := p.method
			if allow == http.MethodGet {
				allow += ", " + http.MethodHead
			}
			w.Header().Set("Allow", allow)
		}
	}
	reply(w, code, answer)
}

func (s Source) healthcheck(w http.ResponseWriter) {
	status, reason := health(s.Server.Status(), s.Population())
	if reason != "" {
		reply(w, http.StatusServiceUnavailable, map[string]string{"status": "unhealthy", "reason": reason})
		return
	}
	reply(w, http.StatusOK, map[string]string{"status": status})
}

func (s Source) clear(w http.ResponseWriter, r *http.Request, log *slog.Logger) {
	objects, bytes := s.Cache.Clear()
	log.Info("cache cleared over HTTP", "peer", r.RemoteAddr, "objects", objects, "bytes", bytes)
	reply(w, http.StatusOK, map[string]any{"status": "ok", "objects": objects, "bytes": bytes})
}

// reply writes v as JSON. A write error means that the client has gone; there is nobody
// to tell.
func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
