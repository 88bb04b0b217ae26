package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/nearest"
)

// kinds are all kinds of store, in the order of the documentation.
var kinds = []kind{diskKind, valkeyKind, s3Kind}

// kind is a kind of store with what may be said of it.
type kind struct {
	kind    Kind
	aliases []string // LMCache's types for it
	doc     string
	example string
	// defaults are those that no field shows.
	defaults func(*Spec)
	fields   []field
	// check holds the fields against each other.
	check func(*Spec) (warning string, err error)
}

// field is one field of a specification.
type field struct {
	name    string
	aliases []string // other names for it, LMCache's first
	values  string   // what it may hold, for the documentation
	doc     string
	set     func(*Spec, json.RawMessage) error
	// without says why the field has no effect here; it is accepted with this as a warning.
	without string
}

// take sets the field.
func (f *field) take(s *Spec, value json.RawMessage) (warning string, err error) {
	if f.set != nil {
		err = f.set(s, value)
	}
	if f.without != "" && err == nil {
		return "no effect here: " + f.without, nil
	}
	return "", err
}

// field finds a field by any of its names, the kind's own first.
func (k *kind) field(name string) (*field, bool) {
	for _, fields := range [][]field{k.fields, common} {
		for i := range fields {
			if f := &fields[i]; f.name == name || slices.Contains(f.aliases, name) {
				return f, true
			}
		}
	}
	return nil, false
}

func (k *kind) unknown(name string) error {
	known := []string{"type"}
	for _, f := range slices.Concat(k.fields, common) {
		known = append(append(known, f.name), f.aliases...)
	}
	if near := nearest.Meant(name, known); near != "" {
		return fmt.Errorf("field %.50q is unknown; the nearest is %q", name, near)
	}
	return fmt.Errorf("field %.50q is unknown; there are %s", name, strings.Join(known, ", "))
}

// The setters. Their errors complete the sentence "field NAME …" and do not quote the value.

func text(at func(*Spec) *string) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		if value[0] != '"' || json.Unmarshal(value, at(s)) != nil {
			return errors.New("must be text, in quotation marks")
		}
		if strings.ContainsRune(*at(s), 0) {
			return errors.New("must not hold a zero byte")
		}
		return nil
	}
}

func choice[T ~string](at func(*Spec) *T, words ...T) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		var word T
		if json.Unmarshal(value, &word) != nil || !slices.Contains(words, word) {
			return fmt.Errorf("must be one of %q", words)
		}
		*at(s) = word
		return nil
	}
}

func yes(set func(*Spec, bool)) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		var b bool
		if json.Unmarshal(value, &b) != nil {
			return errors.New("must be true or false")
		}
		set(s, b)
		return nil
	}
}

func integer(at func(*Spec) *int, least, most int) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		var n int
		if json.Unmarshal(value, &n) != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*at(s) = n
		return nil
	}
}

// number is one from least to most, which set takes.
func number(set func(*Spec, float64), least, most float64) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		var n float64
		if value[0] == '"' || json.Unmarshal(value, &n) != nil || !(n >= least && n <= most) {
			return fmt.Errorf("must be a number from %g to %g", least, most)
		}
		set(s, n)
		return nil
	}
}

// The bounds of every size, those of flags among them: 1 MiB and 1 PiB.
const (
	minBytes = 1 << 20
	maxGiB   = 1 << 20
)

// gibibytes takes a number of GiB, 0 for none.
func gibibytes(at func(*Spec) *int64) func(*Spec, json.RawMessage) error {
	return func(s *Spec, value json.RawMessage) error {
		var gib float64
		take := number(func(_ *Spec, n float64) { gib = n }, 0, maxGiB)
		err := take(s, value)
		bytes := int64(math.Round(gib * (1 << 30)))
		if err != nil || gib != 0 && bytes < minBytes {
			return fmt.Errorf("must be a number of GiB without a unit: 0 for none, or from 0.001 (1 MiB) to %d (1 PiB)", maxGiB)
		}
		*at(s) = bytes
		return nil
	}
}

// seconds takes a number of seconds, in whole milliseconds.
func seconds(at func(*Spec) *time.Duration, least, most float64) func(*Spec, json.RawMessage) error {
	take := number(func(s *Spec, n float64) {
		*at(s) = time.Duration(math.Round(n*1000)) * time.Millisecond
	}, least, most)
	return func(s *Spec, value json.RawMessage) error {
		if take(s, value) != nil {
			return fmt.Errorf("must be a number of seconds from %g to %g", least, most)
		}
		return nil
	}
}

// anything takes any value, for fields without effect.
func anything(*Spec, json.RawMessage) error { return nil }
