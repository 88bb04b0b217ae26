package daemon

import (
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/config"
)

// BenchmarkReady is the time from the start of a server with a pool of 16 GiB to its first
// answer, and the memory that the process has beside the pool then (this benchmark's own
// included). Its pages are backed afterwards; the stop that follows at once cuts that short.
func BenchmarkReady(b *testing.B) {
	c := config.Defaults()
	c.Port, c.HTTPPort, c.L1Bytes = 0, 0, 16<<30
	c.Host = "127.0.0.1"
	log := slog.New(slog.DiscardHandler)
	var beside float64
	for b.Loop() {
		d, err := Start(b.Context(), c, "benchmark", log)
		if err != nil {
			b.Fatal(err)
		}
		cl, err := client.Dial(b.Context(), d.Endpoints()[0], client.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		beside = max(beside, residentBesidePool(b))
		cl.Close()
		if err := d.Stop(b.Context(), false); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/ready")
	b.ReportMetric(beside, "MiB-beside-pool")
}

var resident = regexp.MustCompile(`(?m)^Rss(?:Anon|File):\s+(\d+) kB$`)

// residentBesidePool is the process's resident memory without shared objects, in MiB.
func residentBesidePool(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	var kib float64
	for _, m := range resident.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		kib += n
	}
	return kib / 1024
}
