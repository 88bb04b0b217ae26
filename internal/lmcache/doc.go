// Package lmcache is LMCache's multi-process protocol as bytes: operations, keys,
// messages, and the pickled tensor lists of two of them. It does no I/O and keeps no
// state. Everything it decodes is hostile: every allocation is bounded by the bytes
// at hand, and nothing is evaluated.
package lmcache
