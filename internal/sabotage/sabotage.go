// Package sabotage names the safeties of Holdfast and, in builds with the tag
// `sabotage`, lets a test remove one of them. A test turns each switch on and demands
// that a named check notices; a safety that nothing notices is a defect. In ordinary
// builds On is the constant false and the compiler drops the code behind it.
package sabotage

// Switch removes one safety.
type Switch uint8

// The switches. docs/invariants.md lists the check that notices each.
const (
	// PublishOnAbandon settles the reservations of a writer that disappeared,
	// where the rule is to abort them.
	PublishOnAbandon Switch = iota
	// ReuseWithoutQuarantine frees an aborted reservation at once although its
	// writer may still be writing.
	ReuseWithoutQuarantine
	// LeaseByClock lets a lease run out by time alone.
	LeaseByClock
	// SaltOutOfKey leaves the tenant's salt out of the object key.
	SaltOutOfKey
	// AnswerTwice keeps the answer of a lookup after it was given.
	AnswerTwice
	// SkipVerify takes every retrieved object as intact without looking.
	SkipVerify
	// EvictLeased lets eviction take objects that a lease holds.
	EvictLeased
	// ServeReserved lets lookups see objects whose writer has not committed.
	ServeReserved
	// LateCommitSettles lets a commit that arrives after its abort publish.
	LateCommitSettles
	// RetryRetired retries a failed save of a request that is over.
	RetryRetired
	// WatermarkFromScheduled reads the save frontier from the scheduled tokens.
	WatermarkFromScheduled
	// LeaseWithoutQuorum ends a lease on the first rank's report.
	LeaseWithoutQuorum
	// PinNeverReleased keeps lookup pins that became no load.
	PinNeverReleased
	// LoadBelowFrontier loads from token 0 on.
	LoadBelowFrontier
	// FreeOnDeadline ends leases when the deadline fires.
	FreeOnDeadline
	// StaleCompletionAccepted takes a report of another generation for the active operation.
	StaleCompletionAccepted
	// SkipProducerWait gathers a save's blocks without waiting for the producer event.
	SkipProducerWait
	// SkipCopyFenceBeforeCommit publishes a save before its copies were seen to complete.
	SkipCopyFenceBeforeCommit
	// ReuseStagingEarly fills a staging cell again, or on a direct device gives the slots of a load back, before the last
	// reader is done.
	ReuseStagingEarly
	// SkipLoadFence scatters a load's blocks without waiting for the compute stream.
	SkipLoadFence
	// DoubleTerminal reports the terminal of each transfer twice.
	DoubleTerminal
	// PublishFailedStore commits a save that failed, where the rule is to abort it.
	PublishFailedStore
	// ServeUnsummed serves a store without the checksums that its mode demands.
	ServeUnsummed
	// SumUnpinned takes the checksum of a served object without keeping its memory.
	SumUnpinned
	// TierSkipVerify takes what a second-level store returns without comparing checksums.
	TierSkipVerify
	// TierReuseBeforeAck frees the memory of a load at its deadline, while the store may still write to it.
	TierReuseBeforeAck
	// TierServeBeforeLoad lets lookups see objects that are being loaded from a tier.
	TierServeBeforeLoad
	// TierAnswerBeforeDone answers a lookup whose loads are not done.
	TierAnswerBeforeDone
	// TierClearUnfenced clears a tier without waiting for the puts in progress.
	TierClearUnfenced
	// DiskPublishBeforeSync gives a file on disk its name before its bytes are durable.
	DiskPublishBeforeSync
	// DiskCapAfterWrite reserves room on disk after the bytes are written.
	DiskCapAfterWrite
	// AdoptUnverified serves what an earlier server left without comparing it first.
	AdoptUnverified
	// AdoptFreesReserved frees the slots that the peers of an earlier server may still write to.
	AdoptFreesReserved
	// AdoptForgetsReaders lets memory be reused that the peers of an earlier server may still read.
	AdoptForgetsReaders
	// RecordNotCleared leaves the record of a slot that was freed.
	RecordNotCleared
	// UploadKeepsMemory lets an upload to S3 read an object's memory after its put has returned.
	UploadKeepsMemory
	// UploadWithoutSum uploads to S3 without a checksum that shows the server a cut.
	UploadWithoutSum
	// Switches is the number of switches.
	Switches
)

var names = [Switches]string{
	"publish-on-abandon", "reuse-without-quarantine", "lease-by-clock", "salt-out-of-key",
	"answer-twice", "skip-verify", "evict-leased", "serve-reserved", "late-commit-settles",
	"retry-retired", "watermark-from-scheduled", "lease-without-quorum", "pin-never-released",
	"load-below-frontier", "free-on-deadline", "stale-completion-accepted",
	"skip-producer-wait", "skip-copy-fence-before-commit", "reuse-staging-early", "skip-load-fence",
	"double-terminal", "publish-failed-store", "serve-unsummed", "sum-unpinned", "tier-skip-verify",
	"tier-reuse-before-ack", "tier-serve-before-load", "tier-answer-before-done", "tier-clear-unfenced",
	"disk-publish-before-sync", "disk-cap-after-write",
	"adopt-unverified", "adopt-frees-reserved", "adopt-forgets-readers", "record-not-cleared",
	"upload-keeps-memory", "upload-without-sum",
}

// String returns the switch's name as docs/invariants.md spells it.
func (s Switch) String() string {
	if s < Switches {
		return names[s]
	}
	return "unknown"
}
