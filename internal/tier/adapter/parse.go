package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-kv/holdfast/internal/nearest"
)

// ErrSpec is wrapped by every error of Parse.
var ErrSpec = errors.New("bad adapter")

// MaxBytes is the most text that Parse takes, MaxSpecs the most adapters in it.
const (
	MaxBytes = 64 << 10
	MaxSpecs = 16
)

// Parse reads adapters from JSON: objects, or arrays of objects, one after the other; their order
// is the order of asking. Errors tell which adapter and which field they are about, and no value
// of a field that may be secret. Warnings are complete sentences.
func Parse(text string) (specs []Spec, warnings []string, err error) {
	objects, err := split(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	if len(objects) > MaxSpecs {
		return nil, nil, fmt.Errorf("%w: %d of them, at most %d", ErrSpec, len(objects), MaxSpecs)
	}
	var errs []error
	names := make(map[string]bool)
	for i, object := range objects {
		which := ""
		if len(objects) > 1 {
			which = fmt.Sprintf("adapter %d: ", i+1)
		}
		s, warned, err := parseOne(object)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %s%w", ErrSpec, which, err))
		case s.Name != "" && names[s.Name]:
			errs = append(errs, fmt.Errorf("%w: %sanother one has the name %q", ErrSpec, which, s.Name))
		}
		names[s.Name] = true
		for _, w := range warned {
			warnings = append(warnings, which+w)
		}
		specs = append(specs, s)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, warnings, err
	}
	return specs, warnings, nil
}

// split takes the text apart into objects.
func split(text string) (objects []map[string]json.RawMessage, err error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%d bytes of text, at most %d", len(text), MaxBytes)
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	for {
		var value json.RawMessage
		if err := decoder.Decode(&value); err == io.EOF {
			return objects, nil
		} else if err != nil {
			return nil, notJSON(err)
		}
		switch value[0] {
		case '{':
			object, err := fieldsOf(value)
			if err != nil {
				return nil, err
			}
			objects = append(objects, object)
		case '[':
			var list []json.RawMessage
			if err := json.Unmarshal(value, &list); err != nil {
				return nil, notJSON(err)
			}
			for _, element := range list {
				object, err := fieldsOf(element)
				if err != nil {
					return nil, err
				}
				objects = append(objects, object)
			}
		default:
			return nil, errNoObject
		}
	}
}

var errNoObject = errors.New(`must be a JSON object, such as {"type":"disk","path":"/var/cache/holdfast"}`)

// notJSON says where the text stops being JSON, without quoting it: it may hold a secret.
func notJSON(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("no JSON from byte %d on (%v); write it as in %s", syntax.Offset, err, diskKind.example)
	}
	return fmt.Errorf("no JSON: %w; write it as in %s", err, diskKind.example)
}

// fieldsOf takes an object apart into its fields; a field that is there twice is an error,
// because nobody knows which one is meant.
func fieldsOf(object json.RawMessage) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errNoObject
	}
	fields := make(map[string]json.RawMessage)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		name, _ := token.(string)
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("field %.50q is there twice", name)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, notJSON(err)
		}
		fields[name] = value
	}
	return fields, nil
}

func parseOne(given map[string]json.RawMessage) (s Spec, warnings []string, err error) {
	k, err := kindOf(given["type"])
	if err != nil {
		return Spec{}, nil, err
	}
	s = Spec{Kind: k.kind}
	k.defaults(&s)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if name == "type" || string(given[name]) == "null" { // null is not given
			continue
		}
		f, ok := k.field(name)
		if !ok {
			errs = append(errs, k.unknown(name))
			continue
		}
		warning, err := f.take(&s, given[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("field %q %w", name, err))
		}
		if warning != "" {
			warnings = append(warnings, fmt.Sprintf("field %q of %s: %s", name, k.kind, warning))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Spec{}, warnings, fmt.Errorf("%s: %w", k.kind, err)
	}
	warning, err := k.check(&s)
	if err != nil {
		return Spec{}, warnings, fmt.Errorf("%s: %w", k.kind, err)
	}
	if warning != "" {
		warnings = append(warnings, warning)
	}
	return s, warnings, nil
}

// kindOf finds the kind that a type names.
func kindOf(value json.RawMessage) (*kind, error) {
	var name string
	if value == nil {
		return nil, fmt.Errorf(`there is no field "type"; it is one of %s`, supported())
	}
	if err := json.Unmarshal(value, &name); err != nil {
		return nil, fmt.Errorf(`field "type" must be text: one of %s`, supported())
	}
	for i := range kinds {
		if k := &kinds[i]; name == string(k.kind) || slices.Contains(k.aliases, name) {
			return k, nil
		}
	}
	if slices.Contains(elsewhere, name) {
		return nil, fmt.Errorf("type %q is one that LMCache has and this server has not; it has %s", name, supported())
	}
	var known []string
	for _, k := range kinds {
		known = append(append(known, string(k.kind)), k.aliases...)
	}
	if near := nearest.Meant(name, known); near != "" {
		return nil, fmt.Errorf("unknown type %.50q; the nearest is %q; there are %s", name, near, supported())
	}
	return nil, fmt.Errorf("unknown type %.50q; there are %s", name, supported())
}

// elsewhere are types of LMCache that have no counterpart here.
var elsewhere = []string{
	"aerospike", "bigtable", "blkio", "cxl_peer", "dax", "dram", "fault_inject", "gcs", "hf3fs", "hfbucket", "mock",
	"mooncake_store", "native_plugin", "nixl_native", "nixl_store", "nixl_store_dynamic", "p2p", "pd", "phx", "plugin",
	"raw_block", "sagemaker-hyperpod", "valkey_rdma", "wqs_store",
}

// supported lists the types with the names that LMCache gives them.
func supported() string {
	var all []string
	for _, k := range kinds {
		name := string(k.kind)
		if len(k.aliases) > 0 {
			name += " (also " + strings.Join(k.aliases, ", ") + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
