// Package config is the one table of the server's settings. The table generates the
// command-line flags, the HOLDFAST_* environment variables, the keys of the YAML file
// and docs/configuration.md, so the four cannot disagree.
//
// A flag beats a variable, a variable beats the file, the file beats the default, and
// an unset or empty value is the default. A bad size, width or timeout is an error that
// names the setting, its source, the value, the limit and the way out; a bad tuning
// knob is a warning and takes its default.
package config
