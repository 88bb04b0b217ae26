// Package adapter reads what --l2-adapter says of a second-level store, in LMCache's form or
// ours, and opens the store with its decorators.
//
// A specification is a JSON object with a type and the type's fields. Where LMCache has a type
// for the same kind of store, its name and its field names are accepted; a field without a
// meaning here is accepted with a warning, one that would change what is stored is refused, and
// one that nobody knows is an error that names the nearest.
package adapter
