// Package store is where the connector's bytes go. There are two stores, and one worker code
// path for both: Local is a cache in this process, Remote a Holdfast server reached over its
// socket, whose shared memory is mapped here. Each gives the scheduler half an
// offload.Lookups and every rank's worker half an offload.Transfers.
//
// # Who owns a slot, and until when
//
// The slots of a save belong to the worker half from PrepareSave until it calls Commit or
// Abort, never longer. With Commit it says that every copy into them has been seen to
// complete. With Abort(quiet) it says that no copy into them is still running; with
// Abort(not quiet) that one may be, and then nobody else gets this memory before the store
// has proof: that the rank is gone (Close after its device stopped, or the end of the
// process). While a save of a range is open on a rank, a second one of the same range gets no
// slots: there is nothing to write that is not being written.
//
// The slots of a load may be read from BeginLoad until EndLoad. Their bytes do not change
// during that time. A load that missed has no slots, and is ended all the same.
//
// The memory of all slots stays mapped until the store is closed, so that it can be registered
// with a device once: see Pooled. Close the device first.
package store
