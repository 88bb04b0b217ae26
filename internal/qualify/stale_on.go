//go:build sabotage

package qualify

import "github.com/holdfast-kv/holdfast/internal/sabotage"

// removeWait takes the wait of saves for their producer away, or puts it back.
func removeWait(removed bool) { sabotage.Set(sabotage.SkipProducerWait, removed) }
