package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/holdfast-kv/holdfast/internal/nearest"
)

// ErrInvalid is wrapped by every error of Load.
var ErrInvalid = errors.New("invalid configuration")

// delimiter separates the levels of koanf's keys. Settings have one level and no dot in
// their names, so a nested key shows up as one unknown name.
const delimiter = "."

// Load merges flags (parsed, from Flags), environment (as os.Environ gives it), the file
// that they name, and the defaults. All errors are reported at once. Warnings are
// complete sentences for the log.
func Load(flags *pflag.FlagSet, environ []string) (Serve, []string, error) {
	table := Table()
	sources, warnings, err := readSources(table, flags, environ)
	if err != nil {
		return Serve{}, nil, err
	}
	c := Defaults()
	var errs []error
	for _, s := range table {
		given, ok := find(sources, s)
		if !ok {
			continue
		}
		errs = append(errs, overridden(c, s, sources, given))
		warned, err := apply(&c, s, given)
		warnings = append(warnings, warned...)
		errs = append(errs, err)
	}
	errs = append(errs, checkTiers(&c))
	warnings = append(warnings, warnTiers(&c, func(name string) bool {
		_, ok := find(sources, table[slices.IndexFunc(table, func(s Setting) bool { return s.Name == name })])
		return ok
	})...)
	if err := errors.Join(errs...); err != nil {
		return Serve{}, warnings, fmt.Errorf("%w:\n%w", ErrInvalid, err)
	}
	return c, warnings, nil
}

// overridden checks what the file has for a setting that a stronger source gave: a file is right or
// wrong as a whole. A variable that is overridden may be wrong, as others than the user make some.
func overridden(c Serve, s Setting, sources []source, g given) error {
	inFile, ok := find(sources[beforeFile:], s)
	if !ok || inFile.source == g.source {
		return nil
	}
	_, err := apply(&c, s, inFile)
	return err
}

// given is a value and where it came from.
type given struct{ text, source string }

func (g given) describe(s Setting) string {
	if s.List {
		return "--" + s.Name + g.source
	}
	return fmt.Sprintf("--%s=%s%s", s.Name, g.text, g.source)
}

// apply sets one value, and turns a bad one into a warning or an error.
func apply(c *Serve, s Setting, g given) (warnings []string, err error) {
	if s.Group == GroupIgnored {
		return []string{fmt.Sprintf("--%s%s has no effect here. %s", s.Name, g.source, s.Doc)}, nil
	}
	tried := *c
	err = s.value.set(&tried, g.text)
	switch {
	case err == nil:
		*c = tried
		if v, ok := s.value.(interface{ warnings(string) []string }); ok {
			for _, w := range v.warnings(g.text) {
				warnings = append(warnings, g.describe(s)+": "+w)
			}
		}
		return warnings, nil
	case s.Tuning:
		return []string{fmt.Sprintf("%s: %v; using the default %s", g.describe(s), err, s.Default)}, nil
	case s.Group == GroupRefused, s.List:
		return nil, fmt.Errorf("%s: %w", g.describe(s), err)
	case s.Default != "":
		return nil, fmt.Errorf("%s: %w; leave it out for the default %s", g.describe(s), err, s.Default)
	}
	return nil, fmt.Errorf("%s: %w; leave it out for the default", g.describe(s), err)
}

// source is one layer, strongest first in a list of them.
type source struct {
	values      *koanf.Koanf
	name        func(s Setting) string // the setting's key in this layer; "" = never in it
	from        func(s Setting) string // for messages
	emptyCounts bool                   // an empty value may be a value (EmptyCounts)
}

func find(sources []source, s Setting) (given, bool) {
	for _, src := range sources {
		key := src.name(s)
		if key == "" || !src.values.Exists(key) {
			continue
		}
		text := src.values.String(key)
		if s.List {
			text, _ = listText(src.values.Get(key)) // readFile has refused what is none
		}
		if text == "" && !(src.emptyCounts && s.EmptyCounts && src.values.Get(key) != nil) {
			continue
		}
		return given{text, src.from(s)}, true
	}
	return given{}, false
}

// beforeFile is how many sources are stronger than the file: flags, and two kinds of variables.
const beforeFile = 3

