package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// inspectFlags are the command line of `holdfast inspect` as it was written.
type inspectFlags struct {
	o       disk.Inspection
	json    bool
	summary bool
}

func inspectCommand() *cobra.Command {
	var f inspectFlags
	cmd := &cobra.Command{
		Use:   "inspect PATH",
		Short: "List, verify and repair a disk tier's directory",
		Long: `List what a disk tier has at PATH: of every object its size, how long ago it was used, and its name, which is its
whole key (SPACE.CHUNK.RANK.GROUP.LENGTH). Files that are too short or in the wrong place are told of at the end; those
that a killed server left unfinished, which the next start removes, and files of other programs, too. With --summary there is one line for every namespace (one model with
its ranks, layout and tenant, which share no objects) in place of one for every object; its name begins those of its objects.

With --verify every object is read and compared with its checksum. With --repair that is done too, and everything that is
wrong or unfinished is removed: what is left is a smaller cache, and every object in it is whole. Files of other programs are never
touched.

Without --repair nothing is changed, and a server may be using PATH meanwhile. With it, it is refused while a server has
PATH open. A server needs neither: it verifies what it reads, and removes at its start what a crash has left.

The exit status is 1 if something is wrong and was not removed.`,
		Example: `  # what is there, on one screen
  holdfast inspect --summary /var/cache/holdfast

  # every object of it
  holdfast inspect /var/cache/holdfast

  # read everything, as JSON
  holdfast inspect --verify --json /var/cache/holdfast | jq '.objects[] | select(.problem)'

  # remove what is wrong, with no server running
  holdfast inspect --repair /var/cache/holdfast`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(fmt.Errorf("give one PATH, the --disk-path of a server; got %d arguments", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.o.Path = args[0]
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.o.Verify, "verify", false, "read every object and compare it with its checksum")
	flags.BoolVar(&f.o.Repair, "repair", false, "verify, and remove what is wrong; no server may have PATH open")
	flags.BoolVar(&f.summary, "summary", false, "write what each namespace has, and not every object")
	flags.BoolVar(&f.json, "json", false, "write it as JSON")
	return cmd
}

func (f *inspectFlags) run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), endings()...)
	defer stop()
	said := time.Now()
	f.o.Progress = func(objects, of int, bytes, ofBytes int64) {
		if now := time.Now(); now.Sub(said) >= time.Second {
			said = now
			fmt.Fprintf(cmd.ErrOrStderr(), "verified %d of %d objects, %s of %s\n", objects, of, sizeText(bytes), sizeText(ofBytes))
		}
	}
	report, err := disk.Inspect(ctx, f.o)
	if report != nil {
		out := bufio.NewWriter(cmd.OutOrStdout())
		err = errors.Join(err, f.write(out, report, time.Now()), out.Flush())
	}
	switch {
	case errors.Is(err, context.Canceled):
		return exitError{exitInterrupted, err}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, disk.ErrForeign):
		return failure(fmt.Errorf("%w; PATH is the --disk-path of a server", err))
	case errors.Is(err, disk.ErrInUse):
		return failure(fmt.Errorf("%w: stop it, or leave out --repair, which nothing needs while it runs", err))
	case errors.Is(err, os.ErrPermission):
		return failure(fmt.Errorf("%w; run this as the server's user", err))
	case err != nil:
		return failure(err)
	case report.Wrong > 0 && !f.o.Repair:
		return failure(fmt.Errorf("wrong files: %d; --repair removes them, and a server takes them for a miss", report.Wrong))
	}
	return nil
}

// write writes what was asked for.
func (f *inspectFlags) write(out io.Writer, r *disk.Report, now time.Time) error {
	s := summarize(r)
	switch {
	case f.json && f.summary:
		return json.NewEncoder(out).Encode(&s)
	case f.json:
		return json.NewEncoder(out).Encode(r)
	case f.summary:
		s.write(out, now)
		if s.Foreign > 0 {
			fmt.Fprintf(out, "not the store's, left alone: %d files\n", s.Foreign)
		}
	default:
		writeFiles(out, r, now)
	}
	verified := "not verified"
	if s.Verified {
		verified = "verified"
	}
	fmt.Fprintf(out, "%s: %d objects of %s, %s; all files take %s of the disk; %d wrong, %d left by a writer, %d removed\n",
		s.Path, s.Objects, sizeText(s.Bytes), verified, sizeText(s.Taken), s.Wrong, s.Leftover, s.Removed)
	if s.Owner != "" {
		fmt.Fprintf(out, "in use by %s\n", s.Owner)
	}
	return nil
}

// writeFiles writes the list for people.
func writeFiles(out io.Writer, r *disk.Report, now time.Time) {
	for i := range r.Objects {
		f := &r.Objects[i]
		name := f.File[strings.LastIndexByte(f.File, '/')+1:]
		fmt.Fprintf(out, "%12s  %8s  %s\n", sizeText(f.Bytes), age(now.Sub(f.Used)), name)
	}
	for _, files := range [][]disk.Found{r.Objects, r.Others} {
		for i := range files {
			f, done := &files[i], ""
			if f.Removed {
				done = " (removed)"
			}
			switch {
			case f.Leftover:
				fmt.Fprintf(out, "left by a writer%s: %s: unfinished, the next start removes it\n", done, f.File)
			case f.Problem != "":
				fmt.Fprintf(out, "wrong%s: %s: %s\n", done, f.File, f.Problem)
			}
		}
	}
	for _, name := range r.Foreign {
		fmt.Fprintf(out, "not the store's, left alone: %s\n", name)
	}
}

// age is how long ago something was, to be read at a glance.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

// sizeText is a number of bytes, to be read at a glance.
func sizeText(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}
