package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/config"
)

// configCommand is for developers: it writes docs/configuration.md.
func configCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "config", Short: "Documentation of the settings", Hidden: true, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(&cobra.Command{
		Use:   "docs",
		Short: "Print docs/configuration.md",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Markdown())
			return err
		},
	})
	return parent
}
