package admin

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves the pages. It is safe for concurrent use.
func Handler(s Source, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok", "service": "Holdfast HTTP API", "version": s.Version})
	})
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) { s.healthcheck(w) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.Take(time.Now())) })
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"version": s.Version})
	})
	mux.HandleFunc("POST /clear-cache", func(w http.ResponseWriter, r *http.Request) { s.clear(w, r, log) })
	mux.HandleFunc("POST /take-over", func(w http.ResponseWriter, r *http.Request) { s.handOver(w, r, log) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry(s), promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 4,
	}))
	return http.NewCrossOriginProtection().Handler(mux)
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
