package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// summary is a report without its objects.
type summary struct {
	Path     string   `json:"path"`
	Owner    string   `json:"in_use_by,omitempty"`
	Spaces   []*space `json:"namespaces"` // the one with the most bytes first
	Objects  int      `json:"objects"`    // without a problem
	Bytes    int64    `json:"bytes"`      // of these
	Taken    int64    `json:"disk_bytes"` // that all files of the store take
	Verified bool     `json:"verified"`
	Wrong    int      `json:"wrong"`
	Leftover int      `json:"leftover"` // unfinished files that a writer left
	Removed  int      `json:"removed"`
	Foreign  int      `json:"foreign"` // files that are not the store's
}

// space is what there is of one namespace: one model, its ranks, layout and tenant.
type space struct {
	Space   string    `json:"space"`
	Objects int       `json:"objects"` // without a problem
	Chunks  int       `json:"chunks"`  // that these belong to
	Ranks   int       `json:"ranks"`
	Groups  int       `json:"groups"`
	Bytes   int64     `json:"bytes"`
	Taken   int64     `json:"disk_bytes"`
	Oldest  time.Time `json:"oldest_use"` // of any of its objects
	Newest  time.Time `json:"newest_use"`
	Wrong   int       `json:"wrong"` // objects that are not counted above

	ranks, groups map[uint16]bool
}

func summarize(r *disk.Report) summary {
	s := summary{
		Path: r.Path, Owner: r.Owner, Spaces: []*space{}, Bytes: r.Bytes, Taken: r.Taken,
		Verified: r.Verified, Wrong: r.Wrong, Leftover: r.Leftover, Removed: r.Removed, Foreign: len(r.Foreign),
	}
	spaces := make(map[string]*space)
	var before *disk.Found
	for i := range r.Objects {
		f := &r.Objects[i]
		in := spaces[f.Space]
		if in == nil {
			in = &space{Space: f.Space, Oldest: f.Used, Newest: f.Used, ranks: make(map[uint16]bool), groups: make(map[uint16]bool)}
			spaces[f.Space] = in
			s.Spaces = append(s.Spaces, in)
		}
		if f.Problem != "" {
			in.Wrong++
			continue
		}
		s.Objects++
		// A chunk's objects follow each other, as their names do.
		in.add(f, before == nil || before.Space != f.Space || before.Chunk != f.Chunk)
		before = f
	}
	for _, in := range s.Spaces {
		in.Ranks, in.Groups = len(in.ranks), len(in.groups)
	}
	slices.SortFunc(s.Spaces, func(a, b *space) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Space, b.Space))
	})
	return s
}

// add counts an object that is whole.
func (in *space) add(f *disk.Found, newChunk bool) {
	in.Objects++
	if newChunk {
		in.Chunks++
	}
	in.ranks[f.Rank], in.groups[f.Group] = true, true
	in.Bytes += f.Bytes
	in.Taken += f.Taken
	if f.Used.Before(in.Oldest) {
		in.Oldest = f.Used
	}
	if f.Used.After(in.Newest) {
		in.Newest = f.Used
	}
}

// screen is how many namespaces are shown to people.
const screen = 20

// write writes it for people: the namespaces with the most bytes, and what the others have.
func (s *summary) write(out io.Writer, now time.Time) {
	fmt.Fprintf(out, "%-16s  %9s  %9s  %5s  %6s  %9s  %9s  %15s  %5s\n", "namespace", "objects", "chunks", "ranks", "groups", "bytes", "on disk", "last used", "wrong")
	for _, in := range s.Spaces[:min(screen, len(s.Spaces))] {
		fmt.Fprintf(out, "%-16.16s  %9d  %9d  %5d  %6d  %9s  %9s  %15s  %5d\n", in.Space, in.Objects, in.Chunks, in.Ranks, in.Groups,
			sizeText(in.Bytes), sizeText(in.Taken), age(now.Sub(in.Newest))+" - "+age(now.Sub(in.Oldest)), in.Wrong)
	}
	if len(s.Spaces) <= screen {
		return
	}
	others := space{}
	for _, in := range s.Spaces[screen:] {
		others.Objects += in.Objects
		others.Chunks += in.Chunks
		others.Bytes += in.Bytes
		others.Taken += in.Taken
		others.Wrong += in.Wrong
	}
	fmt.Fprintf(out, "%-16s  %9d  %9d  %5s  %6s  %9s  %9s  %15s  %5d\n", fmt.Sprintf("%d others", len(s.Spaces)-screen),
		others.Objects, others.Chunks, "", "", sizeText(others.Bytes), sizeText(others.Taken), "", others.Wrong)
}
