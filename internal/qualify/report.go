package qualify

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Report is the evidence of a run. The JSON names are stable; fields are only ever added.
type Report struct {
	Build       Build     `json:"build"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
	Device      string    `json:"device"`
	Store       StoreKind `json:"store"`
	Server      string    `json:"server"` // its endpoint, or "embedded"; empty for a local store
	Run         string    `json:"run"`    // in front of every model name that the run has stored under
	Seed        uint64    `json:"seed"`
	ChunkTokens int       `json:"chunk_tokens"`
	Passed      int       `json:"passed"`
	Failed      int       `json:"failed"`
	Rows        []Row     `json:"rows"`
}

// Build is the program that was run.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	CPUs     int    `json:"cpus"`
	Sabotage bool   `json:"sabotage"` // the build can remove safeties
}

// Row is one claim, and what came of it.
type Row struct {
	Name     string         `json:"name"`
	Claim    string         `json:"claim"`
	Observed string         `json:"observed"`
	Pass     bool           `json:"pass"`
	Failures []string       `json:"failures,omitempty"`
	Seconds  float64        `json:"seconds"`
	Evidence map[string]any `json:"evidence,omitempty"` // counters, checksums, traces
}

func newReport(o *Options, h *house) Report {
	return Report{
		Build: build(o), Started: time.Now().UTC().Truncate(time.Second), Device: o.Device, Store: o.Store, Server: h.name,
		Run: h.run, Seed: o.Seed, ChunkTokens: h.chunk, Rows: []Row{},
	}
}

func (r *Report) add(row Row) {
	r.Rows = append(r.Rows, row)
	if row.Pass {
		r.Passed++
	} else {
		r.Failed++
	}
}

// OK reports whether every claim held.
func (r *Report) OK() bool { return r.Failed == 0 && r.Passed > 0 }

// WriteMarkdown writes the report as a table for people.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	store := string(r.Store)
	if r.Server != "" {
		store += " (" + r.Server + ")"
	}
	sabotage := ""
	if r.Build.Sabotage {
		sabotage = ", sabotage build"
	}
	fmt.Fprintf(&b, "device %s, store %s, chunks of %d tokens, seed %d; holdfast %s, %s %s/%s%s\n\n",
		r.Device, store, r.ChunkTokens, r.Seed, r.Build.Version, r.Build.Go, r.Build.OS, r.Build.Arch, sabotage)
	b.WriteString("| row | claim | observed | result |\n| --- | --- | --- | --- |\n")
	for _, row := range r.Rows {
		result := "pass"
		if !row.Pass {
			result = "**FAIL**"
		}
		var observed []string
		if row.Observed != "" {
			observed = append(observed, row.Observed)
		}
		for _, f := range row.Failures {
			observed = append(observed, "NOT: "+f)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(row.Name), cell(row.Claim), cell(strings.Join(observed, "; ")), result)
	}
	fmt.Fprintf(&b, "\n%d passed, %d failed, %.1f s\n", r.Passed, r.Failed, r.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// cell makes text fit into a table.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}
