package admin

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// TestHandOverIsForTheSameUser: another user's server could not open the pool, and would leave
// engines without a cache; root can.
func TestHandOverIsForTheSameUser(t *testing.T) {
	source := Source{HandOver: func(string) (HandOver, error) { return HandOver{}, nil }}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		source.handOver(w, r, slog.New(slog.DiscardHandler))
	}))
	defer web.Close()
	address := strings.TrimPrefix(web.URL, "http://")
	if _, err := askToHandOver(t.Context(), address, "", os.Geteuid()+1); err == nil || !strings.Contains(err.Error(), "take over as the same user") {
		t.Errorf("another user is told %v", err)
	}
	for _, user := range []int{os.Geteuid(), 0} {
		if _, err := askToHandOver(t.Context(), address, "", user); err != nil {
			t.Errorf("user %d is told %v", user, err)
		}
	}
}
