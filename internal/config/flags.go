package config

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-kv/holdfast/internal/nearest"
)

// Flags returns one flag set per group; the flags hold text, which Load checks, so that
// a bad value reads the same wherever it was given.
func Flags() map[string]*pflag.FlagSet {
	sets := make(map[string]*pflag.FlagSet)
	for _, g := range Groups() {
		sets[g] = pflag.NewFlagSet(g, pflag.ContinueOnError)
		sets[g].SortFlags = false
	}
	for _, s := range Table() {
		addFlag(sets[s.Group], s)
	}
	return sets
}

func addFlag(set *pflag.FlagSet, s Setting) {
	isSwitch := s.Kind() == "bool"
	flag := set.VarPF(&raw{kind: s.Kind(), text: s.Default, list: s.List}, s.Name, "", usage(s))
	flag.Hidden = s.hidden()
	if isSwitch {
		flag.NoOptDefVal = "true"
	}
	if s.Negatable {
		no := set.VarPF(&raw{kind: "bool"}, "no-"+s.Name, "", "The opposite of --"+s.Name+".")
		no.Hidden = true
		no.NoOptDefVal = "true"
	}
}

// usage is the flag's line in the help.
func usage(s Setting) string {
	doc := s.Doc
	if limits := s.Limits(); limits != "" && s.Kind() == "choice" {
		doc += " One of: " + limits + "."
	}
	if s.Unit != "" && s.Unit != s.Kind() && !strings.Contains(doc, s.Unit) {
		doc += " In " + s.Unit + "."
	}
	return doc
}

// raw is a flag's value as it was written; that of a list has a line for each time.
type raw struct {
	kind, text string
	list       bool
}

func (r *raw) String() string { return r.text }
func (r *raw) Type() string   { return r.kind }

func (r *raw) Set(s string) error {
	if r.list && r.text != "" && s != "" {
		s = r.text + "\n" + s
	}
	r.text = s
	return nil
}

func negated(text string) string {
	if strings.EqualFold(text, "false") {
		return "true"
	}
	return "false"
}

// ExplainFlag adds the nearest flag's name to the error for an unknown one.
func ExplainFlag(flags *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if near := nearest.Meant(unknown.GetSpecifiedName(), known); near != "" {
		return errors.Join(err, errors.New("the nearest is --"+near))
	}
	return err
}
