package worker

// Stats counts what one rank's worker half did. Counters of tokens and bytes grow on
// success only (specification §9.3).
type Stats struct {
	LoadRequests, LoadedTokens, LoadedBytes, LoadFailures              uint64
	SaveRequests, SavedTokens, SavedBytes, SavesRejected, SaveFailures uint64
	// ProducerFenced counts saves whose pack stream waited for the producer event. It grows by one for every
	// save that reads a block.
	ProducerFenced uint64
	// Replayed counts operations that were dispatched again and ignored.
	Replayed uint64
	// SavesPending and LoadsPending are operations without a terminal; SavesQueued and LoadsQueued those
	// of them that no thread has begun.
	SavesPending, LoadsPending int
	SavesQueued, LoadsQueued   int
	// QuarantinedBytes is staging that is lost for the life of the process since nothing proved that the device
	// is done with it. On a direct device it is the slots, which the store keeps for as long.
	QuarantinedBytes int64
}

// counts returns the counters and the pending gauges.
func (c *Core) counts() Stats {
	s := c.stats
	for _, o := range c.open {
		if o.load {
			s.LoadsPending++
		} else {
			s.SavesPending++
		}
	}
	return s
}
