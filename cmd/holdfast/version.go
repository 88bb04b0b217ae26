package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, revision, Go version and protocol",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), readBuild())
			return err
		},
	}
}

type build struct{ version, revision string }

func (b build) String() string {
	return fmt.Sprintf("holdfast  %s\nrevision  %s\ngo        %s %s/%s\nprotocol  %s\n",
		b.version, b.revision, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		"LMCache multi-process over ZMTP 3.1, engine-driven, client forms of August and September 2026")
}

// readBuild takes what the Go toolchain has stamped into the binary.
func readBuild() build {
	b := build{version: "unknown", revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.version = info.Main.Version
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with local changes"
		}
	}
	b.revision += modified
	return b
}
