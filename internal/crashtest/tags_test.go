//go:build killpoint && !sabotage

package crashtest

// buildTags are those of the server.
const buildTags = "killpoint,invariants"
