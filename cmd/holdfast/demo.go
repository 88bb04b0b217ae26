package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/replay"
)

func demoCommand() *cobra.Command {
	var directory string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the cache at work: a server with a disk, generated chat traffic, every byte compared",
		Long: `Start a server in this process with a pool that is too small for what comes and a disk behind it, play generated chat
traffic through its socket as an engine would, and compare every byte that comes back. It takes less than a minute on two
cores, 4 GiB of memory and 2 GiB of disk, all of which it gives back.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd, directory) },
	}
	cmd.Flags().StringVar(&directory, "disk-path", "", "keep the disk, up to 8 GiB, in `DIRECTORY`; a second demo finds there what the first one stored (default: 2 GiB in a temporary directory, removed at the end)")
	return cmd
}

func demo(cmd *cobra.Command, directory string) error {
	trace, o, err := replay.Demo(directory)
	if err != nil {
		return failure(err)
	}
	out := cmd.ErrOrStderr()
	fmt.Fprintf(out, "generated chat traffic through a server in this process, %d ranks, every byte compared\n", o.Ranks)
	if o.Transport == replay.Pickle {
		fmt.Fprintln(out, "/dev/shm is too small for a pool here, so the bytes go through the socket")
	}
	report, err := play(cmd, trace, o)
	if err := printReport(cmd, &report, false); err != nil {
		return failure(err)
	}
	if err := verdict(&report, aboutDisk("--disk-path", []string{directory}, err)); err != nil {
		return err
	}
	if err := replay.CheckDemo(&report); err != nil {
		return failure(err)
	}
	fmt.Fprintf(out, "\nevery byte was right. Next: holdfast serve --help\n")
	return nil
}
