// Holdfast keeps the KV cache of LLM inference engines in shared host memory and gives it
// back byte for byte.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/config"
)

// Exit codes. 130 is what a shell reports for a program that an interrupt ended.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintln(stderr, "holdfast:", exit.err)
		}
		return exit.code
	}
	// What is left comes from cobra itself: an unknown command.
	fmt.Fprintf(stderr, "holdfast: %s\ntry: holdfast --help\n", strings.TrimSpace(err.Error()))
	return exitUsage
}

// endings are the signals that ask the program to end. A hang-up is one, unless the program
// was started to outlive its terminal (nohup).
func endings() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// exitError ends the program with a code; a nil err says that everything is printed.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return fmt.Sprint(e.err) }
func (e exitError) Unwrap() error { return e.err }

func failure(err error) error { return exitError{exitFailure, err} }
func usage(err error) error   { return exitError{exitUsage, err} }

// noArguments refuses what follows a command and is no flag.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if _, err := strconv.ParseBool(args[0]); err == nil {
		hint = fmt.Sprintf(" (a switch takes it as --NAME=%s)", args[0])
	}
	path := cmd.CommandPath()
	return usage(fmt.Errorf("%s takes no arguments, and got %q%s\ntry: %s --help", strings.TrimPrefix(path, "holdfast "), args[0], hint, path))
}

// helpCommand is cobra's, but that an unknown command is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "KV-cache server for LLM inference engines",
		Long: `Holdfast keeps the KV cache of LLM inference engines in shared host memory, behind it on disk, in Valkey or in S3, and
gives it back byte for byte. It speaks LMCache's multi-process protocol in engine-driven mode, so vLLM with LMCache's
connector can use it unmodified.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w\ntry: %s --help", config.ExplainFlag(cmd.Flags(), err), cmd.CommandPath()))
	})
	root.Version = readBuild().String()
	root.SetVersionTemplate("{{.Version}}")
	// Every switch takes a value too, which is nothing to tell of in every line of help.
	cobra.AddTemplateFunc("plain", func(usages string) string {
		const values = "[=true|false]"
		return strings.ReplaceAll(usages, values, strings.Repeat(" ", len(values)))
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", "FlagUsages | plain |"))
	root.SetHelpCommand(helpCommand())
	root.AddCommand(serveCommand(), demoCommand(), replayCommand(), qualifyCommand(), simulateCommand(), inspectCommand(), versionCommand(), configCommand())
	return root
}