// readSources gives them, strongest first; the file is the last, if there is one.
func readSources(table []Setting, flags *pflag.FlagSet, environ []string) ([]source, []string, error) {
	fl, err := readFlags(flags)
	if err != nil {
		return nil, nil, err
	}
	own, err := readEnv(environ, "HOLDFAST_")
	if err != nil {
		return nil, nil, err
	}
	lmcache, err := readEnv(environ, "LMCACHE_")
	if err != nil {
		return nil, nil, err
	}
	sources := []source{
		{fl, func(s Setting) string { return s.Name }, func(Setting) string { return "" }, true},
		{own, Setting.Env, func(s Setting) string { return " (from " + s.Env() + ")" }, false},
		{lmcache, Setting.LMCacheEnv, func(s Setting) string { return " (from " + s.LMCacheEnv() + ")" }, false},
	}
	warnings := unknownVariables(table, own.Keys())
	i := slices.IndexFunc(table, func(s Setting) bool { return s.Name == "config" })
	path, ok := find(sources, table[i])
	if !ok {
		return sources, warnings, nil
	}
	k, err := readFile(table, path.text)
	if err != nil {
		return nil, warnings, fmt.Errorf("%w: --config=%s%s: %w", ErrInvalid, path.text, path.source, err)
	}
	inFile := func(s Setting) string { return " (from " + path.text + ")" }
	return append(sources, source{k, func(s Setting) string { return s.Name }, inFile, true}), warnings, nil
}

func readFlags(flags *pflag.FlagSet) (*koanf.Koanf, error) {
	k := koanf.New(delimiter)
	err := k.Load(posflag.ProviderWithFlag(flags, delimiter, nil, func(f *pflag.Flag) (string, any) {
		if name, negative := strings.CutPrefix(f.Name, "no-"); negative && f.Changed {
			return name, negated(f.Value.String())
		}
		return f.Name, f.Value.String()
	}), nil)
	return k, err
}

func readEnv(environ []string, prefix string) (*koanf.Koanf, error) {
	k := koanf.New(delimiter)
	err := k.Load(env.Provider(delimiter, env.Opt{
		Prefix:      prefix,
		EnvironFunc: func() []string { return environ },
	}), nil)
	return k, err
}

// readFile reads the YAML file; a key that is not a setting, or a value that is not plain,
// is an error.
func readFile(table []Setting, path string) (*koanf.Koanf, error) {
	k := koanf.New(delimiter)
	var unread *os.PathError
	switch err := k.Load(file.Provider(path), yaml.Parser()); {
	case errors.As(err, &unread):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w; it must be YAML with one setting a line (port: 5555)", err)
	}
	var errs []error
	for _, key := range k.Keys() {
		i := slices.IndexFunc(table, func(s Setting) bool { return s.Name == key })
		switch {
		case i < 0 && isList(table, key):
			name, _, _ := strings.Cut(key, delimiter)
			return nil, fmt.Errorf("%q must be a list: begin each element with a dash (- type: disk)", name)
		case i < 0:
			errs = append(errs, unknownKey(key, names(table)))
		case table[i].NotInFile:
			errs = append(errs, fmt.Errorf("%q cannot be set in the file", key))
		case table[i].List:
			if _, err := listText(k.Get(key)); err != nil {
				errs = append(errs, fmt.Errorf("%q %w", key, err))
			}
		case !plain(k.Get(key)):
			errs = append(errs, fmt.Errorf("%q must be a single value", key))
		}
	}
	return k, errors.Join(errs...)
}

// isList reports whether a nested key is an element's where a list should be.
func isList(table []Setting, key string) bool {
	name, _, nested := strings.Cut(key, delimiter)
	return nested && slices.ContainsFunc(table, func(s Setting) bool { return s.List && s.Name == name })
}

// unknownKey says what may have been meant.
func unknownKey(key string, known []string) error {
	if strings.Contains(key, delimiter) {
		return fmt.Errorf("unknown setting %q; settings are one level deep (port: 5555)", key)
	}
	if near := nearest.Meant(key, known); near != "" {
		return fmt.Errorf("unknown setting %q; the nearest is %q", key, near)
	}
	return fmt.Errorf("unknown setting %q; holdfast serve --help lists all", key)
}

func plain(v any) bool {
	switch v.(type) {
	case nil, string, bool, int, int64, uint64, float64:
		return true
	}
	return false
}

// unknownVariables warns of HOLDFAST_* names that look like a mistyped setting. Others
// are left alone: Kubernetes makes some for a Service named "holdfast", tools have theirs.
func unknownVariables(table []Setting, given []string) []string {
	var known []string
	for _, s := range table {
		known = append(known, s.Env())
	}
	var warnings []string
	for _, name := range given {
		if slices.Contains(known, name) {
			continue
		}
		if near := nearest.Of(name, known); nearest.Distance(name, near) <= 2 {
			warnings = append(warnings, fmt.Sprintf("%s is not a setting; did you mean %s?", name, near))
		}
	}
	return warnings
}

func names(table []Setting) []string {
	all := make([]string, len(table))
	for i, s := range table {
		all[i] = s.Name
	}
	return all
}
